"""PID gains of least LQ cost under limits of robustness: gradient descent through the closed loop from many starts."""

import dataclasses
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from lqrlab.compute import calculus, checks, linalg
from lqrlab.control.analysis.stability_margins import Margins, margins
from lqrlab.control.discretization import Sampled
from lqrlab.control.kleinman import spectral_radius
from lqrlab.control.lyapunov import cost_to_go, solve_lyapunov, stage_weight
from lqrlab.control.regulator import LQR
from lqrlab.control.state_space import frequency_response
from lqrlab.extensions.classical.pid_controller import PID, controller_matrices, parts

_FIRST, _SECOND, _FEW = 12, 160, 16  # steps from a quarter of the starts, and from the few best of them
_FREQUENCIES = 160
_INSIDE, _PENALTY = 0.003, 3e3  # limits are tighter by this, relative, in the descent; the weight of a miss
_AS_FAST, _SLOW = 0.25, 100.0  # share of the rate of the regulator's slowest mode, and the weight of less
_NEAR = 0.15  # |log |L|| or angle within which a loop is about to cross one or the real axis


class Bounds(NamedTuple):
    """Robustness that each loop keeps, the others closed.

    Attributes:
        ms: largest peak of the sensitivity.
        phase: least phase margin [rad].
        gain: least gain margin, a factor up or 1 over it down; of a loop that has one.
    """

    ms: float
    phase: float = 0.0
    gain: float = 1.0

    @classmethod
    def checked(cls, ms: float | None = None, phase_margin: float = 0.0, gain_margin: float = 1.0) -> Self:
        """Bounds from the settings of :func:`lqrlab.classical.pid`; ms is 2 if left out."""
        return cls(
            2.0 if ms is None else checks.number("ms", ms, "above 1", above=1.0),
            checks.number("phase_margin", phase_margin, "an angle from 0 to π rad", low=0, below=np.pi),
            checks.number("gain_margin", gain_margin, "a factor ≥ 1", low=1),
        )

    def met(self, margin: Margins) -> bool:
        """True if :class:`Margins` keep these limits."""
        up, down = margin.gain_up, margin.gain_down
        kept = 1 / margin.modulus_margin <= self.ms * (1 + 1e-6) and margin.phase >= self.phase * (1 - 1e-6)
        return bool(kept and up >= self.gain * (1 - 1e-6) and down * self.gain <= 1 + 1e-6)


class _Setting(NamedTuple):
    """Arrays that the loss of gains depends on: sampled problem, frequency responses, natural gains, limits."""

    problem: Sampled
    C: Array
    W: Array
    best: Array
    dt: Array
    selection: Array
    G: Array
    parts: tuple[Array, Array]
    limits: Array
    used: Array
    scale: Array
    filter_time: Array
    slowest: Array


def optimal(
    problem: Sampled, optimum: LQR, outputs: tuple[np.ndarray, np.ndarray], W: np.ndarray, design: PID, kind: str,
    filter_time: float | None, bounds: Bounds, num_starts: int, seed: int,
) -> PID:  # fmt: skip
    """``design`` with the gains of least cost tr(PW) that keep the bounds, of the starts that do.

    Args:
        problem: sampled plant and weights, its dead time among the states; and its regulator.
        outputs: of the loops, and their derivatives ``[loops, n]``.
        W: second moment of the initial states ``[n, n]``.
        design: which outputs, inputs and sample time.
    """
    setting = _setting(problem, optimum, outputs[0], W, design, bounds, kind, filter_time)
    loops = len(outputs[0])
    random = np.random.default_rng(seed)
    guess = _guess(optimum, *outputs, design, setting)
    spread = guess[None] + random.normal(0, 1.0, (num_starts, 4 * loops))
    starts = np.where(np.arange(num_starts)[:, None] % 2, spread, random.normal(0, 3.0, (num_starts, 4 * loops)))
    starts[0] = guess
    least = np.inf
    # a peak between the frequencies of the grid may be higher: then once more, further inside
    for inside in (1.0, 0.97):
        tight = jnp.asarray([bounds.ms * inside, bounds.phase / inside, bounds.gain / inside])
        found, losses = descend(jnp.asarray(starts), setting._replace(limits=tight), min(_FEW, num_starts))
        for theta in np.asarray(found)[np.argsort(losses)]:
            kp, ki, kd, Tf = (a[0] if loops == 1 else a for a in _gains(jnp.asarray(theta), setting))
            candidate = dataclasses.replace(design, kp=kp, ki=ki, kd=kd, filter_time=Tf)
            joint, K = candidate.loop(problem)
            try:
                at_inputs = margins(joint.A, joint.B, K, float(setting.dt))
            except ValueError:  # not stable
                continue
            if not np.isfinite(cost_to_go(joint, K)).all():
                continue
            if all(bounds.met(m) for m in at_inputs):
                return candidate
            least = min(least, max(1 / m.modulus_margin for m in at_inputs))
    if least == np.inf:
        raise ValueError(
            f"plant: none of {num_starts} starts led to a PID controller that stabilises the plant from these outputs; "
            "choose other pairs of output and input, or more of them, more starts, or a shorter sample time"
        )
    raise ValueError(
        f"ms, phase_margin, gain_margin: no PID controller was found that keeps Ms ≤ {bounds.ms:g}, a phase margin of "
        f"{bounds.phase:.3g} rad and a gain margin of {bounds.gain:g}; the least Ms reached is {least:.3g}; expected "
        "looser limits"
    )


def _setting(
    problem: Sampled, optimum: LQR, C: np.ndarray, W: np.ndarray, design: PID, bounds: Bounds, kind: str,
    filter_time: float | None,
) -> _Setting:  # fmt: skip
    dt, loops = float(np.asarray(design.dt)), len(C)
    poles = np.abs(np.log(np.maximum(np.abs(np.linalg.eigvals(optimum.closed_loop)), 1e-6))) / dt
    w = np.geomspace(min(1e-2 * poles.min(), 1e-3 / dt), np.pi / dt, _FREQUENCIES)
    G = frequency_response(problem.A, problem.B, C, w, dt=dt)
    selection = design.selection
    # natural gains: the input's size over the output's, by the weights; the time is that of the slowest mode
    size_u = selection.T @ (1 / np.sqrt(np.maximum(np.diag(np.asarray(problem.R)) / dt, 1e-300)))
    size_u = np.where(np.isfinite(size_u) & (size_u < 1e100), size_u, 1.0)
    size_y = np.sqrt(np.einsum("kn,nm,km->k", C, W, C))
    kp = 0.1 * size_u / np.where(size_y > 0, size_y, 1.0)
    time = 1 / max(float(poles.min()), 1e-3 / dt)
    z = np.exp(1j * w * dt)
    integral, _ = parts(w, 0.0, dt)
    used = np.repeat([[True], ["i" in kind], ["d" in kind], [filter_time is None]], loops, axis=1)
    arrays = (
        *(C, W, np.trace(np.asarray(optimum.P) @ W), dt, selection, G),
        (integral, z),
        np.array(bounds),
        used,
        np.stack([kp, 0.1 * kp / time, 0.1 * kp * time]),
        dt if filter_time is None else filter_time,
        _AS_FAST * np.log(np.abs(np.linalg.eigvals(optimum.closed_loop)).max()),
    )
    return _Setting(problem, *jax.tree.map(jnp.asarray, arrays))


def _guess(optimum: LQR, C: np.ndarray, rates: np.ndarray, design: PID, setting: _Setting) -> np.ndarray:
    """The start at the regulator's gain, as far as outputs and their rates can give it ``[4 loops]``."""
    K, loops, scale = np.asarray(optimum.K), len(C), np.asarray(setting.scale)
    gains = np.zeros((4, loops))
    for i in range(K.shape[0]):
        at = [k for k in range(loops) if design.inputs[k] == i]
        seen = np.concatenate([C[at], rates[at]])
        size = np.sqrt(np.diag(np.asarray(setting.W)))
        found = np.linalg.lstsq((seen * size).T, K[i] * size, rcond=1e-9)[0] if at else np.zeros(0)
        gains[0, at], gains[2, at] = found[: len(at)], found[len(at) :]
    gains[1] = 0.1 * scale[1] * np.sign(gains[0])
    gains[:3] = np.arcsinh(gains[:3] / scale)
    return gains.ravel()


def _gains(theta: Array, setting: _Setting) -> tuple[Array, Array, Array, Array]:
    """kp, ki, kd and the filter's time of a start ``[4 loops]``."""
    kp, ki, kd, log = theta.reshape(4, -1)
    kp, ki, kd = (jnp.where(u, s * jnp.sinh(a), 0.0) for u, s, a in zip(setting.used, setting.scale, (kp, ki, kd)))
    Tf = setting.filter_time * jnp.exp(jnp.where(setting.used[3], jnp.clip(log, -3.0, 3.0), 0.0))
    return kp, ki, kd, Tf


def _closed(theta: Array, setting: _Setting) -> tuple[Array, Array]:
    """The loop of one start and the weight of its stages, its states as seen in even units."""
    kp, ki, kd, Tf = _gains(theta, setting)
    a, b, c, d, _ = controller_matrices(kp, ki, kd, Tf, jnp.full_like(kp, jnp.inf), setting.dt, setting.selection)
    A, B, Q, R, N = setting.problem
    k = len(a)
    K = -jnp.concatenate([d @ setting.C, c], axis=1)
    whole = jnp.concatenate([jnp.pad(A, ((0, 0), (0, k))), jnp.concatenate([b @ setting.C, a], axis=1)])
    F = whole - jnp.pad(B, ((0, k), (0, 0))) @ K
    stage = stage_weight(
        jnp.pad(Q, ((0, k), (0, k))), R, jnp.pad(N, ((0, k), (0, 0))), K, mul=jnp.matmul, t=jnp.transpose
    )
    return F, stage


def _largest(a: Array) -> Array:
    """The largest entry, by its place: jnp.max's derivative is 0 / 0 where XLA computes it twice, rounded otherwise."""
    return a.ravel()[jnp.argmax(a)]


def _missed(theta: Array, setting: _Setting) -> Array:
    """The sum of squares of how far the limits are missed, relative, on the grid of frequencies."""
    kp, ki, kd, Tf = _gains(theta, setting)
    integral, z = setting.parts
    a = jnp.exp(-setting.dt / Tf).astype(z.dtype)[None]
    steep = (1 - a) / setting.dt.astype(z.dtype) * (z[:, None] - 1) / (z[:, None] - a)
    kp, ki, kd = (g.astype(z.dtype)[None] for g in (kp, ki, kd))
    driven = setting.selection.astype(z.dtype)[None] * (kp + ki * integral[:, None] + kd * steep)[:, None, :]
    L = driven @ setting.G
    m = L.shape[-1]
    one = jnp.broadcast_to(jnp.eye(m, dtype=L.dtype), L.shape)
    S = 1 / (1 + L) if m == 1 else linalg.solve_many(one + L, one)
    S = jnp.diagonal(S, axis1=-2, axis2=-1)
    alone = 1 / S - 1
    size, angle = jnp.log(jnp.abs(alone) + 1e-30), jnp.abs(jnp.angle(-alone))
    ms, phase, gain = setting.limits
    peak = jnp.log(_largest(jnp.abs(S)) / ms) + _INSIDE
    turn = (phase * (1 + _INSIDE) - angle) * jnp.maximum(1 - jnp.abs(size) / _NEAR, 0.0)
    grow = (jnp.log(gain) * (1 + _INSIDE) - jnp.abs(size)) * jnp.maximum(1 - angle / _NEAR, 0.0)
    return jnp.sum(jnp.maximum(jnp.stack([peak, _largest(turn), _largest(grow)]), 0.0) ** 2)


def _losses(thetas: Array, setting: _Setting) -> Array:
    """Logarithm of the cost over the regulator's, with the limits; of an unstable loop its growth ``[starts]``."""
    F, stage = jax.vmap(_closed, (0, None))(thetas, setting)
    size = jnp.sqrt(jnp.diagonal(setting.W))
    size = jnp.where(size > 0, size, 1.0)
    units = jnp.concatenate([size, jnp.ones(F.shape[-1] - len(size), F.dtype)])
    radius = spectral_radius(F * (units[None, :] / units[:, None])[None], squarings=18)
    stable = radius < 1
    # where it is not stable something is solved that is, so that no derivative is NaN
    P = solve_lyapunov(jnp.where(stable[:, None, None], F, 0.0).mT, stage, continuous=False)
    n = len(setting.W)
    cost = jnp.sum(P[:, :n, :n] * setting.W[None], axis=(1, 2)) / setting.best
    good = stable & (cost > 0)
    missed = jax.vmap(_missed, (0, None))(thetas, setting)
    # a loop that integrates, which no cost from initial states asks for, is to come to rest in reasonable time
    slow = jnp.where(jnp.any(setting.used[1]), jnp.maximum(1 - jnp.log(radius) / setting.slowest, 0.0), 0.0)
    loss = jnp.log(jnp.where(good, cost, 1.0)) + _PENALTY * missed + _SLOW * slow**2
    return jnp.where(good, loss, 1e6 + 1e3 * jnp.log(radius))


@partial(jax.jit, static_argnames="few")
def descend(starts: Array, setting: _Setting, few: int) -> tuple[Array, Array]:
    """Adam from the best quarter of the starts, and on from the few best: ``[few, 4 loops]``, with their losses."""

    def summed(thetas: Array) -> tuple[Array, Array]:
        losses = _losses(thetas, setting)
        return jnp.sum(losses), losses

    def run(thetas: Array, num_steps: int, rate: float) -> tuple[Array, Array]:
        optimiser = optax.adam(optax.cosine_decay_schedule(rate, num_steps, 0.003))

        def step(state: tuple, _: None) -> tuple[tuple, None]:
            thetas, memory, best, least = state
            (_, losses), slopes = jax.value_and_grad(summed, has_aux=True)(thetas)
            better = losses < least
            best, least = jnp.where(better[:, None], thetas, best), jnp.where(better, losses, least)
            size = jnp.sqrt(jnp.sum(slopes**2, axis=1, keepdims=True))
            slopes = jnp.where(jnp.isfinite(size), slopes / jnp.maximum(size, 1.0), 0.0)
            change, memory = calculus.updates(optimiser, slopes, memory)
            return (jnp.clip(thetas + change, -30.0, 30.0), memory, best, least), None

        far = jnp.full(len(thetas), jnp.inf, thetas.dtype)
        (_, _, best, least), _ = jax.lax.scan(step, (thetas, optimiser.init(thetas), thetas, far), length=num_steps)
        return best, least

    first, losses = run(starts[jnp.argsort(_losses(starts, setting))[: max(few, len(starts) // 4)]], _FIRST, 0.3)
    return run(first[jnp.argsort(losses)[:few]], _SECOND, 0.2)
