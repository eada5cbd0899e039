"""Controllers that give scores a meaning, and scores on plants ever further from the training set: the ladder."""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab import systems
from lqrlab.compute import as_jax, checks
from lqrlab.compute.linalg import quadratic
from lqrlab.evaluation import certificate
from lqrlab.evaluation.scores import Score, evaluate
from lqrlab.simulation import LinearPolicy, Problem, Verdict, bind, verdict
from lqrlab.simulation.binding import check_controller
from lqrlab.systems import Plant

OUTSIDE, DENSE = "designs from outside the catalogue", "dense systems"
_SIZES = (2, 1), (4, 2), (6, 1), (8, 3), (12, 1), (12, 6)  # of dense systems: states, inputs
_NEIGHBOURS = 4  # times as many variants of each trained family to look for the nearest in
_WIDE = 0.5  # half-width of the parameters beyond those trained on, relative
_AT_ONCE = 200  # plants whose loops are simulated together

PUBLISHED = tomllib.loads(Path(__file__).with_name("textbook.toml").read_text(encoding="utf-8"))
"""Designs that others have published, of which nothing is in the catalogue; the file says what it holds."""
Rungs = dict[str, dict[str, Plant]]
Reference = Callable[[Problem], Callable[[Array], Array]]
"""Problem → the least cost of starts within its limits, as ``predictive.reference`` makes."""


def baselines(plants: Mapping[str, Plant]) -> dict[str, LinearPolicy]:
    """Reference policies for ``Problem.of(list(plants.values()))``.

    Args:
        plants: family name → a batch of its variants with one leading axis.

    Returns:
        ``optimal``: each variant's own LQR, 1 by definition. ``nominal gain``: the LQR of the family's default
        parameters, for all its variants: what a network must beat to have learned more than a table.
        ``no control``: inputs held at the equilibrium.
    """
    if not isinstance(plants, Mapping) or not plants:
        raise ValueError(f"plants: expected a table of families and their plants, but found {plants!r}")
    for name, batch in plants.items():
        family = systems.family(name)
        systems.check_plant(batch)
        if (batch.n, batch.m) != (len(family.states), len(family.inputs)) or len(batch.batch_shape) > 1:
            raise ValueError(
                f"plants: expected variants of {name} with one leading axis, but found {type(batch).__name__} of batch "
                f"shape {batch.batch_shape}"
            )
    problem = Problem.of(list(plants.values()))
    nominal = Problem.of([systems.make(name) for name in plants])
    counts = np.array([math.prod(batch.batch_shape) for batch in plants.values()])
    return {
        "optimal": LinearPolicy(problem.K),
        "nominal gain": LinearPolicy(as_jax(np.repeat(np.asarray(nominal.K), counts, axis=0))),
        "no control": LinearPolicy(jnp.zeros_like(problem.K)),
    }


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Cost above the optimum of controllers and of what they have to be compared with, rung by rung.

    Attributes:
        scores: rung → controller → score ``[variants, starts]``. A loop that does not converge costs infinitely much
            and is in all quantiles. A controller given by family has scores of its families' variants only;
            ``"nominal gain"`` none for designs and systems that are of no family.
        plants: rung → the family or design of each variant.
        left_out: rung → variants that have no stabilizing optimum to compare with.
        only: controller given by family → those families.
    """

    scores: Mapping[str, Mapping[str, Score]]
    plants: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, int]
    only: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Rung → controller → median, p95, p99 and worst excess, and the share that diverged [%]."""
        return {rung: {name: score.summary() for name, score in by.items()} for rung, by in self.scores.items()}

    def rows(self) -> list[dict[str, str | float]]:
        """The same as rows of a table."""
        summary = self.summary().items()
        return [{"plants": rung, "controller": name, **n} for rung, by in summary for name, n in by.items()]

    def by_plant(self, rung: str, controller: str) -> dict[str, dict[str, float]]:
        """Family or design → the same numbers, of one rung and controller."""
        kept = self.only.get(controller, self.plants[rung])
        score, names = self.scores[rung][controller], np.array([name for name in self.plants[rung] if name in kept])
        return {name: score[np.flatnonzero(names == name)].summary() for name in dict.fromkeys(names.tolist())}


def ladder(
    controllers: Mapping[str, object],
    *,
    trained: Sequence[str],
    key: PRNGKeyArray,
    variants: int = 24,
    starts: int = 4,
    spread: float = 0.2,
    limit: float | None = None,
    reference: Reference | None = None,
) -> Ladder:
    """Compare controllers with the optimum on plants that are ever further from the trained families.

    The rungs: fresh variants of the trained families within ±``spread``, and within ±50 %; variants of *every*
    other family that is registered; published designs from outside the catalogue (``rungs.PUBLISHED``);
    ``variants`` dense systems of each of six sizes, ẋ = Ax + Bu with normal entries, A's of variance r²/n with r
    between 0.3 and 3 a second, sampled at 0.1 s.

    Beside the contenders: the nominal gain of the variant's family, which knows the family; the gain of the nearest
    variant of a trained family, by sampled matrices in scaled coordinates, among four times ``variants`` of each; the
    optimum, 0 by definition. Costs of gains are exact, over infinite time, by Lyapunov equations; loops of other
    policies are simulated.

    Args:
        controllers: name → what :func:`lqrlab.simulation.bind` takes, for plants of all sizes; or a table of
            controllers by family, which has scores on the variants of these families alone.
        trained: the families that the contenders were trained on.
        key: of the variants and their initial states.
        variants: of each family, and of each size of dense systems.
        starts: initial states a variant.
        spread: half-width of the parameters around their defaults, relative.
        limit: of all inputs around the equilibrium, in units of their scales; none if left out. Then inputs are
            clipped, all loops are simulated, and dense systems, which often cannot be held, are left out.
        reference: see :data:`Reference`; with ``limit``. It takes minutes where the others take seconds: give few
            variants and starts.

    >>> families = systems.names()
    >>> detuned = {"detuned": lambda problem: 0.9 * problem.K}
    >>> found = evaluation.ladder(detuned, trained=families, key=jax.random.key(0), variants=2)  # doctest: +SKIP
    >>> found.summary()["designs from outside the catalogue"]["detuned"]["diverged"]  # doctest: +SKIP
    0.0
    """
    by_family = _checked(controllers, limit, reference)
    checks.random_key(key)
    variants, starts = checks.whole("variants", variants), checks.whole("starts", starts)
    if not trained:
        raise ValueError("trained: expected at least one family, but found none")
    for name in trained:
        systems.family(name)
    rungs = _rungs(tuple(trained), key, variants, spread)
    rungs |= {} if limit else {DENSE: _dense(jax.random.fold_in(key, 3), variants)}
    rows = [(rung, name) for rung, by in rungs.items() for name, p in by.items() for _ in range(len(p))]
    everything = Problem.of([plant for by in rungs.values() for plant in by.values()])
    normal = jax.random.normal(jax.random.fold_in(key, 7), (len(rows), starts, systems.N_MAX))
    good = np.flatnonzero(everything.has_optimum)
    problem, x0 = everything[good], normal[good]
    scaled = problem.scaled()
    x0 = scaled.coordinates.state_mask[:, None] * x0
    kept = [rows[i] for i in good]
    families = [name for _, name in kept]
    gains = {
        "nominal gain": _nominal(families, problem),
        "nearest neighbour": _nearest(trained, key, variants, spread, scaled),
        "optimal": scaled.K,
    }
    if limit is not None:
        room = limit * problem.scale_u
        problem = problem.limited((-room, room))  # stacked plants are in deviations from their equilibria
    of_all = {name: c for name, c in controllers.items() if name not in by_family}
    scores = _scores(of_all, gains, problem, scaled, x0, reference)
    for name, designs in by_family.items():
        scores[name] = _of_families(designs, families, problem, x0 * problem.scale_x[:, None], reference)
    only = {name: tuple(designs) for name, designs in by_family.items()}
    return _by_rung(rows, kept, {name: scores[name] for name in (*controllers, *gains)}, only)


def _checked(
    controllers: Mapping[str, object], limit: float | None, reference: object
) -> dict[str, Mapping[str, object]]:
    """Those contenders that are given by family; refuses what is none."""
    if not isinstance(controllers, Mapping) or not controllers:
        raise ValueError(f"controllers: expected a table of names and controllers, but found {controllers!r:.80}")
    if limit is not None:
        checks.number("limit", limit, "a number above 0, in units of the inputs' scales", above=0.0)
    if (limit is None) != (reference is None):
        raise ValueError(
            "limit, reference: expected both or none, since a loop within limits is compared with the least cost within"
            " them; reference=predictive.reference computes it"
        )
    by_family = {name: c for name, c in controllers.items() if isinstance(c, Mapping)}
    for designs in by_family.values():
        for family, design in designs.items():
            bind(design, systems.make(family))
    for name in controllers.keys() - by_family.keys():
        check_controller(controllers[name])
    return by_family


def _scores(
    controllers: Mapping[str, object],
    gains: Mapping[str, Array],
    problem: Problem,
    scaled: Problem,
    x0: Array,
    reference: Reference | None,
) -> dict[str, Score]:
    """Exact scores of constant gains without limits; of everything else, of simulated loops."""
    contenders: dict[str, Callable[[slice], object]] = {}
    scores: dict[str, Score] = {}
    for name, controller in controllers.items():
        policy = None if reference else bind(controller, problem)
        if isinstance(policy, LinearPolicy):
            K = jnp.broadcast_to(policy.K, problem.K.shape).astype(problem.K.dtype)
            scores[name] = _of_gain(scaled, x0, problem.units.scale("K", K))
        else:
            contenders[name] = functools.partial(lambda one, at: one, controller)  # whatever part of the plants
    for name, K in gains.items():
        if reference is None:
            scores[name] = _of_gain(scaled, x0, K)
        else:  # where there is none of the right family it is not a number, and is dropped later
            contenders[name] = problem.units.unscale("K", jnp.nan_to_num(K), problem.n, problem.m).__getitem__
    return scores | _simulated(contenders, problem, x0 * problem.scale_x[:, None], reference)


def _rungs(trained: tuple[str, ...], key: PRNGKeyArray, variants: int, spread: float) -> Rungs:
    others = [name for name in systems.names() if name not in trained]
    wanted = {
        f"trained families, ±{100 * spread:g} %": (trained, spread),
        f"trained families, ±{100 * _WIDE:g} %": (trained, _WIDE),
        f"families never trained on, ±{100 * spread:g} %": (others, spread),
    }
    rungs = {
        rung: _drawn(names, jax.random.fold_in(key, i), variants, width)
        for i, (rung, (names, width)) in enumerate(wanted.items())
        if names
    }
    return rungs | {OUTSIDE: published()}


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


def _drawn(names: Sequence[str], key: PRNGKeyArray, num: int, spread: float) -> dict[str, Plant]:
    keys = jax.random.split(key, len(names))
    return {name: systems.sample(name, key=k, num=num, spread=spread) for name, k in zip(names, keys)}


@jax.jit
def _of_gain(optimum: Problem, x0: Array, gain: Float[Array, "V 6 12"]) -> Score:
    """The exact score of constant gains in scaled coordinates."""
    extra = certificate.extra_cost(gain, optimum)
    stable = jnp.isfinite(extra[..., 0, 0])[:, None]
    least = optimum.optimal_cost(x0)
    above = quadratic(jnp.where(stable[..., None], extra, 0.0), x0) / least
    judged = jnp.broadcast_to(verdict.of_gain(optimum.closed_loop(gain))[:, None], above.shape)
    # a cost beyond all numbers is that of a loop that has left the model, whatever its poles say
    judged = jnp.where(stable | (judged != Verdict.CONVERGED), judged, Verdict.DIVERGED).astype(jnp.int8)
    return Score(jnp.where(stable, 1 + above, jnp.inf), judged, jnp.zeros_like(above))


def _simulated(
    contenders: Mapping[str, Callable[[slice], object]], problem: Problem, x0: Array, reference: Reference | None
) -> dict[str, Score]:
    """Of any policies, by loops on the linearised plants, some at a time; compared with the optimum within limits."""
    parts: dict[str, list[Score]] = {name: [] for name in contenders}
    for at in (slice(at, at + _AT_ONCE) for at in range(0, len(problem), _AT_ONCE)) if contenders else ():
        part = problem[at]
        best = "unconstrained" if reference is None else reference(part)
        for name, one in contenders.items():
            parts[name].append(evaluate(one(at), part, key=jax.random.key(0), x0=x0[at], reference=best))
    return {name: jax.tree.map(lambda *a: jnp.concatenate(a), *scores) for name, scores in parts.items()}


def _of_families(
    designs: Mapping[str, object], families: Sequence[str], problem: Problem, x0: Array, reference: Reference | None
) -> Score:
    """Of controllers by family, each on the variants of its own; not a number for the others."""
    ratio, remaining = np.full((2, *x0.shape[:2]), np.nan)
    judged = np.full(x0.shape[:2], Verdict.DIVERGED, np.int8)
    for family, design in designs.items():
        at = np.flatnonzero(np.array(families) == family)
        if not len(at):
            continue
        x, u, part = slice(len(systems.family(family).states)), slice(len(systems.family(family).inputs)), problem[at]
        matrices = part.A[:, x, x], part.B[:, x, u], part.Q[:, x, x], part.R[:, u, u], part.N[:, x, u]
        own = Problem.from_matrices(*matrices, dt=part.dt)
        if part.low is not None:
            own = own.limited((part.low[:, u], part.high[:, u]))
        best = "unconstrained" if reference is None else reference(own)
        score = evaluate(design, own, key=jax.random.key(0), x0=x0[at][..., x], reference=best)
        ratio[at], judged[at], remaining[at] = score.ratio, score.verdict, score.remaining
    return Score(jnp.asarray(ratio), jnp.asarray(judged), jnp.asarray(remaining))


def _nominal(names: Sequence[str], problem: Problem) -> Float[Array, "V 6 12"]:
    """The optimal gain of each variant's family at its default parameters; not a number for what is of none."""
    number = {name: i for i, name in enumerate(name for name in dict.fromkeys(names) if name in systems.names())}
    nominal = Problem.of([systems.make(name) for name in number])
    none = jnp.full_like(nominal.K[:1], jnp.nan)
    rows = jnp.asarray([number.get(name, len(number)) for name in names])
    return problem.units.scale("K", jnp.concatenate([nominal.K, none])[rows])


def _nearest(
    trained: Sequence[str], key: PRNGKeyArray, variants: int, spread: float, scaled: Problem
) -> Float[Array, "V 6 12"]:
    """The optimal gain of that variant of a trained family whose sampled A and B are nearest, all scaled."""
    keys = jax.random.split(jax.random.fold_in(key, 8), _NEIGHBOURS)
    known = Problem.of([plant for k in keys for plant in _drawn(trained, k, variants, spread).values()])
    others = known.scaled()

    def seen(problem: Problem) -> np.ndarray:
        return np.concatenate([np.asarray(a).reshape(len(a), -1) for a in (problem.A, problem.B)], axis=1)

    a, b = seen(scaled), seen(others)
    squares = np.sum(a * a, 1)[:, None] - 2 * a @ b.T + np.sum(b * b, 1)[None]
    return scaled.coordinates.zero_padding(others.K[jnp.asarray(np.argmin(squares, axis=1))], "u", "x")


def _by_rung(
    rows: Sequence[tuple[str, str]],
    kept: Sequence[tuple[str, str]],
    scores: Mapping[str, Score],
    only: Mapping[str, tuple[str, ...]],
) -> Ladder:
    """Scores of all variants that have an optimum, one after another, apart by rung."""
    found: dict[str, dict[str, Score]] = {}
    plants: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, int] = {}
    for rung in dict.fromkeys(rung for rung, _ in rows):
        at = np.array([i for i, row in enumerate(kept) if row[0] == rung], int)
        some = {name: np.array([i for i in at if kept[i][1] in only.get(name, (kept[i][1],))], int) for name in scores}
        found[rung] = {name: score[some[name]] for name, score in scores.items() if len(some[name])}
        if rung in (OUTSIDE, DENSE):
            found[rung].pop("nominal gain", None)
        plants[rung] = tuple(kept[i][1] for i in at)
        left_out[rung] = sum(row[0] == rung for row in rows) - len(at)
    return Ladder(found, plants, left_out, only)
