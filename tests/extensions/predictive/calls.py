"""Constrained LQR of problems as flat dictionaries, see :mod:`dense_qp`."""

from lqrlab import predictive, simulation

_TERMS = ("c", "q", "r", "qf", "soft", "u_last", "time_varying")


def limits_of(given):
    """Takes limits, C and D out of a dictionary."""
    found = {kind: given.pop(f"{kind}_limits") for kind in ("u", "x", "y", "du") if f"{kind}_limits" in given}
    return simulation.Limits(**found, **{name: given.pop(name) for name in ("C", "D") if name in given})


def solved(*args, **given):
    """The answer of the package."""
    limits, terms = limits_of(given), {name: given.pop(name) for name in _TERMS if name in given}
    return predictive.constrained_lqr(*args, **given, limits=limits, terms=predictive.Terms(**terms))
