"""Whether a result is up to date: a hash of all that it follows from."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import lqrlab
from lqrlab.workbench.runs.notebooks import Notebook, Values, source, tags


def package_hash(root: Path = Path(lqrlab.__file__).parent) -> str:
    """Hash of lqrlab's version and source files, without the workbench: starting and showing change no result."""
    digest = hashlib.sha256(lqrlab.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("workbench/"):
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def fingerprints(chain: Sequence[Notebook], values: Mapping[str, Values]) -> dict[str, str]:
    """For each notebook of a chain, the hash of all that its result follows from.

    The notebooks before it count by their code and parameters (all of them, or those that its metadata name), so
    that rewording one reruns that one alone.
    """
    package = package_hash()
    whole: dict[str, str] = {}
    handed_on: dict[str, str] = {}
    for nb in chain:
        needs = nb.metadata.get("needs", list(handed_on))
        unknown = [name for name in needs if name not in handed_on]
        if unknown:
            raise ValueError(
                f"{nb.path}: its metadata say that it needs {unknown[0]!r}, which does not come before it"
            )
        inputs = [handed_on[name] for name in needs]
        whole[nb.name] = fingerprint(nb, values[nb.name], inputs, package)
        code = [source(c) for c in nb.cells if c["cell_type"] == "code" and "parameters" not in tags(c)]
        handed_on[nb.name] = _hash([code, package, _given(values[nb.name]), inputs])
    return whole


def fingerprint(
    nb: Notebook, values: Values, inputs: Sequence[str | None] = (), package: str | None = None
) -> str:
    """The hash of all that the result of one notebook follows from.

    Args:
        nb: its cells count without their outputs.
        values: its parameters; ``run`` does not count, so that a folder may be moved.
        inputs: what identifies the files that it reads.
        package: from :func:`package_hash`, where that has been computed.
    """
    cells = [(c["cell_type"], tags(c), source(c)) for c in nb.cells]
    return _hash([cells, package or package_hash(), _given(values), list(inputs)])


def _given(values: Values) -> Values:
    return {k: v for k, v in values.items() if k != "run"}


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
