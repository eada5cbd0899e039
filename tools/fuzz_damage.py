"""What is done to the arguments of a correct call, and how an answer is checked."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from hypothesis import strategies as st

from lqrlab import compute, simulation, systems

compute.setup()
KEY = jax.random.key(0)


@dataclasses.dataclass(frozen=True)
class Made:
    """An argument that takes a while to be made: when it is needed."""

    make: Callable


# Damage -----------------------------------------------------------------------------------------------------

ARRAYS = {
    "+ 1j": lambda a, _: a + 1j,
    "as text": lambda a, _: a.astype(str),
    "as objects": lambda a, _: a.astype(object),
    "as whole numbers": lambda a, _: np.round(a).astype(int),
    "as truth values": lambda a, _: a.astype(bool),
    "as bytes": lambda a, _: a.astype("S"),
    "as durations": lambda a, _: np.round(a).astype("m8[s]"),
    "as dates": lambda a, _: np.round(a).astype("M8[s]"),
    "in a structure": lambda a, _: a.astype([("x", float)]),
    "behind a mask": lambda a, rng: np.ma.array(a, mask=rng.random(a.shape) < 0.9),
    "big-endian": lambda a, _: a.astype(">f8"),
    "in longdouble": lambda a, _: a.astype(np.longdouble),
    "in float32": lambda a, _: a.astype(np.float32),
    "as list": lambda a, _: a.tolist(),
    "of unequal rows": lambda a, _: [*a.tolist(), [1.0, [2.0]]],
    "with NaN": lambda a, rng: np.where(rng.random(a.shape) < 0.5, np.nan, a),
    "with inf": lambda a, rng: np.where(rng.random(a.shape) < 0.5, np.inf, a),
    "· 1e300": lambda a, _: a * 1e300,
    "· 1e12": lambda a, _: a * 1e12,
    "· 1e-12": lambda a, _: a * 1e-12,
    "· 1e-300": lambda a, _: a * 1e-300,
    "= 0": lambda a, _: np.zeros_like(a),
    "negative": lambda a, _: -a,
    "transposed": lambda a, _: a.T,
    "cut": lambda a, _: a[:-1],
    "with one axis more": lambda a, _: a[None],
    "three times": lambda a, _: np.stack([a] * 3),
    "empty": lambda a, _: a[:0],
    "at random": lambda a, rng: rng.normal(size=a.shape) * 10.0 ** rng.integers(-3, 4),
    "all alike": lambda a, _: np.ones_like(a),
}
NUMBERS = [
    *(0, -1, 0.5, 1e-300, 1e-12, 1e6, 1e300, np.nan, np.inf, -np.inf, 1j, 10**30, True, np.float32(0.1)),
    *(np.zeros(()), None, "x", "0.1", b"1", [], [0.1], {}, np.ones(3), object()),
    *(np.timedelta64(1, "s"), np.datetime64(1, "s"), np.ma.masked),
]
OTHERS = [None, 3, 0.5, "x", "", "cart_pole", object(), [], {}, np.ones((2, 2)), 1j, len]
PLANTS = [
    systems.make("cart_pole"),
    systems.sample("pendulum", key=KEY, num=2),
    systems.linearise(systems.make("pendulum")),
    systems.from_matrices(np.eye(2), np.zeros((2, 1))),
]
POLICIES = [
    *map(simulation.LinearPolicy, (np.ones((1, 3)), np.full((1, 2), np.nan), np.ones((1, 2)) * 1j, [[1.0, 2.0]])),
    *map(simulation.LinearPolicy, (np.ones((5, 1, 2)), jnp.ones((1, 2)) * 1e300, np.array([["1", "2"]]), None)),
]  # fmt: skip
KEYS = [jax.random.split(KEY), jax.random.PRNGKey(0), jax.random.key(1), jax.random.split(KEY)[None]]


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _others(value) -> list:
    """What may take the place of a value."""
    for kind, more in ((systems.Plant, PLANTS), (simulation.LinearPolicy, POLICIES), (jax.Array, KEYS)):
        if isinstance(value, kind):
            return more + OTHERS
    return NUMBERS if _is_number(value) else OTHERS


@st.composite
def arguments(draw, valid: dict):
    """(Arguments of a call of which one or two are damaged, what was done to them in words)."""
    given, words = dict(valid), []
    for name in draw(st.lists(st.sampled_from(sorted(valid)), min_size=1, max_size=2, unique=True)):
        value, rng = valid[name], np.random.default_rng(draw(st.integers(0, 2**32)))
        if isinstance(value, np.ndarray) and draw(st.integers(0, 9)):
            way = draw(st.sampled_from(sorted(ARRAYS)))
            given[name] = ARRAYS[way](value, rng)
            words.append(f"{name} {way}")
            continue
        given[name] = draw(st.sampled_from(_others(value)))
        words.append(f"{name} = {str(given[name])[:40]!r}")
    return given, words


# Checks -----------------------------------------------------------------------------------------------------


COMPLEX = ("poles", "M")
"""Arguments that may be complex."""


def mistaken(valid: dict, given: dict) -> str:
    """What was taken for something that it is not: text for numbers, an object for True; in words."""
    for name, value in given.items():
        expected = valid[name]
        if value is expected or value is None:
            continue
        if isinstance(expected, bool) and not isinstance(value, bool | np.bool):
            return f"{name}: {value!r} was taken for True or False"
        if isinstance(expected, str | Path) and not isinstance(value, str | Path):
            return f"{name}: {value!r} was taken for text"
        if (_is_number(expected) or isinstance(expected, np.ndarray)) and not _is_number(value):
            kind = "O"
            with contextlib.suppress(ValueError):  # of unequal rows
                kind = np.asarray(value).dtype.kind
            if (
                (kind == "c" and name not in COMPLEX)
                or kind in "USmMV"
                or np.ma.is_masked(value)
                or (kind == "O" and not isinstance(value, np.ndarray))
            ):
                return f"{name}: {str(value)[:40]!r} was taken for real numbers"
        if _is_number(expected) and isinstance(value, float) and np.isnan(value):
            return f"{name}: NaN was taken for a number"
    return ""


def hidden_nan(found, given: dict) -> str:
    """That numbers are all finite although an array among the arguments had NaN; in words."""
    names = [n for n, a in given.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f" and np.isnan(a).any()]
    arrays = [np.asarray(a) for a in jax.tree.leaves(found) if isinstance(a, float | np.ndarray | jax.Array)]
    numbers = [a for a in arrays if a.dtype.kind in "fc" and a.size]
    if names and numbers and all(np.isfinite(a).all() for a in numbers):
        return f"{', '.join(names)}: NaN went in, and all that came out is finite"
    return ""


def anything(found, given) -> str:
    """Nothing more to be checked."""
    return ""


def gain(discrete: bool = False, sampled: bool = False):
    """Of a regulator: what is called stabilizing is."""

    def check(found, given) -> str:
        A, B = (np.asarray(given[name], float) for name in "AB")
        gains, said = np.asarray(found.K), np.asarray(found.stabilizing)
        if A.ndim != 2 or B.ndim != 2 or gains.ndim != 2 or not said:
            return ""
        if not np.isfinite(gains).all():
            return "called stabilizing, but the gain is not finite"
        if sampled:
            block = np.zeros((3, 3))
            block[:2] = np.hstack([A, B]) * float(given["dt"])
            if not np.isfinite(block).all() or abs(block).max() >= 50:
                return ""
            whole = scipy.linalg.expm(block)
            A, B = whole[:2, :2], whole[:2, 2:]
        with np.errstate(all="ignore"):
            closed = A - B @ gains
        if not np.isfinite(closed).all():
            return ""
        poles = np.linalg.eigvals(closed)
        scale = np.finfo(float).eps ** 0.5 * max(abs(closed).max(), 1.0)
        limit = abs(poles).max() - 1 if discrete or sampled else poles.real.max()
        return "" if limit <= scale else f"called stabilizing, but a pole is {limit:.2g} beyond the border"

    return check


def residual(of):
    """What an equation leaves is small against its terms."""

    def check(found, given) -> str:
        X, a, q = np.asarray(found), *(np.asarray(given[k], float) for k in "AQ")
        if a.ndim != 2 or q.ndim != 2 or not np.isfinite(X).all():
            return ""
        with np.errstate(all="ignore"):
            left = of(a, X, q)
            size = abs(X).max() * (1 + abs(a).max() + abs(a).max() ** 2) + abs(q).max()
        small = not np.isfinite(size) or abs(left).max() <= 1e-6 * max(size, 1e-300)
        return "" if small else "the equation is not solved"

    return check


def starts_at_x0(found, given) -> str:
    """Of a rollout."""
    xs, x0 = np.asarray(found.xs), np.asarray(given["x0"], float)
    same = xs.shape[:-2] == x0.shape[:-1] and np.allclose(xs[..., 0, :], x0, rtol=1e-5, equal_nan=True)
    return "" if same else "the first state is not x0"
