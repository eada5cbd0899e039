"""The translator: a traced step of a controller or plant becomes a function in C.

In the order of the work: :mod:`flattening` writes calls out, :mod:`translation` goes through the equations with the
table of :mod:`primitives`, :mod:`indexing` and :mod:`control_flow`, on :mod:`arrays` of :mod:`expressions` of
:mod:`operations`; :mod:`tidying` leaves out what nobody reads.
"""

import re
from pathlib import Path

MARK = "written by lqrlab.deployment.to_c"
_WORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
bool true false real_t INFINITY NAN R M"""
KEYWORDS = set(_WORDS.split())
"""Names that a memory cannot have in C."""
_TAKEN = re.compile(  # types and headers of C without _t and .h, and programs in the folder
    r"(u?int(_least|_fast)?\d+|u?int(max|ptr)|s?size|ptrdiff|wchar|l?div|fpos|clock|va_list|main(_test)?|assert|complex"
    r"|ctype|errno|fenv|inttypes|iso646|limits|locale|math|setjmp|signal|std\w+|string|tgmath|time|wc\w+)"
)


def check_name(name: str) -> None:
    """Raise ValueError unless symbols and files of C can begin with this name."""
    if name in KEYWORDS or _TAKEN.fullmatch(name) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        wanted = "a letter, then letters, digits and underscores, which is no keyword, type or header of C, as left_arm"
        raise ValueError(f"name: expected {wanted}, but found {name!r}: symbols and files of the C code begin with it")


def exported_headers(folder: Path) -> list[Path]:
    """Headers in a folder that :func:`to_c` wrote."""
    return [file for file in sorted(folder.glob("*.h")) if MARK in file.read_text(errors="replace")[:400]]


def check_folder(folder: Path, name: str) -> None:
    """Refuse a folder with anything in it but what :func:`to_c` wrote, and what was built of that beside it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder: expected a folder, but found the file {folder}")
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if found and exported_headers(folder) != [folder / f"{name}.h"]:
        raise ValueError(
            f"folder: expected an empty folder, or one that to_c wrote as {name}, but {folder} holds {found[0]}"
            f"{' and others' if len(found) > 1 else ''}; name another folder"
        )
