"""Simulations of a plant against a log, in segments, with their exact Jacobians: what a fit of parameters solves."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.calculus import rk4
from lqrlab.extensions.identification.log import Log, select
from lqrlab.systems import Plant, parameter_fields
from lqrlab.systems.plant import is_linear

T = TypeVar("T", np.ndarray, Array)

DEFECT = 1e-5  # by which segments may fail to meet, relative to the states' scales
PULL = 0.03
"""Pull of scaled parameters towards the values that were given, in units of the noise."""


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ScaledParameters:
    """Parameters as a fit sees them: logarithms where the range is above zero, else shares of the default.

    Attributes:
        names: of the parameters.
        base, span: θ = base · exp(z), or base + span · z where ``span`` is not zero.
        low, high: the range, as z.
    """

    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    base: Float[np.ndarray, " k"]
    span: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]

    @classmethod
    def of(cls, plant: Plant, names: tuple[str, ...]) -> Self:
        """Around the plant's own values, within the declared ranges."""
        fields = parameter_fields(type(plant))
        base = np.array([float(getattr(plant, name)) for name in names])
        low, high = (np.array([float(fields[n].metadata[end]) for n in names]) for end in ("low", "high"))
        positive = (low > 0) & (base > 0)
        span = np.where(positive, 0.0, np.where(base != 0, np.abs(base), 0.1 * (high - low)))

        def inverse(v: np.ndarray) -> np.ndarray:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(positive, np.log(v / base), (v - base) / np.where(positive, 1.0, span))

        return cls(names, base, span, inverse(low), inverse(high))

    def values(self, z: Float[Array, "*batch k"] | Float[np.ndarray, "*batch k"]) -> Float[Array, "*batch k"]:
        """θ of z."""
        base, span, z = (jnp.asarray(a) for a in (self.base, self.span, z))
        shape = (1,) * (z.ndim - 1) + base.shape
        base, span = base.reshape(shape), span.reshape(shape)
        return jnp.where(span == 0, base * jnp.exp(jnp.where(span == 0, z, 0.0)), base + span * z)

    def slopes(self, z: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """dθ/dz."""
        return np.where(self.span == 0, np.asarray(self.values(z)), self.span)

    def plant(self, plant: Plant, z: Float[Array, "*batch k"] | Float[np.ndarray, "*batch k"]) -> Plant:
        """The plant with these values."""
        values = self.values(z)
        return dataclasses.replace(plant, **{n: values[..., i] for i, n in enumerate(self.names)})  # type: ignore[type-var]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """A log cut into segments of one length, each simulated from a state of its own.

    Attributes:
        plant: whose parameters are free, or not.
        coordinates: of those that are.
        which: the index of each of the log's outputs among the plant's states and outputs.
        us, ys: ``[S, L, m]``, ``[S, L, p]``; ``mask`` ``[S, L]`` says which samples are there.
        follows: whether a segment goes on where the one before it ends ``[S]``.
        substeps: Runge-Kutta steps in a sample time; a linear plant is held exactly.
        offsets: whether each output has a free constant offset ``[p]``.
        scale: of the states.
    """

    plant: Plant
    coordinates: ScaledParameters
    which: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    us: Float[np.ndarray, "S L m"]
    ys: Float[np.ndarray, "S L p"]
    mask: np.ndarray
    follows: np.ndarray
    dt: Float[np.ndarray, ""]
    substeps: int = dataclasses.field(metadata={"static": True})
    offsets: np.ndarray
    scale: Float[np.ndarray, " n"]

    @classmethod
    def of(
        cls, plant: Plant, log: Log, names: tuple[str, ...], length: int | None, substeps: int, offsets: np.ndarray
    ) -> Self:
        """The records of a log, each cut after every ``length`` samples; not cut if it is None."""
        all_us, which = select(log, plant)
        ends = [*log.first[1:], len(log)]
        size = length or max(b - a for a, b in zip(log.first, ends))
        pieces = [(i, min(i + size, b), i > a) for a, b in zip(log.first, ends) for i in range(a, b, size)]

        def padded(values: np.ndarray) -> np.ndarray:
            return np.stack([np.pad(values[a:b], ((0, size - (b - a)), (0, 0)), mode="edge") for a, b, _ in pieces])

        mask = np.stack([np.arange(size) < b - a for a, b, _ in pieces])
        follows = np.array([later for *_, later in pieces])
        coordinates = ScaledParameters.of(plant, names)
        signals, dt, scale = (padded(all_us), padded(log.ys)), np.asarray(log.dt), np.asarray(plant.scales[0])
        return cls(plant, coordinates, tuple(which), *signals, mask, follows, dt, substeps, offsets, scale)

    def seen(self, plant: Plant, x: Float[Array, " n"]) -> Float[Array, " p"]:
        """The log's outputs at a state."""
        return (jnp.concatenate([x, plant.output(x)]) if max(self.which) >= plant.n else x)[jnp.array(self.which)]

    def simulated(
        self, z: Float[Array, " k"], x0: Float[Array, " n"], us: Float[Array, "L m"]
    ) -> tuple[Float[Array, "L p"], Float[Array, " n"]]:
        """One segment: outputs, and the state after its end."""
        plant = self.coordinates.plant(self.plant, z)
        move = held(plant, jnp.asarray(self.dt), self.substeps)

        def step(x: Array, u: Array) -> tuple[Array, Array]:
            return move(x, u), self.seen(plant, x)

        end, ys = jax.lax.scan(step, x0, us)
        return ys, end

    @jax.jit
    def outputs(self, z: Float[Array, " k"], starts: Float[Array, "S n"]) -> tuple[Array, Array]:
        """Simulations of all segments: outputs ``[S, L, p]``, ends ``[S, n]``."""
        return jax.vmap(self.simulated, (None, 0, 0))(z, starts, jnp.asarray(self.us))

    @jax.jit
    def _slopes(self, z: Array, starts: Array) -> tuple[tuple[Array, Array], tuple]:
        """Outputs and ends, and their derivatives by z and by each segment's start."""

        def both(z: Array, x0: Array, us: Array) -> tuple:
            made = self.simulated(z, x0, us)
            return made, made

        by = jax.vmap(jax.jacfwd(both, argnums=(0, 1), has_aux=True), (None, 0, 0))
        slopes, made = by(z, starts, jnp.asarray(self.us))
        return made, slopes

    @jax.jit
    def costs(self, zs: Float[Array, "starts k"], starts: Float[Array, "S n"], sigma: Float[Array, " p"]) -> Array:
        """Squared output errors of many parameter values at once, each with the same starts; robust to divergence."""
        mask, ys = jnp.asarray(self.mask, starts.dtype)[:, :, None], jnp.asarray(self.ys)

        def cost(z: Array) -> Array:
            e = (self.outputs(z, starts)[0] - ys) / sigma[None, None] * mask
            return jnp.sum(jnp.log1p(jnp.where(jnp.isfinite(e), e, 1e6) ** 2))

        return jax.vmap(cost)(zs)

    def unpacked(self, free: T) -> tuple[T, T, T]:
        """z, offsets [p], starts [S, n] of the vector that is solved for, [f], of NumPy or JAX."""
        k, o = len(self.coordinates.names), int(self.offsets.sum())
        offsets: Any = np.eye(len(self.which))[:, self.offsets] @ free[k : k + o]
        return free[:k], offsets, free[k + o :].reshape(len(self.us), -1) * self.scale[None]

    def packed(self, z: np.ndarray, offsets: np.ndarray, starts: np.ndarray) -> Float[np.ndarray, " f"]:
        """The way back."""
        return np.concatenate([z, offsets[self.offsets], (starts / self.scale).ravel()])

    def condensed(
        self, free: Float[np.ndarray, " f"], sigma: Float[np.ndarray, " p"], defect: float, pull: float = PULL
    ) -> tuple[Float[np.ndarray, " r"], Float[np.ndarray, "r f"]]:
        """Residuals and their Jacobian, the samples of each segment rotated into as few rows as it has unknowns.

        Last come rows that pull z weakly towards zero: along what the log does not tell, the plant's own values stay.

        An orthogonal matrix times residuals and Jacobian changes neither the sum of squares nor a Gauss-Newton step.
        """
        z, offsets, starts = self.unpacked(free)
        (ys, ends), ((yz, yx), (xz, xx)) = self._slopes(jnp.asarray(z), jnp.asarray(starts))
        ys, ends, yz, xz, yx, xx = (np.asarray(a) for a in (ys, ends, yz, xz, yx, xx))
        S, L, p = ys.shape
        k, o, n = len(z), int(self.offsets.sum()), starts.shape[1]
        w = np.where(self.mask[:, :, None], 1 / sigma, 0.0)
        r = (ys + offsets - self.ys) * w
        by_offset = np.broadcast_to(np.eye(p)[:, self.offsets], (S, L, p, o))
        J = np.concatenate([yz, by_offset, yx * self.scale], -1) * w[..., None]
        joint = _finite(np.concatenate([J, r[..., None]], -1).reshape(S, L * p, -1))
        R = np.asarray(np.linalg.qr(joint, mode="r"))  # [S, k + o + n + 1, …]
        rows = R.shape[1]
        full = np.zeros((S, rows, len(free)))
        full[:, :, : k + o] = R[:, :, : k + o]
        for s in range(S):
            at = k + o + s * n
            full[s, :, at : at + n] = R[s, :, k + o : -1]
        residuals = [R[:, :, -1].ravel(), pull * z]
        jacobian = [full.reshape(S * rows, -1), pull * np.eye(k, len(free))]
        weight = 1 / (defect * self.scale)
        for s in map(int, np.flatnonzero(self.follows)):
            gap, at = np.zeros((n, len(free))), k + o + s * n
            gap[:, :k] = xz[s - 1]
            gap[:, at - n : at] = xx[s - 1] * self.scale
            gap[:, at : at + n] = -np.diag(self.scale)
            residuals.append((ends[s - 1] - starts[s]) * weight)
            jacobian.append(gap * weight[:, None])
        tall = np.concatenate([np.concatenate(jacobian), np.concatenate(residuals)[:, None]], 1)
        square = np.asarray(np.linalg.qr(_finite(tall), mode="r"))
        return square[:, -1], square[:, :-1]


def _finite(rows: Float[np.ndarray, "*batch r f"]) -> Float[np.ndarray, "*batch r f"]:
    """Rows (Jacobian, residual) with a large error that says nothing of where to go where a simulation diverged."""
    lost = ~(np.abs(rows) < 1e12).all(-1, keepdims=True)
    told = np.zeros(rows.shape[-1])
    told[-1] = 1e6
    return np.where(lost, told, rows)


def minimised(
    segments: Segments,
    free: np.ndarray,
    sigma: np.ndarray,
    iterations: int,
    defect: float = DEFECT,
    tolerance: float = 1e-8,
) -> tuple[np.ndarray, float]:
    """The unknowns that miss the log least, and half the sum of squares."""

    @functools.lru_cache(maxsize=1)
    def both(v: bytes) -> tuple[np.ndarray, np.ndarray]:
        return segments.condensed(np.frombuffer(v), sigma, defect)

    c = segments.coordinates
    rest = len(free) - len(c.names)
    bounds = (np.append(c.low - 1e-9, np.full(rest, -np.inf)), np.append(c.high + 1e-9, np.full(rest, np.inf)))
    until = {"max_nfev": iterations, "xtol": 1e-8, "ftol": tolerance, "gtol": 1e-10}
    missed, slopes = (lambda v: both(v.tobytes())[0]), (lambda v: both(v.tobytes())[1])
    found = scipy.optimize.least_squares(missed, free, slopes, bounds=bounds, x_scale="jac", **until)
    return found.x, float(found.cost)


def first_states(segments: Segments, log: Log) -> Float[np.ndarray, "S n"]:
    """First states of segments: measured ones as they are, others by a Kalman filter of the linearised plant."""
    plant = segments.plant
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    n, which = plant.n, segments.which
    starts = np.tile(x_eq, (len(segments.us), 1))
    if not set(range(n)) <= set(which):
        with contextlib.suppress(ValueError):  # not observable at the equilibrium: begin there
            starts = _filtered(segments, x_eq, u_eq)
    for j, i in enumerate(which):
        if i < n:
            starts[:, i] = segments.ys[:, 0, j]
    reach = 50 * segments.scale
    return np.clip(starts, x_eq - reach, x_eq + reach)


def _filtered(segments: Segments, x_eq: np.ndarray, u_eq: np.ndarray) -> np.ndarray:
    plant = segments.plant
    C = np.asarray(jax.jacfwd(lambda x: segments.seen(plant, x))(jnp.asarray(x_eq)))
    y_eq = np.asarray(segments.seen(plant, jnp.asarray(x_eq)))
    A, B = (np.asarray(a) for a in control.c2d(*plant.matrices(), segments.dt))
    V = np.diag(np.maximum(0.02 * segments.ys.reshape(-1, C.shape[0]).std(0), 1e-9) ** 2)
    P = np.asarray(control.dlqe(A, C, np.diag((0.1 * segments.scale) ** 2), V).P)
    correct = P @ C.T @ np.linalg.inv(C @ P @ C.T + V)
    starts, x = [], np.zeros(plant.n)
    for us, ys, follows in zip(segments.us, segments.ys, segments.follows):
        x = x if follows else np.zeros(plant.n)
        rows = zip(us, ys)
        for t, (u, y) in enumerate(rows):
            x = x + correct @ (y - y_eq - C @ x)
            if t == 0:
                starts.append(x + x_eq)
            x = A @ x + B @ (u - u_eq)
    return np.stack(starts)


def held(plant: Plant, dt: ArrayLike, substeps: int) -> Callable[[Array, Array], Array]:
    """Steps of one plant's state by ``dt`` under a held input, both absolute: exact if the plant is linear."""
    if not is_linear(plant):
        return lambda x, u: rk4(
            lambda x: plant.dynamics(x, u), x, jnp.full_like(x, jnp.asarray(dt, x.dtype) / substeps), substeps
        )
    A, _ = plant.matrices()
    _, whole = control.c2d(A, jnp.eye(plant.n, dtype=A.dtype), dt)  # ∫ exp(At) of the sample
    return lambda x, u: x + whole.astype(x.dtype) @ plant.dynamics(x, u)
