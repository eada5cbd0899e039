"""A policy from home to abroad: trained families, wider parameters, families never seen, plants from outside."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.compute.linalg import quadratic
from lqrlab.evaluation import certificate, textbook
from lqrlab.evaluation.scores import Score, evaluate
from lqrlab.learning import gain_repair
from lqrlab.simulation import LinearPolicy, Problem, Verdict, bind, binding, verdict
from lqrlab.systems import Plant

OUTSIDE, DENSE = "designs from outside the catalogue", "dense systems"
_SIZES = (2, 1), (4, 2), (6, 1), (8, 3), (12, 1), (12, 6)  # of dense systems: states, inputs
_NEIGHBOURS = 4  # times as many variants of each trained family to look for the nearest in
_AT_ONCE = 200  # plants whose loops are simulated together
_HORIZON = 20  # of the predictive controller among the baselines where inputs are limited

Rungs = dict[str, dict[str, Plant]]


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Cost above the optimum of a policy and of what it has to be compared with, rung by rung.

    Attributes:
        scores: rung → controller → score ``[variants, starts]``. A loop that does not converge costs infinitely much
            and is in all quantiles. ``"nominal gain"`` is that of the right family, so it is missing for designs
            and systems that are of none.
        plants: rung → the family or design of each variant.
        left_out: rung → variants that have no stabilizing optimum to compare with.
        with_pid: the families whose variants alone are in the score of ``"PID"``.
    """

    scores: Mapping[str, Mapping[str, Score]]
    plants: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, int]
    with_pid: tuple[str, ...] = ()

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Rung → controller → median, p95, p99 and worst excess, and the share that diverged [%]."""
        return {rung: {name: score.summary() for name, score in by.items()} for rung, by in self.scores.items()}

    def rows(self) -> list[dict[str, str | float]]:
        """The same as rows of a table."""
        summary = self.summary().items()
        return [{"plants": rung, "controller": name, **n} for rung, by in summary for name, n in by.items()]

    def by_plant(self, rung: str, controller: str = "network") -> dict[str, dict[str, float]]:
        """Family or design → the same numbers, of one rung and controller."""
        kept = self.with_pid if controller == "PID" else self.plants[rung]
        score, names = self.scores[rung][controller], np.array([name for name in self.plants[rung] if name in kept])
        return {name: score[np.flatnonzero(names == name)].summary() for name in dict.fromkeys(names.tolist())}


def ladder(
    controller: object,
    *,
    trained: Sequence[str],
    key: PRNGKeyArray,
    variants: int = 24,
    starts: int = 4,
    spread: float = 0.2,
    wide: float = 0.5,
    limit: float | None = None,
    pids: Any = None,
) -> Ladder:
    """Compare a policy with the optimum on plants that are ever further from those that it was trained on.

    The rungs: fresh variants of the trained families within ±``spread``, and within ±``wide``; variants of *every*
    other family that is registered; published designs from outside the catalogue (:mod:`lqrlab.evaluation.textbook`);
    ``variants`` dense systems of each of six sizes, ẋ = Ax + Bu with normal entries, A's of variance r²/n with r
    between 0.3 and 3 a second, sampled at 0.1 s.

    The contenders: the network; the network after one Newton step (:func:`lqrlab.learning.repair`), which hides its
    quality; the nominal gain of the variant's family, which knows the family; the gain of the nearest variant of a
    trained family, by sampled matrices in scaled coordinates, among four times ``variants`` of each; the optimum, 0 by
    definition. Costs of gains are exact, over infinite time, by Lyapunov equations. Of a policy that is no constant
    gain loops are simulated, and there is no Newton step.

    With a ``limit`` the inputs are clipped, all loops are simulated, and the reference is the constrained optimum of
    each start: the least cost of any controller within these limits. ``"optimal"`` is the optimal gain, clipped, then,
    MPC with a horizon of 20 samples one more baseline, and dense systems, which often cannot be held, are left out.

    Args:
        controller: a network, the checkpoints folder of one, or a function from a problem to a policy: what
            :func:`lqrlab.simulation.bind` takes, for plants of all sizes.
        trained: the families that it was trained on.
        key: of the variants and their initial states.
        variants: of each family, and of each size of dense systems.
        starts: initial states a variant.
        spread, wide: half-widths of the parameters around their defaults, relative.
        limit: of all inputs around the equilibrium, in units of their scales; none if left out. The optimum within
            limits takes minutes where the others take seconds: give few variants and starts.
        pids: family → a PID controller tuned on its default parameters, one more baseline, ``"PID"``: like the nominal
            gain, for all variants of its family; of the other families it has no score.

    >>> families = systems.names()
    >>> found = evaluation.ladder(lambda p: 0.9 * p.K, trained=families, key=jax.random.key(0), variants=2)
    >>> found.summary()["designs from outside the catalogue"]["network"]["diverged"]
    0.0
    """
    binding.check_controller(controller)
    checks.random_key(key)
    variants, starts = checks.whole("variants", variants), checks.whole("starts", starts)
    if limit is not None:
        limit = checks.number("limit", limit, "a number above 0, in units of the inputs' scales", above=0.0)
    if not trained:
        raise ValueError("trained: expected at least one family, but found none")
    if limit is not None and pids:
        raise ValueError("pids: expected none where inputs are limited, for their costs are those of linear loops")
    for name in trained:
        systems.family(name)
    _check_pids(pids)
    rungs = _rungs(tuple(trained), key, variants, spread, wide)
    rungs |= {} if limit else {DENSE: _dense(jax.random.fold_in(key, 3), variants)}
    rows = [(rung, name) for rung, by in rungs.items() for name, p in by.items() for _ in range(len(p))]
    everything = Problem.of([plant for by in rungs.values() for plant in by.values()])
    normal = jax.random.normal(jax.random.fold_in(key, 7), (len(rows), starts, systems.N_MAX))
    good = np.flatnonzero(everything.has_optimum)
    problem, x0 = everything[good], normal[good]
    scaled = problem.scaled()
    x0 = scaled.coordinates.state_mask[:, None] * x0
    kept = [rows[i] for i in good]
    gains = {
        "nominal gain": _nominal([name for _, name in kept], problem),
        "nearest neighbour": _nearest(trained, key, variants, spread, scaled),
        "optimal": scaled.K,
    }
    if limit is None:
        scores = _of_controller(controller, problem, x0) | {n: _of_gain(scaled, x0, K) for n, K in gains.items()}
        scores |= {"PID": _of_pids(pids, [name for _, name in kept], problem, x0)} if pids else {}
    else:
        scores = _within(limit, controller, gains, problem, x0)
    return _by_rung(rows, kept, scores, tuple(pids or ()))


def _check_pids(pids: Any) -> None:
    if pids is not None and not isinstance(pids, Mapping):
        raise ValueError(f"pids: expected a table of families and their PID controllers, but found {pids!r}")
    for name, design in (pids or {}).items():
        nominal = systems.make(name)
        if not isinstance(design, control.PID) or design.C is None or design.dt is None:
            raise ValueError(f"pids: expected of {name} what control.pid makes of a plant, but found {design!r}")
        found = design.C.shape[-1], design.m, float(design.dt)
        if found != (nominal.n, nominal.m, float(nominal.dt)):
            raise ValueError(
                f"pids: expected of {name} one for {nominal.n} states and {nominal.m} inputs every "
                f"{float(nominal.dt):g} s, but found one for {found[0]} and {found[1]} every {found[2]:g} s"
            )


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


def _of_controller(controller: object, problem: Problem, x0: Array) -> dict[str, Score]:
    """Scores of the controller, and after a Newton step if it is a gain."""
    policy = bind(controller, problem)
    if not isinstance(policy, LinearPolicy):
        return _simulated({"network": lambda at: controller}, problem, x0)
    scaled = problem.scaled()
    gain = problem.units.scale_gain(jnp.broadcast_to(policy.K, problem.K.shape).astype(problem.K.dtype))
    improved = gain_repair.improved(scaled, gain, 1)
    contenders = {"network": gain, "network, one Newton step": improved}
    return {name: _of_gain(scaled, x0, K) for name, K in contenders.items()}


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


def _of_pids(pids: Mapping[str, control.PID], names: Sequence[str], problem: Problem, x0: Array) -> Score:
    """The exact score of PID controllers that start from zero; not a number for variants of other families."""
    ratio = np.full(x0.shape[:2], np.nan)
    judged = np.full(x0.shape[:2], Verdict.DIVERGED, np.int8)
    physical = np.asarray(x0 * problem.scale_x[:, None])
    for family, design in pids.items():
        at = np.flatnonzero(np.array(names) == family)
        if not len(at):
            continue
        n, m = len(systems.family(family).states), len(systems.family(family).inputs)
        x, u = slice(n), slice(m)
        part = problem[at]
        sampled = control.Sampled(part.A[:, x, x], part.B[:, x, u], part.Q[:, x, x], part.R[:, u, u], part.N[:, x, u])
        joint, K = design.loop(sampled)
        P = np.asarray(control.cost_to_go(joint, K))[:, x, x]
        start = physical[at]
        paid = np.einsum("bsi,bij,bsj->bs", start[..., x], P, start[..., x])
        ratio[at] = np.where(np.isnan(paid), np.inf, paid / np.asarray(part.optimal_cost(jnp.asarray(start))))
        judged[at] = np.asarray(verdict.of_gain(joint.A - joint.B @ K))[:, None]
    judged = np.where(np.isinf(ratio) & (judged == Verdict.CONVERGED), Verdict.DIVERGED, judged).astype(np.int8)
    return Score(jnp.asarray(ratio), jnp.asarray(judged), jnp.zeros(ratio.shape))


def _within(
    limit: float, controller: object, gains: Mapping[str, Array], problem: Problem, x0: Array
) -> dict[str, Score]:
    """Scores of everything with limited inputs, compared with the constrained optimum."""
    room = limit * problem.scale_u
    limited = problem.limited((-room, room))  # stacked plants are in deviations from their equilibria
    contenders: dict[str, Callable[[slice], object]] = {"network": lambda at: controller}
    for name, K in gains.items():  # where there is none of the right family it is not a number, and is dropped later
        contenders[name] = problem.units.unscale_gain(jnp.nan_to_num(K), problem.n, problem.m).__getitem__
    contenders[f"MPC {_HORIZON}"] = lambda at: _predictive
    return _simulated(contenders, limited, x0)


def _predictive(problem: Problem) -> control.MPC:
    return control.mpc(problem.A, problem.B, problem.Q, problem.R, _HORIZON, N=problem.N)


def _simulated(contenders: Mapping[str, Callable[[slice], object]], problem: Problem, x0: Array) -> dict[str, Score]:
    """Of any policies, by loops on the linearised plants, some at a time; compared with the optimum within limits."""
    x0 = x0 * problem.scale_x[:, None]
    parts: dict[str, list[Score]] = {name: [] for name in contenders}
    for at in (slice(at, at + _AT_ONCE) for at in range(0, len(problem), _AT_ONCE)):
        part, starts = problem[at], x0[at]
        best = "unconstrained" if part.low is None else part.constrained_optimum(starts)
        for name, one in contenders.items():
            parts[name].append(evaluate(one(at), part, key=jax.random.key(0), x0=starts, reference=best))
    return {name: jax.tree.map(lambda *a: jnp.concatenate(a), *scores) for name, scores in parts.items()}


def _nominal(names: Sequence[str], problem: Problem) -> Float[Array, "V 6 12"]:
    """The optimal gain of each variant's family at its default parameters; not a number for what is of none."""
    number = {name: i for i, name in enumerate(name for name in dict.fromkeys(names) if name in systems.names())}
    nominal = Problem.of([systems.make(name) for name in number])
    none = jnp.full_like(nominal.K[:1], jnp.nan)
    rows = jnp.asarray([number.get(name, len(number)) for name in names])
    return problem.units.scale_gain(jnp.concatenate([nominal.K, none])[rows])


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
    rows: Sequence[tuple[str, str]], kept: Sequence[tuple[str, str]], scores: Mapping[str, Score],
    with_pid: tuple[str, ...],
) -> Ladder:  # fmt: skip
    """Scores of all variants that have an optimum, one after another, apart by rung."""
    found: dict[str, dict[str, Score]] = {}
    plants: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, int] = {}
    for rung in dict.fromkeys(rung for rung, _ in rows):
        at = np.array([i for i, row in enumerate(kept) if row[0] == rung], int)
        found[rung] = {name: score[at] for name, score in scores.items()}
        if rung in (OUTSIDE, DENSE):
            found[rung].pop("nominal gain", None)
        tuned = [i for i in at if kept[i][1] in with_pid]
        if tuned:
            found[rung]["PID"] = scores["PID"][np.array(tuned)]
        else:
            found[rung].pop("PID", None)
        plants[rung] = tuple(kept[i][1] for i in at)
        left_out[rung] = sum(row[0] == rung for row in rows) - len(at)
    return Ladder(found, plants, left_out, with_pid)
