"""Parameters that name something, checked before a notebook starts: families of plants and devices."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from lqrlab.compute import checks
from lqrlab.workbench.runs.notebooks import Values

FAMILIES = ("family", "families", "held_out", "others", "pages", "films")
"""Parameters that name families of plants."""
_DEVICE = "import sys; from lqrlab import compute; compute.Backend(device=sys.argv[1]).jax_device"


def check(values: Mapping[str, Values], given: Iterable[str]) -> None:
    """Refuse names that nothing has, of the parameters that were ``given`` by somebody; the others have been tried.

    Args:
        values: notebook → parameter → value.
        given: ``parameter`` or ``notebook.parameter``.
    """
    typed = list(given)
    for notebook, parameters in values.items():
        for name, value in parameters.items():
            if name in typed or f"{notebook}.{name}" in typed:
                _check(f"{notebook}.{name}", name, value, parameters)


def _check(called: str, name: str, value: object, others: Values) -> None:
    if name in FAMILIES:
        _check_families(called, [value] if isinstance(value, str) else value, others)  # type: ignore[arg-type]
    elif name == "device" and value not in (
        "auto",
        "cpu",
    ):  # elsewhere: here JAX would take the device for itself
        done = subprocess.run([sys.executable, "-c", _DEVICE, str(value)], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{called}: {done.stderr.strip().splitlines()[-1].partition('device: ')[2]}")


def _check_families(called: str, chosen: Sequence[str], others: Values) -> None:
    from lqrlab import compute, systems

    compute.setup()
    known = systems.names()
    for family in chosen if list(chosen) != ["all"] else ():
        if family not in known:
            hint = checks.did_you_mean(family, known) or "; lqrlab systems lists them"
            raise ValueError(f"{called}: no plant is called {family!r}{hint}")
    among = others.get("families")
    if called.endswith(".held_out") and among and among != ["all"] and not others.get("fold"):
        for family in chosen:
            checks.choice(called, family, among, "some of families:")  # type: ignore[arg-type]
