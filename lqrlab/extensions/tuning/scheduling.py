"""Gain schedules: a regulator for each point of a grid, designed in one call and interpolated between points."""

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax.scipy.interpolate import RegularGridInterpolator
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.checks import traced
from lqrlab.compute.linalg import expand_batch
from lqrlab.control import matrix_checks
from lqrlab.control.analysis import diagnosis
from lqrlab.control.regulator import LQR, lqr, lqrd
from lqrlab.systems import Plant, check_plant


@pytree
@dataclasses.dataclass(frozen=True)
class Schedule:
    """Regulators over a grid; u = u_op − K (x − x_op), all three interpolated linearly in the parameters.

    Attributes:
        grid: the values of each parameter, one array an axis.
        design: :class:`LQR` of each point.
        x_op: operating points.
        u_op: inputs that hold them.
    """

    grid: tuple[Float[Array, " _"], ...]
    design: LQR
    x_op: Float[Array, "*grid n"]
    u_op: Float[Array, "*grid m"]

    def __call__(
        self, value: ArrayLike
    ) -> tuple[Float[Array, "*batch m n"], Float[Array, "*batch n"], Float[Array, "*batch m"]]:
        """``(K [..., m, n], x_op [..., n], u_op [..., m])`` at parameters ``value [..., axes]``.

        Beyond the grid the nearest point of its edge is used: nothing is extrapolated.
        """
        at = jnp.asarray(matrix_checks.real("value", value), self.x_op.dtype)
        axes = len(self.grid)
        if at.shape[-1:] != (axes,):
            raise ValueError(f"value: expected the grid's {axes} parameters on the last axis, but found {at.shape}")
        flat = jnp.stack([jnp.clip(at[..., i].ravel(), g[0], g[-1]) for i, g in enumerate(self.grid)], axis=-1)

        def between(values: Array) -> Array:
            # inside after the clipping, up to rounding: never a NaN for a point on the edge
            interpolate = RegularGridInterpolator(self.grid, values, bounds_error=False, fill_value=None)
            return interpolate(flat).reshape(at.shape[:-1] + values.shape[axes:])

        return between(self.design.K), between(self.x_op), between(self.u_op)


def gain_schedule(
    grid: ArrayLike | Sequence[ArrayLike],
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    N: ArrayLike | None = None,
    *,
    dt: ArrayLike | None = None,
    points: tuple[ArrayLike, ArrayLike] | None = None,
) -> Schedule:
    """Regulators over a grid of parameters or operating points, designed in one batched call.

    Each point is optimal for its own frozen plant; between points, and while the parameter moves, simulate the loop.

    Args:
        grid: values of the parameter ``[g]``, rising; or one such array for each of several parameters.
        A, B, Q, R, N: continuous problems as in :func:`lqr`, their leading axes those of the grid (or none).
        dt: sample time [s]: sampled-data designs (:func:`lqrd`); continuous ones if left out.
        points: operating points ``(x [*grid, n], u [*grid, m])``; the origin if left out.

    Raises:
        ValueError: bad arguments, or (outside a trace) a point that has no stabilizing design: which, and why.

    Source: W. J. Rugh and J. S. Shamma, Research on gain scheduling, Automatica 36 (2000).
    """
    axes = tuple(grid) if isinstance(grid, tuple | list) and grid and np.ndim(grid[0]) else (grid,)
    args = matrix_checks.arguments(A, B, Q, R, N)
    n, m = args[1].shape[-2:]
    grid = _rising(axes, args[0].dtype)
    shape = tuple(g.size for g in grid)
    full = tuple(_on_grid(name, a, (*shape, *a.shape[-2:])) for name, a in zip("ABQRN", args))
    a, b, q, r, cross = full
    design = lqr(*full) if dt is None else lqrd(a, b, q, r, dt, cross)
    if not traced(*full):
        _refuse_gaps(grid, design, full)
    points = (np.zeros(n), np.zeros(m)) if points is None else points
    if not (isinstance(points, tuple | list) and len(points) == 2):
        raise ValueError(f"points: expected a pair (x, u), but found {points!r}")
    x_op, u_op = (jnp.asarray(matrix_checks.real("points", v), a.dtype) for v in points)
    x_op, u_op = _on_grid("points, x", x_op, (*shape, n)), _on_grid("points, u", u_op, (*shape, m))
    return Schedule(grid, design, x_op, u_op)


def _rising(axes: Sequence[ArrayLike], dtype: np.dtype) -> tuple[Array, ...]:
    """The axes of the grid as arrays of rising values, or a refusal."""
    grid = tuple(jnp.asarray(matrix_checks.real("grid", g), dtype) for g in axes)
    for i, g in enumerate(grid):
        if g.ndim != 1 or g.size < 2:
            raise ValueError(f"grid: expected two values or more along axis {i}, but found shape {g.shape}")
        if not traced(g) and not bool(jnp.all(jnp.isfinite(g)) & jnp.all(jnp.diff(g) > 0)):
            raise ValueError(f"grid: expected rising values along axis {i}, but found {np.asarray(g)}")
    return grid


def _on_grid(name: str, a: Array, shape: tuple[int, ...]) -> Array:
    """An array for each point of the grid, or a refusal."""
    try:
        return jnp.broadcast_to(a, shape)
    except ValueError:
        raise ValueError(f"{name}: expected shape {shape} over the grid, but found {a.shape}") from None


def _refuse_gaps(grid: tuple[Array, ...], design: LQR, args: tuple[Array, ...]) -> None:
    """Refuse a schedule with points that have no stabilizing design."""
    bad = np.argwhere(~np.asarray(design.stabilizing))
    if not len(bad):
        return
    first = tuple(bad[0])
    where = ", ".join(f"{float(g[i]):g}" for g, i in zip(grid, first))
    there = {name: np.asarray(a[first]) for name, a in zip("ABQRN", args)}
    why = "; ".join(f"{name} is not finite" for name, a in there.items() if not np.isfinite(a).all())
    left = float(design.residual[first]) if bool(design.uncertified[first]) else None
    why = why or diagnosis.why_not([*there.values()], continuous=True, residual=left)
    raise ValueError(
        f"grid: {len(bad)} of {design.stabilizing.size} points have no stabilizing design, the first at "
        f"{where}: {why}; a schedule must not pass through it: end the grid before, or change the plant there"
    )


@pytree
@dataclasses.dataclass(frozen=True)
class ScheduledPolicy:
    """u = u_op(ρ) − K(ρ) (x − x_op(ρ)) with the parameters ρ read from the state at each step.

    Attributes:
        schedule: of :func:`lqrlab.tuning.gain_schedule`, in absolute states and inputs.
        x_eq, u_eq: what this policy's x and u are deviations from, ``[n]``, ``[m]``.
        read: absolute states ``[..., n]`` → parameters ``[..., axes of the grid]``.
    """

    schedule: Schedule
    x_eq: Array
    u_eq: Array
    read: Callable[[Array], Array] = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> None:
        """Nothing to remember."""

    @one_program
    def __call__(self, carry: None, x: Array) -> tuple[None, Array]:
        """The gain of here and now."""
        at = x + expand_batch(self.x_eq.astype(x.dtype), x.ndim)
        K, x_op, u_op = (a.astype(x.dtype) for a in self.schedule(self.read(at)))
        error = at[..., : x_op.shape[-1]] - x_op  # a state that is only read comes after those controlled
        u = u_op - (K @ error[..., None])[..., 0]
        return None, u - expand_batch(self.u_eq.astype(x.dtype), u.ndim)


def scheduled(plant: Plant, schedule: Schedule, read: Callable[[Array], Array]) -> ScheduledPolicy:
    """The policy of a gain schedule on a plant; ``read`` takes the parameters from the absolute state.

    A plant whose last states are the moving parameters themselves may have a schedule for the others alone.
    """
    check_plant(plant)
    checks.instance("schedule", schedule, Schedule, "a schedule, as tuning.gain_schedule makes")
    checks.function("read", read, "a function that takes the parameters from the state")
    return ScheduledPolicy(schedule, *plant.equilibrium(), read)
