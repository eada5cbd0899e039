"""A plant at ticks, of which sample times and delays are whole numbers: exact, on the host, nothing is compiled."""

import math

import numpy as np
from jaxtyping import ArrayLike, Float

from lqrlab import control

TICKS = 4
"""Ticks in the plant's own sample time."""
LATE = 2
"""Sample times of delay, at most."""


def rk4_steps(A: ArrayLike, tick: float) -> int:
    """Runge-Kutta steps in a tick: the fastest mode of ẋ = Ax turns or decays by a quarter radian at most in each."""
    fastest = float(np.abs(np.linalg.eigvals(np.asarray(A))).max())
    return max(1, math.ceil(fastest * tick / 0.25))


def held(tick: control.Sampled, ticks: int) -> control.Sampled:
    """The sampled problem whose input is held for several ticks, from that of one; exact, on the host."""
    step, weight, size = steps_ahead(tick, ticks), joint(tick), tick.A.shape[-1]
    paid = sum(np.swapaxes(ahead, -1, -2) @ weight @ ahead for ahead in step[:-1])
    last = step[-1]
    return control.Sampled(
        last[..., :size, :size],  # type: ignore[arg-type]
        last[..., :size, size:],  # type: ignore[arg-type]
        paid[..., :size, :size],
        paid[..., size:, size:],
        paid[..., :size, size:],
    )


def steps_ahead(tick: control.Sampled, ticks: int) -> list[Float[np.ndarray, "*batch n+m n+m"]]:
    """Maps of (x, u) to (x, u) after 0 … ticks ticks of the same u."""
    A, B = np.asarray(tick.A), np.asarray(tick.B)
    n, m = B.shape[-2:]
    below = np.broadcast_to(np.eye(m, n + m, n), (*B.shape[:-2], m, n + m))
    one = np.concatenate([np.concatenate([A, B], axis=-1), below], axis=-2)
    steps = [np.broadcast_to(np.eye(n + m), one.shape)]
    for _ in range(ticks):
        steps.append(one @ steps[-1])
    return steps


def joint(tick: control.Sampled) -> Float[np.ndarray, "*batch n+m n+m"]:
    """The weight of (x, u)."""
    Q, R, N = (np.asarray(W) for W in (tick.Q, tick.R, tick.N))
    rows = [np.concatenate(row, axis=-1) for row in ((Q, N), (np.swapaxes(N, -1, -2), R))]
    return np.concatenate(rows, axis=-2)


def late(
    tick: control.Sampled, sample: int, delay: int
) -> tuple[Float[np.ndarray, "wide wide"], Float[np.ndarray, "wide m"], Float[np.ndarray, "n wide"]]:
    """A sampled plant whose input acts some ticks late, and the state that an input finds when it begins to act.

    The state is extended by the inputs that are on their way, the newest first, as in :func:`control.delayed`.

    Args:
        tick: the plant, sampled at a tick.
        sample, delay: sample time and delay in ticks.

    Returns:
        A, B, and the map from the extended state to the plant's state after ``delay`` ticks.
    """
    A, B = np.asarray(tick.A), np.asarray(tick.B)
    (n, m), kept = B.shape, -(-delay // sample)
    size = n + m * kept
    rows = np.eye(size + m)  # of the state, the inputs on their way and the input of now
    inputs = [rows[size:], *np.split(rows[n:size], kept)] if kept else [rows[size:]]

    def ahead(ticks: int) -> Float[np.ndarray, "n wide+m"]:
        x = rows[:n]
        for j in range(ticks):
            x = A @ x + B @ inputs[(sample - 1 + delay - j) // sample]
        return x

    after = np.concatenate([ahead(sample), *inputs[:kept]])
    return after[:, :size], after[:, size:], ahead(delay)[:, :size]
