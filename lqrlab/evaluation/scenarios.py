"""Scenarios for judging controllers: plants ever further from those they were made for, and what happens to them.

Plants are drawn from a key, so that one seed is one list of plants and starts.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab import systems
from lqrlab.compute import checks
from lqrlab.simulation import Problem
from lqrlab.systems import Plant

_SIZES = (2, 1), (4, 2), (6, 1), (8, 3), (12, 1), (12, 6)  # of dense systems: states, inputs

PUBLISHED = tomllib.loads(Path(__file__).with_name("textbook.toml").read_text(encoding="utf-8"))
"""Designs that others have published, of which nothing is in the catalogue; the file says what it holds."""


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """Plants, with noise, limits and events during control.

    Attributes:
        plants: family or design → a batch of plants with one leading axis.
        group: of scenarios: ``"trained"``, ``"unseen"``, ``"published"``, ``"dense"``.
        limit: of all inputs around the equilibrium, in units of their scales; None for none.
        size: of the starts, in scales of the states.
        noise: standard deviation of the disturbance at each sample, and of the sensors, in scales of the states.
        events: what happens after the first samples, one after another, unannounced: ``"push"`` of the state by one
            scale, ``"another plant"``, a variant of the same family.
        then: the plants after ``"another plant"``, as ``plants``.
        told: ``"everything"``, or ``"units"``: A and B are not given; the cost is Σ |x|² + |u|² in scales.
    """

    plants: Mapping[str, Plant]
    group: str = "trained"
    limit: float | None = None
    size: float = 1.0
    noise: float = 0.0
    events: tuple[str, ...] = ()
    then: Mapping[str, Plant] = dataclasses.field(default_factory=dict)
    told: str = "everything"


def suite(
    trained: Sequence[str],
    *,
    key: PRNGKeyArray,
    variants: int = 8,
    spread: float = 0.2,
    wide: float = 0.5,
    noise: float = 0.01,
    limit: float | None = None,
    others: Sequence[str] | None = None,
) -> dict[str, Scenario]:
    """Scenarios for :func:`judge`, by name.

    Fresh variants of the trained families within ±``spread``, and within ±``wide``; of every other family that is
    registered; published designs (:data:`PUBLISHED`); ``variants`` dense systems of each of six sizes, ẋ = Ax + Bu with
    normal entries, A's of variance r²/n with r between 0.3 and 3 a second, sampled at 0.1 s. Then the trained families
    under noise, with an impulse disturbance, with another plant; and plants whose A and B are unknown.
    With a ``limit`` also starts within the limits, and three times as far: one variant a family, for the constrained
    optimum takes long.

    Args:
        trained: the families that the contenders were made for.
        key: of the variants.
        variants: of each family, and of each size of dense systems.
        spread, wide: half-widths of the parameters around their defaults, relative.
        noise: of the scenarios with noise, in scales of the states.
        limit: of inputs, in their scales.
        others: the families never trained on; all that are left if left out.
    """
    checks.random_key(key)
    variants = checks.whole("variants", variants)
    if not trained:
        raise ValueError("trained: expected at least one family, but found none")
    for name in (*trained, *(others or ())):
        systems.family(name)
    others = [name for name in systems.names() if name not in trained] if others is None else others

    def some(label: int, names: Sequence[str], width: float, num: int = variants) -> dict[str, Plant]:
        keys = jax.random.split(jax.random.fold_in(key, label), len(names))
        return {name: systems.sample(name, key=k, num=num, spread=width) for name, k in zip(names, keys)}

    home, percent = some(0, trained, spread), f"±{100 * spread:g} %"
    found = {f"trained families, {percent}": Scenario(home)}
    found[f"trained families, ±{100 * wide:g} %"] = Scenario(some(1, trained, wide))
    if others:
        found[f"families never trained on, {percent}"] = Scenario(some(2, others, spread), group="unseen")
    found["published designs"] = Scenario(published(), group="published")
    found["dense systems"] = Scenario(_dense(jax.random.fold_in(key, 3), variants), group="dense")
    if limit is not None:
        limit = checks.number("limit", limit, "a number above 0, in units of the inputs' scales", above=0.0)
        one = some(4, trained, spread, 1)
        found["starts within limits"] = Scenario(one, limit=limit, size=0.3)
        found["starts beyond limits"] = Scenario(one, limit=limit, size=1.0)
    if checks.number("noise", noise, "a number ≥ 0, in scales of the states", low=0.0):
        disturbed = Scenario(home, noise=noise)
        found[f"noise, σ = {noise:g}"] = disturbed
        found["an impulse disturbance"] = dataclasses.replace(disturbed, events=("push",))
        another = some(5, trained, spread)
        found["another plant"] = dataclasses.replace(disturbed, events=("another plant",), then=another)
        found["A and B unknown"] = dataclasses.replace(disturbed, told="units")
    return found


def untold(plants: Sequence[Plant]) -> Problem:
    """The problem of plants whose A and B stay unknown: scaled, padded, Q = R = I but for padding."""
    scaled = Problem.of(plants, optimum=False).scaled()
    Q, R = (jnp.broadcast_to(jnp.eye(k), (len(scaled), k, k)) for k in (scaled.n, scaled.m))
    unit = dataclasses.replace(scaled, Q=Q, R=R, N=jnp.zeros_like(scaled.B), continuous=None).solved(check=False)
    return dataclasses.replace(unit, P=unit.coordinates.zero_padding(unit.P, "x", "x"))


def published() -> dict[str, Plant]:
    """The plants of published designs by name, each a batch of one, with the weights of its source, or ones."""
    found: dict[str, Plant] = {}
    for name, design in PUBLISHED.items():
        A, B = np.array(design["A"], float), np.array(design["B"], float)
        Q, R = (np.diag(design.get(key, np.ones(size))) for key, size in (("Q", len(A)), ("R", B.shape[1])))
        found[name] = systems.from_matrices(A[None], B[None], Q=Q[None], R=R[None], dt=design["dt"])
    return found


def _dense(key: PRNGKeyArray, num: int) -> dict[str, Plant]:
    """Systems of which nothing is known but their matrices, of each size."""
    found: dict[str, Plant] = {}
    for (n, m), one in zip(_SIZES, jax.random.split(key, len(_SIZES))):
        radius, of_A, of_B = jax.random.split(one, 3)
        r = jax.random.uniform(radius, (num, 1, 1), float, 0.3, 3.0)
        A, B = jax.random.normal(of_A, (num, n, n), float), jax.random.normal(of_B, (num, n, m), float)
        found[f"{n} states, {m} input{'s'[: m - 1]}"] = systems.from_matrices(r * A / n**0.5, B, dt=0.1)
    return found


@dataclasses.dataclass(frozen=True)
class FamilyGain:
    """One gain a family: the optimum of its default parameters, for all its variants. It knows the family."""

    def gains(self, names: Sequence[str], problem: Problem) -> Float[Array, "V 6 12"]:
        """Gains for a problem whose plants are of these families, in SI units; not a number for what is of none."""
        number = {name: i for i, name in enumerate(name for name in dict.fromkeys(names) if name in systems.names())}
        if not number:
            return jnp.full_like(problem.K, jnp.nan)
        nominal = systems.pad_matrix(Problem.of([systems.make(name) for name in number]).K, problem.m, problem.n)
        none = jnp.full_like(nominal[:1], jnp.nan)
        return jnp.concatenate([nominal, none])[jnp.asarray([number.get(name, len(number)) for name in names])]
