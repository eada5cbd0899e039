"""What griffe shall read in docstrings: arguments that share a line, examples, names marked up for Sphinx."""

import re
from typing import Any

import griffe

_NAMES = re.compile(r"^([ \t]+)(\w+(?:,\s+\w+)+):", re.MULTILINE)
_EXAMPLE = re.compile(r"^([ \t]*)(>>> .*(?:\n[ \t]*\S.*)*)", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """``A, B: shapes`` stands for two arguments, so B is no type; ``>>>`` begins an example, no quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that is read from the source."""
        if obj.docstring:
            text = _NAMES.sub(lambda m: re.sub(r",\s+", ",\u00a0", m[0]), obj.docstring.value)
            text = text.replace(": > ", ": \\> ")  # larger than, no quotation either
            obj.docstring.value = linked(_EXAMPLE.sub(r"\1```pycon\n\1\2\n\1```", text))


def linked(text: str) -> str:
    """Text with names as code, linked where the site has them."""
    return _ROLE.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', text)
