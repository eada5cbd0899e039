"""From wishes to weights: Q and R by gradient descent through the design, and what to do if that is too much."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax import Array
from jax.typing import ArrayLike

from lqrlab.control import checks
from lqrlab.control.analysis.margins import margins, sensitivity, step_info, step_response, zeros
from lqrlab.control.discretization import c2d
from lqrlab.control.regulator import LQR, lqrd
from lqrlab.control.servo import feedforward

_SIZES = (50, 100, 200, 400, 800)  # steps that are simulated: each is a program of its own
_INSIDE = 0.01  # wishes are aimed at with so much to spare, relative
_WORDS = {
    "settling": ("settling time", " s"),
    "overshoot": ("overshoot", ""),
    "effort": ("largest input", " times its limit"),
    "margin": ("disk margin", ""),
}


@dataclasses.dataclass(frozen=True)
class StepSpecs:
    """What a loop is to do when its set-point steps; None: no such wish.

    Attributes:
        settling: time after which every output that steps stays within the band [s].
        overshoot: at most so much beyond the set-point, relative to it.
        effort: at most so much of each input, absolute: one number or ``[m]``.
        margin: at least so large a symmetric disk margin α at each input (see :class:`Disk`).
        within: half-width of the band, relative to the set-point.
    """

    settling: float | None = None
    overshoot: float | None = None
    effort: float | tuple[float, ...] | None = None
    margin: float | None = None
    within: float = 0.02

    def __post_init__(self) -> None:
        for name in ("settling", "effort", "margin", "within"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value).all() and np.all(np.asarray(value) > 0)):
                raise ValueError(f"{name}: expected a number above 0, but found {value}")
        if self.overshoot is not None and not self.overshoot >= 0:
            raise ValueError(f"overshoot: expected a share of the set-point, ≥ 0, but found {self.overshoot}")
        if not self.names:
            raise ValueError("wishes: expected at least one of settling, overshoot, effort, margin")

    @property
    def names(self) -> tuple[str, ...]:
        """The wishes that there are."""
        return tuple(name for name in _WORDS if getattr(self, name) is not None)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Weights found by :func:`tune`; prints as sentences.

    Attributes:
        Q, R: ``[n, n]``, ``[m, m]``.
        design: :func:`lqrd` with them.
        reached: wish → what the loop does, measured on the loop itself; the effort relative to its limit.
        met: wish → whether that is what was wished for.
        sentences: wish by wish, and where wishes are missed, which exclude each other and why.
    """

    Q: Array
    R: Array
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
    wishes: StepSpecs,
    *,
    r: ArrayLike = 1.0,
    num_starts: int = 6,
    iterations: int = 200,
    seed: int = 0,
) -> Tuned:
    """Weights of :func:`lqrd` for a loop that does what is wished when y = Cx steps from rest to r.

    The weights are D Q D and E R E with diagonal D and E, whose logarithms descend the excess over the wishes,
    differentiated through the Riccati equation. Several starts run at once, and beside them the same with one
    wish left out at a time, to tell which wishes stand in each other's way.

    Args:
        A, B, Q, R, dt: one plant, the weights to start from and the sample time [s], as in :func:`lqrd`.
        C: what steps ``[m, n]``: as many outputs as inputs.
        wishes: :class:`StepSpecs`.
        r: set-point ``[m]``, or one number for all; an output with r = 0 is to stay where it is.
        num_starts: from the given weights and from others around them.
        iterations: of Adam.
        seed: of the starts.

    Returns:
        :class:`Tuned`: of the starts that meet all wishes, that with weights nearest to the given ones; if none
        does, that with the least excess.

    Raises:
        ValueError: bad arguments; an output that no constant input can hold.
    """
    a, b, q, weight, _ = checks.arguments(A, B, Q, R, None)
    if checks.traced(a, b, q, weight) or a.ndim != 2:
        raise ValueError("tune: expected one problem outside jit, vmap and grad")
    n, m = b.shape
    c = jnp.asarray(C, a.dtype)
    target = np.broadcast_to(np.asarray(r, float), (m,))
    if not target.any() or not np.isfinite(target).all():
        raise ValueError(
            f"r: expected at least one output to step, but found the set-point {target.tolist()}"
        )
    limit = np.broadcast_to(np.asarray(np.inf if wishes.effort is None else wishes.effort, float), (m,))
    Ad, Bd = plant = c2d(a, b, dt)
    Nx, Nu = feedforward(Ad, Bd, c, discrete=True)
    if not np.isfinite(np.asarray(Nu)).all() or np.abs(Nx).max() > 1e12 * max(
        np.abs(np.asarray(c)).max(), 1.0
    ):
        raise ValueError(
            "C: no constant input holds these outputs (a transmission zero at the origin); choose outputs that "
            "can stand still"
        )
    num_steps = _horizon(lqrd(a, b, q, weight, dt), wishes, dt)
    names = wishes.names
    # the first group of starts is asked for all, each other for all but one
    groups = np.concatenate([np.ones((1, len(names))), 1 - np.eye(len(names))])
    groups = groups if len(names) > 1 else groups[:1]
    rng = np.random.default_rng(seed)
    starts = np.concatenate([np.zeros((1, n + m)), rng.normal(0, 2.0, (num_starts - 1, n + m))])
    frequencies = np.pi / dt * np.logspace(-4, 0, 160)
    vectors = (jnp.asarray(v, a.dtype) for v in (target, frequencies))
    wished = {name: jnp.asarray(getattr(wishes, name), a.dtype) for name in (*names, "within")}
    if "effort" in wished:
        wished["effort"] = jnp.asarray(limit, a.dtype)
    best, loss = _descend(
        jnp.tile(jnp.asarray(starts, a.dtype), (len(groups), 1)),
        jnp.repeat(jnp.asarray(groups, a.dtype), num_starts, axis=0),
        wished,
        (a, b, c, q, weight, jnp.asarray(dt, a.dtype), *plant, *vectors),
        num_steps,
        iterations,
    )
    by_group = np.asarray(best).reshape(len(groups), num_starts, -1)
    lost = np.asarray(loss).reshape(len(groups), -1)
    picks = [found[_nearest(found, of)] for found, of in zip(by_group, lost)]

    def measured(log: np.ndarray) -> tuple[Array, Array, LQR, dict[str, float]]:
        Qt, Rt = _weights(jnp.asarray(log), q, weight)
        design = lqrd(a, b, Qt, Rt, dt)
        return Qt, Rt, design, _measured(design, plant, c, dt, target, limit, wishes, num_steps)

    Qt, Rt, design, reached = measured(picks[0])
    met = {name: _meets(name, reached[name], wishes) for name in names}
    say = [_sentence(name, reached[name], met[name], wishes) for name in names]
    if not all(met.values()):
        for name, pick in zip(names, picks[1:]):
            without = measured(pick)[3]
            if all(_meets(other, without[other], wishes) for other in names if other != name):
                words, unit = _WORDS[name]
                then = f"it is then {without[name]:.3g}{unit}"
                if not np.isfinite(without[name]):
                    then = f"it then does not settle in the {num_steps * dt:.3g} s that are simulated"
                say.append(f"Without the wish about the {words} all others are met; {then}.")
        say += _why_not(np.asarray(a), np.asarray(b), np.asarray(c), dt, plant, np.asarray(Nu) @ target, target,
                        limit, wishes)  # fmt: skip
    return Tuned(Qt, Rt, design, reached, met, tuple(say))


def _horizon(first: LQR, wishes: StepSpecs, dt: float) -> int:
    slowest = min(float(np.abs(np.asarray(first.poles)).max()), 1 - 1e-6)
    natural = np.log(1e-3) / np.log(slowest)
    steps = natural if wishes.settling is None else 4 * wishes.settling / dt
    return next((size for size in _SIZES if size >= steps), _SIZES[-1])


def _weights(log: Array, Q: Array, R: Array) -> tuple[Array, Array]:
    """D Q D and E R E with the diagonals exp(log/2); ``[..., n + m]``."""
    d = jnp.exp(log / 2)
    d, e = d[..., : Q.shape[0]], d[..., Q.shape[0] :]
    scaled = [
        w.reshape((1,) * (log.ndim - 1) + w.shape) * s[..., None] * s[..., None, :]
        for w, s in ((Q, d), (R, e))
    ]
    return scaled[0], scaled[1]


def _excess(logs: Array, wished: dict[str, Array], problem: tuple[Array, ...], num_steps: int) -> Array:
    """How far each wish is missed, as a logarithm or relative; below zero where it is met ``[S, wishes]``."""
    A, B, C, Q, R, dt, Ad, Bd, r, frequencies = problem
    K = lqrd(A, B, *_weights(logs, Q, R), dt).K
    ys, us = step_response(Ad, Bd, C, K, r, num_steps)
    done = jnp.where((r != 0)[None, None], ys / jnp.where(r != 0, r, 1.0)[None, None], 1.0)
    found = []
    if "settling" in wished:
        late = jnp.arange(num_steps + 1) * dt > wished["settling"] - 1e-9 * dt
        outside = jnp.max(jnp.where(late[None, :, None], jnp.abs(done - 1), 0.0), axis=(1, 2))
        found.append(jnp.log(jnp.maximum(outside, 1e-6) / wished["within"]))
    if "overshoot" in wished:
        over = jnp.max(done, axis=(1, 2)) - 1
        found.append((over - wished["overshoot"]) / jnp.maximum(wished["overshoot"], wished["within"]))
    if "effort" in wished:
        used = jnp.max(jnp.abs(us) / wished["effort"][None, None], axis=(1, 2))
        found.append(jnp.log(jnp.maximum(used, 1e-6)))
    if "margin" in wished:
        S = sensitivity(Ad, Bd, K, frequencies, dt)
        half = jnp.diagonal(S, axis1=-2, axis2=-1) - 0.5
        found.append(jnp.log(wished["margin"] * jnp.max(jnp.abs(half), axis=(1, 2))))
    return jnp.stack(found, axis=-1)


@partial(jax.jit, static_argnames=("num_steps", "iterations"))
def _descend(
    logs: Array,
    masks: Array,
    wished: dict[str, Array],
    problem: tuple[Array, ...],
    num_steps: int,
    iterations: int,
) -> tuple[Array, Array]:
    """Adam on every start at once; the best that each has seen, and its loss."""

    def losses(logs: Array) -> Array:
        missed = jnp.maximum(_excess(logs, wished, problem, num_steps) + _INSIDE, 0.0)
        return jnp.sum(masks * missed**2, axis=-1)

    def total(logs: Array) -> tuple[Array, Array]:
        each = losses(logs)
        return jnp.sum(each), each

    optimiser = optax.adam(optax.cosine_decay_schedule(0.3, iterations, 0.03))

    def step(state: tuple, _: None) -> tuple[tuple, None]:
        logs, memory, best, least = state
        slope, each = jax.grad(total, has_aux=True)(logs)
        better = (each < least)[:, None]
        best, least = (
            jnp.where(better, logs, best),
            jnp.minimum(jnp.where(jnp.isnan(each), jnp.inf, each), least),
        )
        sound = jnp.isfinite(slope).all(axis=-1, keepdims=True)
        size = jnp.linalg.norm(slope, axis=-1, keepdims=True)  # a start far off is not to be thrown farther
        slope = jnp.where(sound, slope / jnp.maximum(size, 1.0), 0.0)
        change, memory = optimiser.update(slope, memory)
        # a start that meets all it is asked for stays where it is
        logs = jnp.clip(jnp.where((each > 0)[:, None], logs + change, logs), -25.0, 25.0)
        return (logs, memory, best, least), None

    start = (logs, optimiser.init(logs), logs, jnp.full(len(logs), jnp.inf, logs.dtype))
    (_, _, best, least), _ = jax.lax.scan(step, start, None, length=iterations)
    return best, least


def _nearest(logs: np.ndarray, losses: np.ndarray) -> int:
    """The start with the least loss; among those without any, that with the smallest change of weights."""
    far = np.linalg.norm(logs, axis=-1)
    return int(np.lexsort((far, np.where(losses <= 0, 0.0, losses)))[0])


def _measured(
    design: LQR, plant: tuple[Array, Array], C: Array, dt: float, r: np.ndarray, limit: np.ndarray, wishes: StepSpecs,
    num_steps: int,
) -> dict[str, float]:  # fmt: skip
    """What a loop does, by the functions that anybody would check it with."""
    ys, us = step_response(*plant, C, design.K, jnp.asarray(r), num_steps)
    info = step_info(ys, dt, r, within=wishes.within)
    return {
        "settling": float(np.nanmax(info.settling)),
        "overshoot": float(np.nanmax(info.overshoot)),
        "effort": float(np.max(np.abs(us) / limit)),
        "margin": min(found.disk.alpha for found in margins(*plant, design.K, float(dt)))
        if wishes.margin is not None
        else np.nan,
    }


def _wished(name: str, wishes: StepSpecs) -> float:
    return 1.0 if name == "effort" else float(getattr(wishes, name))


def _meets(name: str, value: float, wishes: StepSpecs) -> bool:
    wished = _wished(name, wishes)
    return value >= wished * (1 - 1e-9) if name == "margin" else value <= wished * (1 + 1e-9)


def _sentence(name: str, value: float, met: bool, wishes: StepSpecs) -> str:
    words, unit = _WORDS[name]
    wished = _wished(name, wishes)
    text = f"{words[0].upper()}{words[1:]}: {value:.3g}{unit}"
    if name != "effort":
        text += f", {'at least' if name == 'margin' else 'at most'} {wished:.3g}{unit} wished"
    if met:
        return f"{text}: met."
    if not np.isfinite(value):
        return f"{text}: missed, the output has not settled at the end of the simulation."
    return f"{text}: missed." if name == "effort" else f"{text}: missed by {abs(value - wished):.2g}{unit}."


def _why_not(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, dt: float, plant: Any, held: np.ndarray, r: np.ndarray,
    limit: np.ndarray, wishes: StepSpecs,
) -> list[str]:  # fmt: skip
    """What no controller at all could do."""
    say = []
    if np.any(np.abs(held) > limit):
        i = int(np.argmax(np.abs(held) / limit))
        say.append(
            f"Holding the set-point takes {abs(held[i]):.3g} of input {i} for ever, above its limit of {limit[i]:.3g}: "
            "no controller can; ask for a smaller step or a stronger actuator."
        )
    elif wishes.settling is not None and wishes.effort is not None:
        need = _least_effort(np.asarray(plant[0]), np.asarray(plant[1]), C, dt, r, limit, wishes)
        if need > 1 + 1e-6:
            say.append(
                f"No controller, linear or not, settles in {wishes.settling:.3g} s within the input's limit: even the "
                f"best sequence of inputs needs {need:.3g} times as much."
            )
    if len(r) == 1 and wishes.settling is not None:
        right = [z.real for z in zeros(A, B, C) if z.real > 1e-9 and abs(z.imag) < 1e-9 * abs(z)]
        if right:
            wrong = (1 - wishes.within) / np.expm1(min(right) * wishes.settling)
            say.append(
                f"The plant has a zero at +{min(right):.3g} rad/s: whatever settles in {wishes.settling:.3g} s first "
                f"goes at least {100 * wrong:.3g} % of the step the wrong way."
            )
    return say


def _least_effort(
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    dt: float,
    r: np.ndarray,
    limit: np.ndarray,
    wishes: StepSpecs,
) -> float:
    """The least max |u|/limit of any inputs whose outputs settle in time: a linear programme over some horizon.

    A longer horizon could only need more, so what comes out is a lower bound.
    """
    late = _late(wishes, dt)
    T, m = min(late + max(late // 2, 5), 240), B.shape[1]
    pulses, x = [], B
    for _ in range(T):
        pulses.append(C @ x)
        x = A @ x
    rows: list[np.ndarray] = []
    bounds: list[float] = []
    for t in range(1, T + 1):
        to_y = np.zeros((m, T * m + 1))
        to_y[:, : t * m] = np.concatenate([pulses[t - 1 - k] for k in range(t)], axis=1)
        for i in np.flatnonzero(r):
            over = wishes.within if t >= late else wishes.overshoot
            if over is not None:
                over = min(over, np.inf if wishes.overshoot is None else wishes.overshoot)
                rows.append(np.sign(r[i]) * to_y[i])
                bounds.append(abs(r[i]) * (1 + over))
            if t >= late:
                rows.append(-np.sign(r[i]) * to_y[i])
                bounds.append(-abs(r[i]) * (1 - wishes.within))
    for sign in (1.0, -1.0):
        block = np.zeros((T * m, T * m + 1))
        block[:, :-1], block[:, -1] = sign * np.eye(T * m), -np.tile(limit, T)
        rows.extend(block)
        bounds.extend([0.0] * (T * m))
    price = np.zeros(T * m + 1)
    price[-1] = 1.0
    free = [(None, None)] * (T * m) + [(0, None)]
    answer = scipy.optimize.linprog(price, np.array(rows), np.array(bounds), bounds=free, method="highs")
    return float(answer.fun) if answer.status == 0 else (np.inf if answer.status == 2 else np.nan)


def _late(wishes: StepSpecs, dt: float) -> int:
    """The first sample at which the output has to be in the band."""
    return 0 if wishes.settling is None else int(np.floor(wishes.settling / dt + 1e-9))
