"""Closed-loop cost over the optimal cost, for any policy on any plants."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int8, PRNGKeyArray

from lqrlab import control, simulation
from lqrlab.compute import as_jax, checks, jit_by_function, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.simulation import Keep, LinearPolicy, Policy, Problem, Verdict, bind, verdict
from lqrlab.simulation.recording import largest_sizes, paid
from lqrlab.systems import Plant

Sizes = tuple[Array, ...]  # largest sizes of states in all, in the last quarter but one, and in the last ``[*loops]``
NO_ANSWER = -1
"""In the place of a verdict where a controller refused a plant, or raised an error."""
FAILED = 10.0
"""A loop that costs more than so many times the reference has failed, though it may not have diverged."""
_MANY = 64  # from so many loops on the engine of constant gains is worth its compilation


@pytree
@dataclasses.dataclass(frozen=True)
class Score(verdict.Judged):
    """The cost of closed loops over the optimal cost; one entry a variant and start ``[*batch, S]``.

    Attributes:
        ratio: cost over the reference's, ≥ 1 for a linear plant; inf if it does not converge, NaN without optimum.
        verdict: whether it converged, is bounded or diverged, see :mod:`lqrlab.simulation.verdict`.
        remaining: share of the cost that was still to be paid at the end of the horizon and is counted at its
            optimal price: where it is not small, the ratio is only a lower bound.
        reference: ``"unconstrained"``, x0ᵀP x0, or ``"constrained"``, the least that keeps the limits of the inputs.
        asked: how far beyond a limit the controller has asked an input to go, at most, over that limit; None without.
    """

    ratio: Float[Array, "*loops"]
    verdict: Int8[Array, "*loops"]
    remaining: Float[Array, "*loops"]
    reference: str = dataclasses.field(default="unconstrained", metadata={"static": True})
    asked: Float[Array, "*loops"] | None = None

    def __getitem__(self, index: object) -> "Score":
        """The scores of some variants."""
        return jax.tree.map(lambda a: a[index], self)

    @property
    def answered(self) -> Bool[np.ndarray, "*loops"]:
        """True for each loop of which the controller gave an answer."""
        return np.asarray(self.verdict) != NO_ANSWER

    def summary(self) -> dict[str, float]:
        """Percent of the loops that diverged, or failed, see :data:`FAILED`; excess cost in percent (p99, worst, p95,
        median; inf: at least that fraction of the loops does not converge); percent bounded without converging.

        Where there are any also: percent of loops of which a controller gave no answer, which are in nothing else;
        p95 of the largest input asked for beyond its limit, in percent of it; percent of starts without a constrained
        optimum, whose loops are in the verdicts, not in the quantiles.
        """
        judged, answered = np.asarray(self.verdict).ravel(), self.answered.ravel()
        if not answered.any():
            return dict.fromkeys(("diverged", "failed", "p99", "worst", "p95", "median", "bounded"), math.nan) | {
                "no answer": 100.0
            }
        judged, ratio = judged[answered], np.asarray(self.ratio, float).ravel()[answered]
        nothing = np.isnan(ratio)
        gap = 100 * (ratio[~nothing] if not nothing.all() else ratio) - 100
        quantiles = np.quantile(gap, (0.99, 1.0, 0.95, 0.5), method="higher")
        found = {  # what matters most first: on a phone the last are out of sight
            "diverged": 100 * float(np.mean(judged == Verdict.DIVERGED)),
            "failed": 100 * float(np.mean(ratio > FAILED)),
            **{name: float(q) for name, q in zip(("p99", "worst", "p95", "median"), quantiles)},
            "bounded": 100 * float(np.mean(judged == Verdict.BOUNDED)),
        }
        if self.reference == "constrained":
            found["no optimum"] = 100 * float(np.mean(nothing))
        if self.asked is not None:
            asked = np.asarray(self.asked, float).ravel()[answered]
            found["beyond limit"] = 100 * float(np.quantile(asked, 0.95, method="higher"))
        if not answered.all():
            found["no answer"] = 100 * float(np.mean(~answered))
        return found


def evaluate(
    controller: object,
    plants: Plant | Sequence[Plant] | Problem,
    *,
    key: PRNGKeyArray,
    num_initial: int = 16,
    num_steps: int | None = None,
    linear: bool = True,
    x0: ArrayLike | None = None,
    reference: str | Callable[[Array], Array] = "unconstrained",
) -> Score:
    """Run a controller from typical initial states and compare its cost with the optimum.

    The reference is x0ᵀP x0 of the sampled-data optimum, or the constrained optimum. What remains at the end of the
    horizon counts as x_TᵀP x_T, or as its constrained optimum, the least that any controller could still pay, so a
    linear plant's ratio is at least 1 whatever the horizon, and exact once the loop has settled (see
    ``Score.remaining``). A loop that does not converge pays for ever: its ratio is infinite. The verdict on a
    constant gain is exact, from its closed loop; that on any other policy is read off its run.

    Args:
        controller: whatever :func:`lqrlab.simulation.bind` takes.
        plants: one plant, or a batch; several batches of any families in a list; or a problem of them.
        key: of the initial states.
        num_initial: initial states a plant.
        num_steps: horizon; two settling times of the slowest optimal loop if left out.
        linear: on the linearised plants; else on the nonlinear ones, where the optimum is only that of the
            linearisation and a ratio below 1 can occur. Of a problem it is taken from there.
        x0: initial deviations ``[*batch, S, n]`` instead of drawn ones; may be shared out over devices.
        reference: ``"unconstrained"``: x0ᵀP x0, which knows no limits; or a function of states ``[*batch, S, n]``
            that gives the least cost from each, such as ``predictive.reference(problem)`` within limits. A start of
            which it is NaN has no optimum: its ratio is NaN, and counted.

    Returns:
        :class:`Score` ``[*batch, num_initial]``.

    >>> plant = systems.make("pendulum")
    >>> gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    >>> score = evaluation.evaluate(1.1 * gain, plant, key=jax.random.key(0))
    >>> bool((score.ratio >= 1).all()), bool(score.converged.all())
    (True, True)
    """
    checks.on_host("evaluate", controller, plants, key, x0)
    problem = plants if isinstance(plants, Problem) else Problem.of(plants, linear=linear, optimum=False)
    if problem.A.dtype != jnp.float64:
        raise ValueError(
            f"plants: expected float64, but found {problem.A.dtype}; call lqrlab.compute.setup() first: in "
            "float32 the optimum itself is wrong in the third digit"
        )
    problem = problem.solved()
    if any(a is not None for a in problem.noise):
        raise ValueError(
            "plants: expected a problem without noise, under which x0ᵀP x0 is no optimum to compare with; "
            "problem.disturbed() is without, unknown.score compares loops under the same noise"
        )
    policy = bind(controller, problem)
    checks.whole("num_initial", num_initial)
    if not callable(reference):
        one = "a function of states, such as predictive.reference(problem), or"
        checks.choice("reference", reference, ("unconstrained",), one)
    x0 = checks.floating("x0", problem.initial_state(key=key, num=num_initial) if x0 is None else x0)
    batch = problem.batch_shape
    if x0.ndim < 2 or not x0.size or (x0.shape[: len(batch)], x0.shape[-1]) != (batch, problem.n):
        expected = ", ".join([*map(str, batch), "S", str(problem.n)])
        raise ValueError(f"x0: expected one or more starts [{expected}] of {problem.name}, but found shape {x0.shape}")
    poles = np.linalg.eigvals(np.asarray(problem.closed_loop()))
    steps = control.settling_steps(poles) if num_steps is None else checks.whole("num_steps", num_steps)
    return _scored(problem, policy, x0, steps, reference)


def _scored(
    problem: Problem, policy: Policy, x0: Array, num_steps: int, reference: str | Callable[[Array], Array]
) -> Score:
    linear_loop = problem.linear and isinstance(policy, LinearPolicy) and problem.low is None
    free = not callable(reference)
    bare = dataclasses.replace(problem, plant=None)  # of which no program is kept for each plant
    least = reference if callable(reference) else functools.partial(_optimal_cost, bare)
    if linear_loop and free:  # twice the state, twice the input: starts of any size are run in units of their size
        x0 = _of_size_one(x0)
    cost, end, sizes, asked = _ran(problem, policy, x0, num_steps)
    if not np.all(np.isfinite(_optimal_cost(bare, x0))):
        raise ValueError(f"x0: expected deviations of a finite cost, but found up to {float(jnp.max(jnp.abs(x0)))}")
    judged, end = _judged(bare, policy if linear_loop else None, x0, cost, end, sizes, num_steps)
    start, rest = least(x0), least(end)
    if start.shape != x0.shape[:-1]:
        raise ValueError(f"reference: expected costs of {x0.shape[:-1]} starts, but found {start.shape}")
    ratio, remaining, lowest = _compared(judged, cost, start, rest, problem.linear)
    if problem.linear and float(lowest) < 1 - 1e-6:
        raise ValueError(
            f"plants: a loop costs {float(lowest):.9f} of the optimum, which is impossible: it grows too much in a "
            "sample time for double precision; take a shorter dt"
        )
    return Score(ratio, judged, remaining, "unconstrained" if free else "constrained", asked)


@jax.jit
def _of_size_one(x: Array) -> Array:
    return x / jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), jnp.finfo(x.dtype).tiny)


@jax.jit
def _optimal_cost(problem: Problem, x: Array) -> Array:
    return problem.optimal_cost(x)


@functools.partial(jax.jit, static_argnames="num_steps")
def _judged(
    problem: Problem, gain: LinearPolicy | None, x0: Array, cost: Array, end: Array, sizes: Sizes, num_steps: int
) -> tuple[Array, Array]:
    """Verdicts, exact under a gain alone, and the last states of the loops that converge; zero of the others."""
    if gain is not None:
        judged = jnp.broadcast_to(verdict.of_gain(problem.closed_loop(gain.K))[..., None], cost.shape)
    else:
        judged = verdict.of_peaks(verdict.size(x0, problem.scale_x), *sizes, num_steps=num_steps, linear=problem.linear)
    # a cost beyond all numbers is that of a loop that has left the model, whatever its poles say
    judged = jnp.where(jnp.isfinite(cost + problem.optimal_cost(end)), judged, Verdict.DIVERGED).astype(jnp.int8)
    return judged, jnp.where((judged == Verdict.CONVERGED)[..., None], end, 0.0)


@functools.partial(jax.jit, static_argnames="linear")
def _compared(judged: Array, cost: Array, start: Array, rest: Array, linear: bool) -> tuple[Array, Array, Array]:
    """Ratios to the reference, at least 1 of linear plants; what remains of the cost; the least ratio."""
    converged, paid = judged == Verdict.CONVERGED, cost + rest
    nothing = start == 0  # a loop that begins at rest has nothing to pay
    ratio = jnp.where(nothing & (paid == 0), 1.0, paid / jnp.where(nothing, 1.0, start))
    ratio = jnp.where(converged, ratio, jnp.inf)
    ratio = jnp.where(jnp.isfinite(start), ratio, jnp.nan)
    remaining = jnp.where(converged, rest / jnp.where(paid > 0, paid, 1.0), 1.0)
    return jnp.maximum(ratio, 1.0) if linear else ratio, remaining, jnp.nanmin(ratio)


def _ran(
    problem: Problem, policy: Policy, x0: Array, num_steps: int
) -> tuple[Array, Array, Sizes, Float[Array, "*loops"] | None]:
    """The costs of loops, their last states, their sizes, and what they asked for: no trajectories are kept."""
    simulation.check_policy(policy, x0, problem.m)
    if type(policy) is LinearPolicy and problem.low is None and x0.size >= _MANY * problem.n and len(x0.devices()) == 1:
        keep = Keep(sums=paid, peaks=largest_sizes(num_steps))
        kept = simulation.record(problem, policy, x0, num_steps, keep, extra=problem.scale_x)
        shaped = {name: as_jax(a.reshape(*x0.shape[:-1], *a.shape[1:])) for name, a in kept.items()}
        return shaped["cost"], shaped["end"], tuple(shaped[name] for name in ("peak", "before", "last")), None
    return _summed(problem.astype(x0.dtype), policy, x0, num_steps)


@functools.partial(jit_by_function, static_argnames="num_steps")
def _summed(
    problem: Problem, policy: Policy, x0: Array, num_steps: int
) -> tuple[Array, Array, Sizes, Float[Array, "*loops"] | None]:
    """The closed loop, of which only the sum of the costs, the last state and the largest sizes are kept."""

    def sample(state: tuple, t: Array) -> tuple[tuple, None]:
        x, carry, cost, peaks, asked = state
        carry, u = policy(carry, x)
        u = u.astype(x.dtype)
        after, paid = problem.step(x, u)
        peaks = verdict.noted(peaks, verdict.size(x, problem.scale_x), t, num_steps)
        return (after, carry, cost + paid, peaks, jnp.maximum(asked, _beyond(problem, u))), None

    nothing = jnp.zeros(x0.shape[:-1], x0.dtype)
    first = (x0, policy.init(x0.shape[:-1]), nothing, (nothing,) * 3, nothing)
    (x, _, cost, peaks, asked), _ = jax.lax.scan(sample, first, jnp.arange(num_steps))
    sizes = verdict.noted(peaks, verdict.size(x, problem.scale_x), num_steps, num_steps)
    return cost, x, sizes, None if problem.low is None else asked


def _beyond(problem: Problem, u: Array) -> Array | float:
    """The largest share by which inputs exceed their limits."""
    if problem.low is None:
        return 0.0
    low, high = (expand_batch(a, u.ndim).astype(u.dtype) for a in (problem.low, problem.high))
    room = jnp.where(u > 0, high, -low)
    over = jnp.where(room > 0, jnp.maximum(jnp.maximum(u - high, low - u), 0.0) / jnp.where(room > 0, room, 1.0), 0.0)
    return jnp.max(over, axis=-1)
