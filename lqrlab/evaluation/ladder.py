"""A policy from home to abroad: trained families, wider parameters, families never seen, plants from outside."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lqrlab import learning, systems
from lqrlab.compute import checks
from lqrlab.compute.linalg import quadratic
from lqrlab.evaluation import textbook
from lqrlab.evaluation.scores import Score, evaluate
from lqrlab.learning import certificate, gains
from lqrlab.simulation import Policy, SampledProblem, Verdict, verdict
from lqrlab.systems import Coordinates, Linear, Plant

OUTSIDE = "designs from outside the catalogue"
_NEIGHBOURS = 4  # times as many variants of each trained family to look for the nearest in
_AT_ONCE = 8  # families whose loops are simulated together

Bind = Callable[[list[Linear]], Policy]
Rungs = dict[str, dict[str, Plant]]


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Cost above the optimum of a policy and of what it has to be compared with, rung by rung.

    Attributes:
        scores: rung → controller → score ``[variants, starts]``. A loop that does not converge costs infinitely much
            and is in all quantiles. ``"nominal gain"`` is that of the right family, so it is missing for designs
            that are of none.
        plants: rung → the family or design of each variant.
        left_out: rung → variants that have no stabilizing optimum to compare with.
    """

    scores: Mapping[str, Mapping[str, Score]]
    plants: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, int]

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Rung → controller → median, p95, p99 and worst excess, and the share that diverged [%]."""
        return {
            rung: {name: score.summary() for name, score in by.items()} for rung, by in self.scores.items()
        }

    def rows(self) -> list[dict[str, str | float]]:
        """The same as rows of a table."""
        summary = self.summary().items()
        return [{"plants": rung, "controller": name, **n} for rung, by in summary for name, n in by.items()]

    def by_plant(self, rung: str, controller: str = "network") -> dict[str, dict[str, float]]:
        """Family or design → the same numbers, of one rung and controller."""
        score, names = self.scores[rung][controller], np.array(self.plants[rung])
        return {
            name: score[np.flatnonzero(names == name)].summary() for name in dict.fromkeys(names.tolist())
        }


def ladder(
    policy: object,
    *,
    trained: Sequence[str],
    key: PRNGKeyArray,
    variants: int = 24,
    starts: int = 4,
    spread: float = 0.2,
    wide: float = 0.5,
) -> Ladder:
    """Compare a policy with the optimum on plants that are ever further from those that it was trained on.

    The rungs: fresh variants of the trained families within ±``spread``, and within ±``wide``; variants of *every*
    other family that is registered; published designs from outside the catalogue (:mod:`lqrlab.evaluation.textbook`).

    The contenders: the network; the network after one Newton step (:func:`lqrlab.learning.repair`), which hides its
    quality; the nominal gain of the variant's family, which knows the family; the gain of the nearest variant of a
    trained family, by sampled matrices in scaled coordinates, among four times ``variants`` of each; the optimum, 0 by
    definition. Costs of gains are exact, over infinite time, by Lyapunov equations. Of a policy that is no constant
    gain loops are simulated, and there is no Newton step.

    Args:
        policy: a trained model, or a function: list of batches of linear plants → a policy for ``systems.stack`` of
            them.
        trained: the families that it was trained on.
        key: of the variants and their initial states.
        variants: of each family.
        starts: initial states a variant.
        spread, wide: half-widths of the parameters around their defaults, relative.

    >>> def half(plants):
    ...     stacked = systems.stack(plants)
    ...     return simulation.LinearPolicy(0.9 * control.lqrd(*stacked.matrices(), *stacked.weights(), stacked.dt).K)
    >>> found = evaluation.ladder(half, trained=systems.names(), key=jax.random.key(0), variants=2)
    >>> found.summary()["designs from outside the catalogue"]["network"]["diverged"]
    0.0
    """
    checks.random_key(key)
    variants, starts = checks.whole("variants", variants), checks.whole("starts", starts)
    if not trained:
        raise ValueError("trained: expected at least one family, but found none")
    for name in trained:
        systems.family(name)
    bind = _binding(policy)
    rungs = _rungs(tuple(trained), key, variants, spread, wide)
    # linearised once, and on the host, where nothing is compiled for each size
    plants = [
        jax.tree.map(np.asarray, systems.linearise(p)) for rung in rungs.values() for p in rung.values()
    ]
    problem, coordinates = gains.sampled(plants)
    optimum, good = SampledProblem.of(problem)
    x0 = coordinates.state_mask[:, None] * jax.random.normal(
        jax.random.fold_in(key, 7), (len(good), starts, systems.N_MAX)
    )
    judge = partial(_of_gain, optimum, x0)
    scores = _of_policy(bind, plants, optimum, coordinates, x0)
    scores["nominal gain"] = judge(_nominal(rungs, coordinates))
    scores["nearest neighbour"] = judge(_nearest(trained, key, variants, spread, optimum, coordinates))
    scores["optimal"] = judge(optimum.K)
    return _by_rung(rungs, scores, np.asarray(good))


def _rungs(trained: tuple[str, ...], key: PRNGKeyArray, variants: int, spread: float, wide: float) -> Rungs:
    others = [name for name in systems.names() if name not in trained]
    wanted = {
        f"trained families, ±{100 * spread:g} %": (trained, spread),
        f"trained families, ±{100 * wide:g} %": (trained, wide),
        f"families never trained on, ±{100 * spread:g} %": (others, spread),
    }
    rungs = {
        rung: _drawn(names, jax.random.fold_in(key, i), variants, width)
        for i, (rung, (names, width)) in enumerate(wanted.items())
        if names
    }
    return rungs | {OUTSIDE: dict(textbook.designs())}


def _drawn(names: Sequence[str], key: PRNGKeyArray, num: int, spread: float) -> dict[str, Plant]:
    keys = jax.random.split(key, len(names))
    return {name: systems.sample(name, key=k, num=num, spread=spread) for name, k in zip(names, keys)}


def _binding(policy: object) -> Bind:
    """A function that binds the policy to batches of plants."""
    if hasattr(policy, "encode"):
        return lambda plants: learning.policy(policy, plants)  # type: ignore[arg-type]
    if not callable(policy):
        raise ValueError(
            f"policy: expected a trained model, or a function of a list of plants that returns a policy, but found "
            f"{type(policy).__name__}"
        )
    return policy


def _of_policy(
    bind: Bind, plants: list[Linear], optimum: SampledProblem, coordinates: Coordinates, x0: Array
) -> dict[str, Score]:
    """Scores of the policy, and after a Newton step if it is a gain."""
    gain = gains.scaled_gain(bind(plants), coordinates)
    if gain is None:
        return {"network": _simulated(bind, plants, coordinates, x0)}
    gain = gain.astype(optimum.A.dtype)
    improved = gains.improved(optimum.sampled, gain, 1)
    contenders = {"network": gain, "network, one Newton step": improved}
    return {name: _of_gain(optimum, x0, K) for name, K in contenders.items()}


@jax.jit
def _of_gain(optimum: SampledProblem, x0: Array, gain: Float[Array, "V 6 12"]) -> Score:
    """The exact score of constant gains in scaled coordinates."""
    extra = certificate.extra_cost(gain, optimum)
    stable = jnp.isfinite(extra[..., 0, 0])[:, None]
    least = optimum.optimal_cost(x0)
    above = quadratic(jnp.where(stable[..., None], extra, 0.0), x0) / least
    judged = jnp.broadcast_to(verdict.of_gain(optimum.closed_loop(gain))[:, None], above.shape)
    # a cost beyond all numbers is that of a loop that has left the model, whatever its poles say
    judged = jnp.where(stable | (judged != Verdict.CONVERGED), judged, Verdict.DIVERGED).astype(jnp.int8)
    return Score(jnp.where(stable, 1 + above, jnp.inf), judged, jnp.zeros_like(above))


def _simulated(bind: Bind, plants: list[Linear], coordinates: Coordinates, x0: Array) -> Score:
    """Of any policy, by loops on the linearised plants, a few families at a time."""
    x0 = x0 * coordinates.scale_x[:, None]
    parts, first = [], 0
    for at in range(0, len(plants), _AT_ONCE):
        some = plants[at : at + _AT_ONCE]
        rows = slice(first, first := first + sum(map(len, some)))
        parts.append(evaluate(bind(some), systems.stack(some), key=jax.random.key(0), x0=x0[rows]))
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


def _nominal(rungs: Rungs, coordinates: Coordinates) -> Float[Array, "V 6 12"]:
    """The optimal gain of each variant's family at its default parameters; not a number for designs of none."""
    families = {name: plant for rung, by in rungs.items() if rung != OUTSIDE for name, plant in by.items()}
    defaults = {
        name: systems.linearise(systems.sample(name, key=jax.random.key(0), num=len(plant), spread=0.0))
        for name, plant in families.items()
    }
    one = [jax.tree.map(lambda a: np.asarray(a)[:1], plant) for plant in defaults.values()]
    problem, units = gains.sampled(one)
    K = units.unscale_gain(SampledProblem.of(problem)[0].K, systems.N_MAX, systems.M_MAX)
    number = {name: i for i, name in enumerate(defaults)}
    none = jnp.full_like(K[:1], jnp.nan)
    rows = [
        number.get(name, len(number))
        for by in rungs.values()
        for name, p in by.items()
        for _ in range(len(p))
    ]
    return coordinates.scale_gain(jnp.concatenate([K, none])[jnp.asarray(rows)])


def _nearest(
    trained: Sequence[str], key: PRNGKeyArray, variants: int, spread: float, optimum: SampledProblem,
    coordinates: Coordinates,
) -> Float[Array, "V 6 12"]:  # fmt: skip
    """The optimal gain of that variant of a trained family whose sampled A and B are nearest."""
    keys = jax.random.split(jax.random.fold_in(key, 8), _NEIGHBOURS)
    known = [plant for k in keys for plant in _drawn(trained, k, variants, spread).values()]
    problem, units = gains.sampled(known)
    K = SampledProblem.of(problem)[0].K

    def seen(problem: PyTree, coordinates: Coordinates) -> np.ndarray:
        masked = coordinates.zero_padding
        parts = masked(problem.A, "x", "x"), masked(problem.B, "x", "u")
        return np.concatenate([np.asarray(a).reshape(len(a), -1) for a in parts], axis=1)

    a, b = seen(optimum, coordinates), seen(problem, units)
    squares = np.sum(a * a, 1)[:, None] - 2 * a @ b.T + np.sum(b * b, 1)[None]
    return coordinates.zero_padding(K[jnp.asarray(np.argmin(squares, axis=1))], "u", "x")


def _by_rung(rungs: Rungs, scores: dict[str, Score], good: np.ndarray) -> Ladder:
    """Scores of all variants one after another, apart; those without an optimum left out."""
    found: dict[str, dict[str, Score]] = {}
    plants: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, int] = {}
    first = 0
    for rung, by in rungs.items():
        names = [name for name, plant in by.items() for _ in range(len(plant))]
        kept = np.flatnonzero(good[first : first + len(names)])
        found[rung] = {
            name: score[first + kept]
            for name, score in scores.items()
            if not (rung == OUTSIDE and name == "nominal gain")
        }
        plants[rung] = tuple(names[i] for i in kept)
        left_out[rung] = len(names) - len(kept)
        first += len(names)
    return Ladder(found, plants, left_out)
