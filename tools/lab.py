"""JupyterLab on copies of the notebooks, in data/lab: what is kept in git stays as it is, whatever is tried.

A copy that nobody changed follows its notebook; one that somebody changed is kept, and a line says what is newer.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

from lqrlab.compute.files import write_json
from lqrlab.workbench.runs import notebooks

ROOT = Path(__file__).parents[1]
COPIES, COPIED = "data/lab", "[0-3][0-9]_*.ipynb"
"""Where the copies are, and what is copied: from 40 on notebooks are people's own."""
MARK = "copy_of"
"""Of a copy's metadata: the digest of the notebook that it was made from."""
SETTINGS = Path(__file__).parent / "jupyter"
"""JupyterLab's settings: a notebook's kernel is started without a question, and no news is fetched."""


def digest(path: Path) -> str:
    """Of the cells as a person sees them, without outputs: running a notebook changes nothing."""
    cells = [(cell["cell_type"], cell["source"]) for cell in notebooks.read(path).cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def copy(source: Path, folder: Path) -> list[str]:
    """Copy the notebooks of a folder; names of changed copies, which are kept though their notebooks are newer."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for path in sorted(source.glob(COPIED)):
        made, now = folder / path.name, digest(path)
        if made.exists():
            before = notebooks.read(made).metadata.get(MARK)
            if before == now:
                continue
            if before != digest(made):
                kept.append(path.name)
                continue
        content = json.loads(path.read_text(encoding="utf-8"))
        content["metadata"].setdefault("lqrlab", {})[MARK] = now
        write_json(made, content, ensure_ascii=False)
    return kept


if __name__ == "__main__":
    for name in copy(ROOT / "notebooks", ROOT / COPIES):
        print(f"{COPIES}/{name} is yours and stays; notebooks/{name} is newer (without your copy, it is copied again)")
    places = [str(SETTINGS), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(places)
    first = f"--LabApp.default_url=/lab/tree/{COPIES}/01_system_exploration.ipynb"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}", first, *sys.argv[1:]]
    os.execv(sys.executable, command)
