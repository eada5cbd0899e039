"""Weights: those that meet specifications, by descent through the Riccati equation; Pareto fronts of many."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import pytree
from lqrlab.compute.checks import instance, whole
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.eigenmodes import zeros
from lqrlab.control.discretization import discretize
from lqrlab.control.lyapunov import cost_to_go
from lqrlab.control.regulator import LQR, lqrd
from lqrlab.control.state_space import sensitivity
from lqrlab.extensions.tuning.step import StepExperiment, StepSpecs

_STARTS, _AGAIN, _EVALUATIONS = 6, 2, 50  # those that are tried again without a specification; evaluations of each
_STEP, _WORST = 1e-5, 1e3  # difference of the logarithms that gives a slope; a miss, at most
_SAMPLES = 300  # among which the peak of a front's inputs is searched
_INSIDE = 0.01  # the descent aims at specifications that are tighter by this, relative

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Weights from :func:`tune`; prints as sentences.

    Attributes:
        Q, R: the weights.
        design: :func:`lqrd` with them.
        reached: specification → its value, measured on the loop itself; the effort relative to its limit.
        met: specification → whether the loop meets it.
        sentences: one for each specification, and where some are missed, which exclude each other and why.
    """

    Q: Float[Array, "n n"]
    R: Float[Array, "m m"]
    design: LQR
    reached: dict[str, float]
    met: dict[str, bool]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def tune(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    dt: float,
    specs: StepSpecs,
    *,
    r: ArrayLike = 1.0,
    seed: int = 0,
    report: Report = lambda start, starts: None,
) -> Tuned:
    """Weights of :func:`lqrd` for a loop that meets specifications when y = Cx steps from rest to r.

    The weights are D Q D and E R E with diagonal D and E, whose logarithms descend the excess over the specifications
    from some starts; if none meets them all, again without each specification, to tell which exclude each other.

    Args:
        A, B, Q, R, dt: one plant, the weights to start from and the sample time [s], as in :func:`lqrd`.
        C: the outputs that step ``[m, n]``: as many outputs as inputs.
        specs: :class:`StepSpecs`.
        r: set-point ``[m]``, or one number for all; an output with r = 0 is to stay where it is.
        seed: of the starts, which are the given weights and then others around them.
        report: called with the start (from 0) and their number at each step; what it raises ends the search.

    The first start that meets all is returned, else that with the least excess. An output that cannot rest is refused.
    """
    matrix_checks.on_host("tune", A, B, C, Q, R, dt, r)
    instance("specs", specs, StepSpecs, "specifications, tuning.StepSpecs(settling=…)")
    whole("seed", seed, 0)
    step = StepExperiment.of(A, B, C, Q, R, dt, specs, r)
    starts = np.random.default_rng(seed).normal(0, 2.0, (_STARTS, len(step.Q) + len(step.R)))
    starts[0] = 0.0
    log = _searched(step, specs, starts, report)
    Qt, Rt = _weights(log, step.Q, step.R)
    design = lqrd(step.A, step.B, Qt, Rt, dt)
    reached = step.reached(design, specs)
    met = {name: specs.met(name, reached[name]) for name in specs.names}
    sentences = [specs.sentence(name, reached[name], step.num_steps * step.dt) for name in specs.names]
    if not all(met.values()):
        starts = np.concatenate([log[None], starts[:_AGAIN]])
        sentences += [*_conflicts(step, specs, starts, report), *_impossible(step, specs)]
    return Tuned(jnp.asarray(Qt), jnp.asarray(Rt), design, reached, met, tuple(sentences))


def _searched(step: StepExperiment, specs: StepSpecs, starts: np.ndarray, report: Report) -> np.ndarray:
    """Logarithms of weights ``[n + m]``: of the first start that comes to meet all, else those with the least miss."""
    best, least, one = starts[0], np.inf, np.eye(starts.shape[1])
    for i, start in enumerate(starts):

        @functools.lru_cache(maxsize=1)
        def aim(log: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
            """The misses and their slopes, by differences: all designs are one call."""
            report(i, len(starts))  # noqa: B023
            misses = _excess(step, specs, np.array(log) + np.vstack([0 * one[:1], _STEP * one])) + _INSIDE
            misses = np.clip(np.nan_to_num(misses, nan=_WORST), 0.0, _WORST)
            return misses[0], (misses[1:] - misses[0]).T / _STEP

        found = scipy.optimize.least_squares(
            lambda x: aim(tuple(x))[0], start, lambda x: aim(tuple(x))[1],
            bounds=(-25.0, 25.0), max_nfev=_EVALUATIONS, ftol=1e-4, xtol=1e-4,
        )  # fmt: skip
        if found.cost < least:
            best, least = found.x, found.cost
        if not least:
            break
    return best


def _weights(log: np.ndarray, Q: Array, R: Array) -> tuple[np.ndarray, np.ndarray]:
    """D Q D and E R E with the diagonals exp(log/2) ``[..., n + m]``."""
    both = np.exp(log / 2)
    d, e = both[..., : len(Q)], both[..., len(Q) :]
    return np.asarray(Q) * d[..., :, None] * d[..., None, :], np.asarray(R) * e[..., :, None] * e[..., None, :]


def _excess(step: StepExperiment, specs: StepSpecs, logs: np.ndarray) -> np.ndarray:
    """Miss of each specification ``[..., specs]`` by weights ``[..., n + m]``, logarithmic or relative; ≤ 0 where met.

    The largest deviation after the time specified stands for the settling time; max |S − ½| for the disk margin.
    """
    K = np.asarray(lqrd(step.A, step.B, *_weights(logs, step.Q, step.R), step.dt).K)
    A, B, C = (np.asarray(a) for a in (*step.plant, step.C))
    closed, away = A - B @ K, np.broadcast_to(-step.rest[:, None], (*K.shape[:-2], len(A), 1))
    with np.errstate(all="ignore"):
        while away.shape[-1] <= step.num_steps:  # powers of the loop, so that nothing is compiled
            away, closed = np.concatenate([away, closed @ away], axis=-1), closed @ closed
        away = np.swapaxes(away[..., : step.num_steps + 1], -1, -2)
        us, done = step.holding_input - away[..., :-1, :] @ np.swapaxes(K, -1, -2), step.r + away @ C.T
        done, excess = done[..., step.r != 0] / step.r[step.r != 0], []
        if specs.settling is not None:
            late = np.arange(step.num_steps + 1) * step.dt > specs.settling - 1e-9 * step.dt
            excess.append(np.log(np.maximum(np.abs(done - 1)[..., late, :].max((-1, -2)), 1e-6) / specs.within))
        if specs.overshoot is not None:
            excess.append((done.max((-1, -2)) - 1 - specs.overshoot) / max(specs.overshoot, specs.within))
        if specs.effort is not None:
            excess.append(np.log(np.maximum((np.abs(us) / specs.limits(len(step.r))).max((-1, -2)), 1e-6)))
        if specs.margin is not None:
            frequencies = np.pi / step.dt * np.logspace(-4, 0, 160)
            S = sensitivity(*matrix_checks.together(A, B, K), frequencies, step.dt)  # type: ignore[call-arg]
            half = np.abs(np.diagonal(np.asarray(S), axis1=-2, axis2=-1) - 0.5).max((-1, -2))
            excess.append(np.log(specs.margin * half))
    return np.stack(excess, axis=-1)


def _conflicts(step: StepExperiment, specs: StepSpecs, starts: np.ndarray, report: Report) -> list[str]:
    """The specification that, left out, lets all others be met, in words."""
    sentences = []
    for name in specs.names if len(specs.names) > 1 else ():
        log = _searched(step, dataclasses.replace(specs, **{name: None}), starts, report)  # type: ignore[arg-type]
        reached = step.reached(lqrd(step.A, step.B, *_weights(log, step.Q, step.R), step.dt), specs)
        if all(specs.met(other, reached[other]) for other in specs.names if other != name):
            sentences.append(specs.sentence_without(name, reached[name], step.num_steps * step.dt))
    return sentences


def _impossible(step: StepExperiment, specs: StepSpecs) -> list[str]:
    """The limits of the plant that no controller can overcome, in words.

    Source (bound of the zero): G. C. Goodwin, S. F. Graebe, M. E. Salgado, Control System Design (2001), section 4.6.
    """
    sentences = []
    held, limit = step.holding_input, specs.limits(len(step.r))
    if np.any(np.abs(held) > limit):
        i = int(np.argmax(np.abs(held) / limit))
        sentences.append(
            f"Holding the set-point takes {abs(held[i]):.3g} of input {i} permanently, above its limit of "
            f"{limit[i]:.3g}: no controller can; ask for a smaller step or a stronger actuator."
        )
    elif specs.settling is not None and specs.effort is not None:
        need = _least_effort(step, specs)
        if need > 1 + 1e-6:
            sentences.append(
                f"No controller, linear or not, settles in {specs.settling:.3g} s within the input's limit: even the "
                f"best sequence of inputs needs {need:.3g} times as much."
            )
    if len(step.r) == 1 and specs.settling is not None:
        slow = [z.real for z in zeros(step.A, step.B, step.C) if z.real > 1e-9 and abs(z.imag) < 1e-9 * abs(z)]
        if slow:
            # a response y that settles has ∫ exp(−zt) y dt = 0 for each zero z in the right half-plane
            wrong = (1 - specs.within) / np.expm1(min(slow) * specs.settling)
            sentences.append(
                f"The plant has a zero at +{min(slow):.3g} rad/s: a response that settles in {specs.settling:.3g} s "
                f"first goes at least {100 * wrong:.3g} % of the step the wrong way."
            )
    return sentences


def _least_effort(step: StepExperiment, specs: StepSpecs) -> float:
    """The least max |u|/limit of any inputs whose outputs settle in time.

    A linear program over the inputs u[0], …, u[T−1] relative to their limits, and s ≥ |u|: minimise s such that the
    outputs are in their band from the settling time on and overshoot no more than specified. A longer horizon T
    could only need more, so the result is a lower bound.
    """
    late = specs.first_settled(step.dt)
    T, m = min(late + max(late // 2, 5), 240), len(step.r)
    moved = np.flatnonzero(step.r)
    done = _input_to_output(step, T)[:, moved] / step.r[moved][None, :, None] * np.tile(specs.limits(m), T)
    settled = np.arange(1, T + 1) >= late
    over = np.where(settled, specs.within, np.inf)
    if specs.overshoot is not None:
        over = np.minimum(over, specs.overshoot)
    bounded, inputs = np.isfinite(over), np.eye(T * m)
    upper, lower = done[bounded].reshape(-1, T * m), -done[settled].reshape(-1, T * m)
    s = np.repeat([0.0, -1.0], [len(upper) + len(lower), 2 * T * m])
    answer = scipy.optimize.linprog(
        np.append(np.zeros(T * m), 1.0),
        np.column_stack([np.concatenate([upper, lower, inputs, -inputs]), s]),
        np.concatenate(
            [np.repeat(1 + over[bounded], len(moved)), np.full(len(lower), specs.within - 1), np.zeros(2 * T * m)]
        ),
        bounds=[(None, None)] * (T * m) + [(0, None)],
    )
    return float(answer.fun) if answer.status == 0 else (np.inf if answer.status == 2 else np.nan)


def _input_to_output(step: StepExperiment, T: int) -> np.ndarray:
    """The map from inputs u[0], …, u[T−1] to outputs y[1], …, y[T] from rest: ``[T, m, T m]``, block Toeplitz."""
    A, x, C = (np.asarray(a) for a in (*step.plant, step.C))
    m = len(step.r)
    G = np.zeros((T, m, T, m))
    for lag in range(T):
        G[np.arange(lag, T), :, np.arange(T - lag)] = C @ x
        x = A @ x
    return G.reshape(T, m, T * m)


@pytree
@dataclasses.dataclass(frozen=True)
class Front:
    """Loops of many weights, measured with the same Q and R; infinite costs where a design failed.

    Attributes:
        K: gains.
        state_cost, effort: ∫ xᵀQx dt and ∫ uᵀRu dt, summed over the initial states that make up X0.
        peak: largest |u| at any sample from any x0 with x0ᵀX0⁻¹x0 ≤ 1, each input for itself.
        dominated: another loop has less of one cost and no more of the other, by more than rounding.
    """

    K: Float[Array, "N m n"]
    state_cost: Float[Array, " N"]
    effort: Float[Array, " N"]
    peak: Float[Array, "N m"]
    dominated: Bool[Array, " N"]


def pareto(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, Qs: ArrayLike, Rs: ArrayLike, *,
    X0: ArrayLike | None = None,
) -> Front:  # fmt: skip
    """Designs for many weights, in one batched :func:`lqrd`, all measured with the same Q and R.

    The front of the two costs is convex, and all of it comes from Qs = Q, Rs = ρ R: other weights lie above it. They
    may still be better in another respect, such as the peak.

    Args:
        A, B, dt: one plant and its sample time [s], as in :func:`lqrd`.
        Q, R: the weights that all loops are measured with ``[n, n]``, ``[m, m]``.
        Qs, Rs: weights to design with ``[N, n, n]``, ``[N, m, m]``; either may be one for all.
        X0: initial states as a covariance ``[n, n]``; the identity if left out.
    """
    K = lqrd(A, B, Qs, Rs, dt).K
    if K.ndim != 3:
        raise ValueError(f"Qs, Rs: expected a batch of weights [N, …], but found {K.shape[:-2]}")
    problem = discretize(A, B, Q, R, dt)
    *_, own, _ = matrix_checks.arguments(A, B, Q, R)
    held = matrix_checks.sample_time(dt, own.dtype) * own  # ∫ R over a held input
    effort = problem._replace(Q=jnp.zeros_like(problem.Q), R=held, N=jnp.zeros_like(problem.N))
    start = jnp.eye(len(problem.Q)) if X0 is None else jnp.asarray(matrix_checks.real("X0", X0), own.dtype)
    if start.shape != problem.Q.shape:
        raise ValueError(f"X0: expected a covariance of shape {problem.Q.shape}, but found {start.shape}")
    matrix_checks.weight("X0", start)
    both = (np.asarray(cost_to_go(p, K)) for p in (problem._replace(R=problem.R - held), effort))
    costs = [np.sum(P * np.asarray(start), axis=(-1, -2)) for P in both]
    first, second = (np.where(np.isnan(cost), np.inf, cost) for cost in costs)
    # the largest kᵀx over the ellipsoid is √(kᵀX0 k), and a row k of the gain acts on x[t] as (Fᵀ)ᵗ k does on x0
    peak = _peak(*matrix_checks.together(problem.A, problem.B, K), start)
    order = np.lexsort((second, first))
    worse = np.minimum.accumulate(second[order]) < second[order] * (1 - 1e-9)  # of all that have no more of the first
    dominated = np.isinf(first)
    dominated[order] |= worse
    return Front(K, jnp.asarray(first), jnp.asarray(second), peak, jnp.asarray(dominated))


@jax.jit
def _peak(A: Array, B: Array, K: Array, X0: Array) -> Array:
    turned = (A - B @ K).mT
    _, squares = jax.lax.scan(lambda k, _: (turned @ k, jnp.sum((X0 @ k) * k, axis=-2)), K.mT, None, length=_SAMPLES)
    return jnp.sqrt(jnp.max(squares, axis=0))
