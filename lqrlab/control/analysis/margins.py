"""What a loop does and bears: zeros, frequency response, margins, steps."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import linalg, pytree
from lqrlab.control import checks
from lqrlab.control.analysis.norms import hinf_norm, to_statespace
from lqrlab.control.riccati import equations
from lqrlab.control.servo import feedforward


def zeros(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> np.ndarray:
    """Invariant (transmission) zeros of one system, on the host: complex ``[k]``, the least stable first.

    At a zero the inputs can move the plant for ever without a sign of it in y = Cx + Du. A zero in the right
    half-plane (outside the unit circle if ``dt`` is given) makes y start the wrong way and bounds how fast any
    controller can be; one at the origin (at 1) means that no constant input holds y.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Source: A. Emami-Naeini and P. Van Dooren, Automatica 18 (1982), as in SLICOT's AB08ND.
    """
    found = np.asarray(to_statespace(A, B, C, D, dt).zeros(), complex)
    return found[np.argsort(-(found.real if dt is None else np.abs(found)), kind="stable")]


@jax.jit
def frequency_response(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    frequencies: ArrayLike,
    D: ArrayLike | None = None,
    dt: ArrayLike | None = None,
) -> Array:
    """C (sI − A)⁻¹B + D at s = jω, or at z = exp(jω dt); batched, differentiable.

    Args:
        A, B, C, D: ``[..., n, n]``, ``[..., n, m]``, ``[..., p, n]``, ``[..., p, m]`` (zero if left out).
        frequencies: ω [rad/s], ``[..., f]``; their leading axes broadcast with the others.
        dt: sample time [s] of a discrete system, scalar or with the leading axes.

    Returns:
        Complex ``[..., f, p, m]``; not finite at a pole.
    """
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    A, B, C, *rest = checks.matrices(**given)
    w = jnp.asarray(frequencies, A.dtype)
    if dt is None:
        s = 1j * w
    else:
        w, step = jnp.broadcast_arrays(w, jnp.asarray(dt, A.dtype)[..., None])
        s = jnp.exp(1j * w * step)
    D = rest[0] if rest else jnp.zeros((C.shape[-2], B.shape[-1]), A.dtype)
    one = jnp.eye(A.shape[-1], dtype=A.dtype)
    s, one, A, B, C, D = equations.together(
        s[..., None, None], *(a[..., None, :, :].astype(s.dtype) for a in (one, A, B, C, D))
    )
    return C @ linalg.solve_many(s * one - A, B) + D


@jax.jit
def sensitivity(
    A: ArrayLike, B: ArrayLike, K: ArrayLike, frequencies: ArrayLike, dt: ArrayLike | None = None
) -> Array:
    """(I + L)⁻¹ of the loop L = K (sI − A)⁻¹B that u = −Kx closes, seen at the inputs; batched, differentiable.

    Its i-th diagonal element is that of input i with the others closed.

    Args:
        A, B, K: ``[..., n, n]``, ``[..., n, m]``, ``[..., m, n]``.
        frequencies, dt: as in :func:`frequency_response`.

    Returns:
        Complex ``[..., f, m, m]``.
    """
    A, B, K = equations.together(*checks.matrices(A=(A, "nn"), B=(B, "nm"), K=(K, "mn")))
    return frequency_response(A - B @ K, B, -K, frequencies, jnp.eye(K.shape[-2], dtype=K.dtype), dt)


@dataclasses.dataclass(frozen=True)
class Disk:
    """A symmetric disk margin: what a loop bears of gain *and* phase at once.

    The loop stays stable while its gain is multiplied by any (1 + δ/2)/(1 − δ/2), complex |δ| < α.

    Attributes:
        alpha: α. An LQR loop in continuous time has at least 2/3.
        frequency: where it is lost first [rad/s]; infinite if at no finite frequency.

    Source: P. Seiler, A. Packard and P. Gahinet, An introduction to disk margins, IEEE Control Systems Magazine
    40(5) (2020), with their skew σ = 0.
    """

    alpha: float
    frequency: float

    @property
    def gain(self) -> tuple[float, float]:
        """Factors that the gain may be multiplied by: all between these two keep the loop stable."""
        return (2 - self.alpha) / (2 + self.alpha), (
            (2 + self.alpha) / (2 - self.alpha) if self.alpha < 2 else np.inf
        )

    @property
    def phase(self) -> float:
        """The loop may be turned by any angle between minus and plus this [rad]."""
        return 2 * float(np.arctan(self.alpha / 2))


@dataclasses.dataclass(frozen=True)
class Margins:
    """How much a loop bears at one input before it is unstable, the other inputs as designed.

    Attributes:
        gain_down, gain_up: factors that the loop gain may be multiplied by, 0 ≤ down < 1 < up.
        phase: margin [rad].
        distance: least distance of the loop gain from −1, min |1 + L(jω)|; at least 1 for a continuous LQR.
        frequency: where that is [rad/s]; infinite if at no finite frequency.
        disk: symmetric disk margin, for gain and phase at once.
    """

    gain_down: float
    gain_up: float
    phase: float
    distance: float
    frequency: float
    disk: Disk


def margins(A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: float | None = None) -> list[Margins]:
    """Margins of the loop u = −Kx at each input, the others closed; one problem, on the host.

    Args:
        A: ``[n, n]``, of ẋ = Ax + Bu, or of x[t+1] = Ax[t] + Bu[t] if ``dt`` [s] is given.
        B, K: ``[n, m]``, ``[m, n]``.

    Raises:
        ValueError: the loop is not stable, so it has no margins.
    """
    A, B, K, closed = _closed(A, B, K, dt)
    found = []
    for i in range(B.shape[1]):
        others = [j for j in range(B.shape[1]) if j != i]
        inner = A - B[:, others] @ K[others]
        gains, phases = _crossings(inner, B[:, [i]], K[[i]], dt is not None)
        up, down = gains[gains > 1], gains[gains < 1]
        # 1/(1 + L) and the half of (1 − L)/(1 + L): their peaks are H∞ norms
        peak, frequency = hinf_norm(closed, B[:, [i]], -K[[i]], np.ones((1, 1)), dt)
        half, worst = hinf_norm(closed, B[:, [i]], -K[[i]], np.full((1, 1), 0.5), dt)
        found.append(
            Margins(
                gain_down=float(down.max()) if len(down) else 0.0,
                gain_up=float(up.min()) if len(up) else np.inf,
                phase=float(phases.min()) if len(phases) else np.inf,
                distance=1 / peak,
                frequency=frequency,
                disk=Disk(1 / half, worst),
            )
        )
    return found


def _crossings(A: np.ndarray, b: np.ndarray, k: np.ndarray, discrete: bool) -> tuple[np.ndarray, np.ndarray]:
    """Factors g > 0 of the gain and angles [rad] of the phase that bring L = k (zI − A)⁻¹b through −1.

    On the boundary of stability L is real where L = L~, and of size one where L L~ = 1, with L~(z) = L(1/z), or
    L(−s) in continuous time. Both are generalised eigenvalues: of every crossing, also at z = −1, with no grid to
    miss one.
    """
    n = len(A)
    one, zero, column, row = np.eye(n), np.zeros((n, n)), np.zeros((n, 1)), np.zeros((1, n))
    mirrored = ([zero, one, column], [zero, A, b]) if discrete else ([zero, -A, -b], [zero, one, column])
    right = np.block([[one, zero, column], mirrored[1], [row, row, np.zeros((1, 1))]])

    def boundary(*rows: list[np.ndarray]) -> np.ndarray:
        z = scipy.linalg.eigvals(np.block([rows[0], mirrored[0], rows[1]]), right)
        z = z[np.isfinite(z)]
        off, size = (np.abs(z) - 1, 1.0) if discrete else (z.real, np.maximum(np.abs(z), 1e-9))
        z = z[np.abs(off) < 1e-4 * size]  # a double one is off by the root of the rounding
        z = z / np.abs(z) if discrete else 1j * z.imag
        return np.concatenate([z, [1.0, -1.0] if discrete else [0.0]])

    def loop(z: complex) -> complex:
        return (k @ np.linalg.solve(z * one - A, b)).item()

    def values(z: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            try:
                return np.array([loop(v) for v in z])
            except np.linalg.LinAlgError:  # a pole of the loop on the boundary, where L is not finite
                return np.array([loop(v * (1 + 1e-9) + 1e-12) for v in z])

    L = values(boundary([A, zero, b], [k, -k, np.zeros((1, 1))]))
    there = (np.abs(L) > 1e-8) & (
        np.abs(L) < 1e8
    )  # beyond, a zero or a pole of the loop on the boundary itself
    L = L[there & (np.abs(L.imag) < 1e-3 * np.abs(L)) & (L.real < 0)]
    unity = values(boundary([A, b @ k, column], [-k, row, np.ones((1, 1))]))
    unity = unity[np.abs(np.abs(unity) - 1) < 1e-3]
    return -1 / L.real, np.abs(np.angle(-unity))


def disk_margin(A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: float | None = None) -> Disk:
    """Symmetric disk margin of the loop u = −Kx when all inputs are off at once, each in a way of its own.

    One problem, on the host. From the upper bound of the structured singular value (exact up to three inputs), so
    what it promises holds, on a grid of frequencies that is refined around the worst.

    Args:
        A, B, K, dt: as in :func:`margins`.

    Raises:
        ValueError: the loop is not stable, so it has no margins.

    Source: Seiler, Packard and Gahinet (2020), as in ``control.disk_margins``.
    """
    import control as python_control

    A, B, K, closed = _closed(A, B, K, dt)
    if B.shape[1] == 1:
        half, frequency = hinf_norm(closed, B, -K, np.full((1, 1), 0.5), dt)
        return Disk(1 / half, frequency)
    loop = to_statespace(A, B, K, dt=dt)
    poles = np.linalg.eigvals(np.stack([A, closed])).astype(complex).ravel()
    with np.errstate(divide="ignore"):
        speeds = np.abs(poles if dt is None else np.log(poles) / dt)
    speeds = speeds[(speeds > 0) & np.isfinite(speeds)]
    top = np.pi / dt if dt else 1e3 * speeds.max()
    grid = np.unique(np.append(np.geomspace(min(1e-2 * speeds.min(), top / 10), top, 600), speeds))
    grid = grid[grid <= top]
    for _ in range(3):
        alphas = python_control.disk_margins(loop, grid, returnall=True)[0]
        i = int(np.argmin(alphas))
        found = Disk(float(alphas[i]), float(grid[i]))
        grid = np.linspace(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)], 41)
    return found


def _closed(A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: float | None) -> tuple[np.ndarray, ...]:
    A, B, K = (np.asarray(a, float) for a in (A, B, K))
    if A.ndim != 2 or K.shape != B.shape[::-1] or B.shape[0] != A.shape[0]:
        raise ValueError(
            f"expected one loop, A [n, n], B [n, m], K [m, n], but found {A.shape}, {B.shape}, {K.shape}"
        )
    for name, a in {"A": A, "B": B, "K": K}.items():
        checks.finite(name, a)
    closed = A - B @ K
    poles = np.linalg.eigvals(closed)
    if not (poles.real.max() < 0 if dt is None else np.abs(poles).max() < 1):
        raise ValueError("K: the loop A − BK is not stable, so it has no margins")
    return A, B, K, closed


# Steps -------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="num_steps")
def step_response(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, K: ArrayLike, r: ArrayLike, num_steps: int
) -> tuple[Array, Array]:
    """The loop u = Nu r − K(x − Nx r) from rest to the set-point y = Cx = r; batched, differentiable.

    Args:
        A, B: sampled plant ``[..., n, n]``, ``[..., n, m]``, as from :func:`c2d`.
        C: ``[..., m, n]``: as many outputs as inputs.
        K: ``[..., m, n]``.
        r: set-point ``[..., m]``.
        num_steps: T.

    Returns:
        ``(ys [..., T+1, m], us [..., T, m])``; not finite where no constant input holds y (see :func:`zeros`).
    """
    A, B, C, K = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "mn"), K=(K, "mn"))
    r = jnp.asarray(r, A.dtype)
    if r.shape[-1:] != C.shape[-2:-1]:
        raise ValueError(f"r: expected a set-point {C.shape[-2:-1]}, one an output, but found {r.shape}")
    Nx, Nu = feedforward(A, B, C, discrete=True)
    A, B, C, K, Nx, Nu, r = equations.together(A, B, C, K, Nx, Nu, r[..., None])
    closed = A - B @ K

    def step(error: Array, _: None) -> tuple[Array, Array]:
        return closed @ error, error

    last, errors = jax.lax.scan(step, -Nx @ r, None, length=num_steps)
    us = (Nu @ r)[None] - K @ errors
    ys = r[None] + C @ jnp.concatenate([errors, last[None]])
    return jnp.moveaxis(ys[..., 0], 0, -2), jnp.moveaxis(us[..., 0], 0, -2)


@pytree
@dataclasses.dataclass(frozen=True)
class StepInfo:
    """How outputs go to their set-points, read off at the samples; each ``[...]`` as the outputs.

    Attributes:
        rise: from 10 % to 90 % [s].
        settling: after which the output stays within the band [s]; infinite if it is outside at the end.
        overshoot: beyond the set-point, relative to it; ≥ 0.
        undershoot: the wrong way, relative to the set-point; ≥ 0.
        peak: largest absolute value.
    """

    rise: Array
    settling: Array
    overshoot: Array
    undershoot: Array
    peak: Array


def step_info(ys: ArrayLike, dt: ArrayLike, r: ArrayLike, *, within: float = 0.02) -> StepInfo:
    """Rise and settling time, over- and undershoot of responses to a set-point; batched.

    Args:
        ys: outputs ``[..., T+1, p]``, from :func:`step_response` or measured; at rest in 0 before.
        dt: sample time [s], scalar or with the leading axes.
        r: set-points ``[..., p]``. Zero means an output that is to stay where it is: it has no such figures (NaN).
        within: half-width of the band, relative to the set-point.

    Returns:
        :class:`StepInfo`. The times are steps of a function, so their derivative is zero; to tune a loop by
        gradient see :func:`tune`.
    """
    ys, r = jnp.asarray(ys), jnp.asarray(r)
    ys = ys.astype(checks.floating(ys, r))
    if ys.ndim < 2:
        raise ValueError(f"ys: expected outputs [..., T+1, p], but found shape {ys.shape}")
    lead = jnp.broadcast_shapes(ys.shape[:-2] + ys.shape[-1:], r.shape, (*jnp.shape(dt), 1))
    goal = jnp.broadcast_to(jnp.where(r != 0, r, jnp.nan), lead)
    step = jnp.broadcast_to(checks.sample_time(dt, ys.dtype)[..., None], lead)
    done = jnp.moveaxis(jnp.broadcast_to(ys, (*lead[:-1], ys.shape[-2], lead[-1])), -2, 0) / goal[None]

    def first(reached: Array) -> Array:
        return jnp.where(reached.any(0), jnp.argmax(reached, axis=0), jnp.inf)

    outside = ~(jnp.abs(done - 1) <= within)
    last = done.shape[0] - jnp.argmax(outside[::-1], axis=0)  # one after the last outside
    steps = jnp.where(outside.any(0), jnp.where(last < done.shape[0], last, jnp.inf), 0)
    blank = jnp.where(jnp.isnan(goal), jnp.nan, 0.0)
    return StepInfo(
        (first(done >= 0.9) - first(done >= 0.1)) * step + blank,
        steps * step + blank,
        jnp.maximum(jnp.max(done, axis=0) - 1, 0),
        jnp.maximum(-jnp.min(done, axis=0), 0),
        jnp.max(jnp.abs(ys), axis=-2),
    )
