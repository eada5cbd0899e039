"""Linear-quadratic problems with limits on inputs, states, outputs and changes of inputs, over a horizon: on arrays."""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab.compute import checks
from lqrlab.compute.threads import on_all_cores
from lqrlab.control import matrix_checks
from lqrlab.control.regulator import dlqr
from lqrlab.extensions.predictive.finite_horizon import ConstrainedLQR, Horizon, solved_from
from lqrlab.simulation.limits import Limits, Pair

MOST_STEPS = 100_000


class Terms(NamedTuple):
    """Optional terms of a horizon's program, besides weights and limits.

    Attributes:
        c, q, r: constant of the dynamics and linear terms ``[..., n]``, ``[..., n]``, ``[..., m]``; zero if left out.
        qf: linear term of the last state ``[..., n]``.
        soft: ``(linear, quadratic)``: states and outputs may exceed a limit by e at the cost linear·e + quadratic·e².
        u_last: u[−1], which the first change starts from ``[..., m]``; it is free if left out.
        time_varying: matrices have an axis of T steps before their own, ``[..., T, n, n]``, and vectors too; those
            without further axes are the same at each step.
    """

    c: ArrayLike | None = None
    q: ArrayLike | None = None
    r: ArrayLike | None = None
    qf: ArrayLike | None = None
    soft: Pair | None = None
    u_last: ArrayLike | None = None
    time_varying: bool = False


_CORES = Horizon(3, 3, 3, 3, 3, 1, 2, 2, 2, 2, 1, 3, 3, 1, (0, 0))  # type: ignore[arg-type] # axes of one problem's


def constrained_lqr(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    x0: ArrayLike,
    num_steps: int,
    *,
    N: ArrayLike | None = None,
    Qf: ArrayLike | None = None,
    limits: Limits | None = None,
    terms: Terms | None = None,
) -> ConstrainedLQR:
    """Minimise Σ xᵀQx + uᵀRu + 2xᵀNu + 2qᵀx + 2rᵀu + x[T]ᵀQf x[T] + 2qfᵀx[T] for x[t+1] = Ax + Bu + c, within limits.

    Leading axes are a batch. Differentiable in reverse with respect to every array, by the implicit function theorem on
    the limits that hold; at a kink with the derivative of one side. Gradients are NaN where nothing was solved.

    Args:
        A, B, Q, R, N: as in :func:`dlqr`; Q may be indefinite only as far as the problem stays convex in u.
        x0: the state at the start ``[..., n]``.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``, that of :func:`dlqr` if left out.
        limits: :class:`lqrlab.simulation.Limits`.
        terms: :class:`Terms`: c, q, r, qf, prices of soft limits, u[−1], and whether steps differ.

    Source: J. B. Rawlings, D. Q. Mayne and M. M. Diehl, Model Predictive Control, 2nd ed. (2017), section 8.8.

    >>> limits = simulation.Limits(u=(-1, 1))
    >>> found = predictive.constrained_lqr([[1.0]], [[1.0]], [[1.0]], [[1.0]], [5.0], 10, limits=limits)
    >>> found.us[:, 0].round(3).tolist()[:5], bool(found.solved)
    ([-1.0, -1.0, -1.0, -1.0, -0.618], True)
    """
    T = checks.whole("num_steps", num_steps, high=MOST_STEPS)
    limits, terms = limits or Limits(), terms or Terms()
    varying = terms.time_varying
    checks.flag("time_varying", varying)
    A, B, Q, R, N = _matrices(A, B, Q, R, N, T, varying)
    n, m, dtype = A.shape[-1], B.shape[-1], A.dtype

    def steps(name: str, value: ArrayLike | None, *shape: int) -> Array | None:
        return None if value is None else _steps_of(name, value, shape, T, varying, dtype)

    def vector(name: str, value: ArrayLike | None, size: int) -> Array | None:
        if value is None:
            return None
        return jnp.asarray(checks.real(name, matrix_checks.trailing(name, value, (size,), dtype), finite=True))

    if Qf is None and varying:
        raise ValueError("Qf: expected a terminal weight: a time-varying problem has no LQR to take it from")
    ends = limits.checked(n, m, dtype, T)
    p = 0 if ends.y is None else ends.y[0].shape[-1]
    horizon = Horizon(
        A, B, Q, R, N, vector("x0", x0, n),  # type: ignore[arg-type]
        dlqr(*(a[..., 0, :, :] for a in (A, B, Q, R, N))).P if Qf is None else matrix_checks.terminal_weight(Qf, Q, Q),
        steps("c", terms.c, n), steps("q", terms.q, n), steps("r", terms.r, m), vector("qf", terms.qf, n),
        steps("C", limits.C if p else None, p, n), steps("D", limits.D if p else None, p, m),
        vector("u_last", terms.u_last, m), None if terms.soft is None else prices(terms.soft, dtype),
    )  # fmt: skip
    bare = dataclasses.replace(ends, C=None, D=None)
    _same_batch(horizon, bare)
    return _on_all_cores(horizon, bare, T)


def prices(soft: Pair, dtype: np.dtype) -> tuple[Array, Array]:
    """The checked costs of an excess."""
    if not isinstance(soft, tuple | list) or len(soft) != 2:
        raise ValueError(f"soft: expected (linear, quadratic), the cost of an excess, but found {soft!r:.80}")
    linear, quadratic = (jnp.asarray(checks.real("soft", a), dtype) for a in soft)
    if not checks.traced(linear, quadratic):
        both = np.asarray(linear), np.asarray(quadratic)
        if not min(a.min() for a in both) >= 0 or np.min(both[0] + both[1]) <= 0:
            raise ValueError("soft: expected costs ≥ 0 of an excess, one of them > 0, or it would be no limit at all")
    return linear, quadratic


def _same_batch(horizon: Horizon, limits: Limits) -> None:
    """Raise ValueError unless leading axes go together: steps, perhaps, that were taken for a batch."""
    fields = zip(Horizon._fields[:-1], horizon, _CORES)
    leads = {name: a.shape[: a.ndim - core] for name, a, core in fields if a is not None}  # type: ignore
    leads |= {f"limits.{name}": a.shape[:-2] for name, pair in limits.signals().items() for a in pair}
    try:
        np.broadcast_shapes(*leads.values())
    except ValueError:
        found = ", ".join(f"{name} {lead}" for name, lead in leads.items() if lead)
        raise ValueError(
            f"leading axes: expected those of one batch, but found {found}; an axis of steps needs time_varying=True"
        ) from None


def _matrices(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None, T: int, time_varying: bool
) -> list[Array]:
    """The checked matrices ``[..., S, rows, columns]``."""
    if time_varying:
        shapes = {name: (a, np.shape(a)) for name, a in zip("ABQRN", (A, B, Q, R, N)) if a is not None}
        for name, (_, shape) in shapes.items():
            if len(shape) > 2 and shape[-3] != T:
                raise ValueError(f"{name}: expected one matrix or one for each of {T} steps, but found shape {shape}")
        given = matrix_checks.arguments(A, B, Q, R, N)
        full = [jnp.broadcast_to(a, (*a.shape[:-3], T, *a.shape[-2:])) if a.ndim > 2 else a[None] for a in given]
    else:
        full = [a[..., None, :, :] for a in matrix_checks.arguments(A, B, Q, R, N)]
    return full


def _steps_of(name: str, value: ArrayLike, shape: tuple[int, ...], T: int, varying: bool, dtype: np.dtype) -> Array:
    """An array ``[..., S, *shape]``."""
    a = jnp.asarray(checks.real(name, matrix_checks.trailing(name, value, shape, dtype), finite=True))
    if not varying or a.ndim == len(shape):
        return jnp.expand_dims(a, a.ndim - len(shape))
    if a.shape[-len(shape) - 1] != T:
        raise ValueError(f"{name}: expected one for each of {T} steps, but found shape {a.shape}")
    return a


def _on_all_cores(horizon: Horizon, limits: Limits, T: int) -> ConstrainedLQR:
    """:func:`_solved`, outside a trace by pieces of the batch."""
    leaves, structure = jax.tree.flatten((horizon, limits))
    if checks.traced(*leaves):
        return _solved(horizon, limits, T)
    cores = Horizon(*(None if a is None else core for a, core in zip(horizon, _CORES)))  # type: ignore[arg-type]
    cores = cores._replace(soft=jax.tree.map(jnp.ndim, horizon.soft))
    all_cores = jax.tree.leaves((cores, jax.tree.map(lambda _: 2, limits)))
    return on_all_cores(_of_leaves(structure, T), *zip(leaves, all_cores))


@cache
def _of_leaves(structure: Any, T: int) -> Callable[..., ConstrainedLQR]:
    return lambda *leaves: _solved(*jax.tree.unflatten(structure, leaves), T)


@partial(jax.jit, static_argnames="T")
def _solved(horizon: Horizon, limits: Limits, T: int) -> ConstrainedLQR:
    return solved_from(None, horizon, limits, T)[0]
