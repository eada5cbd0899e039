"""Finite horizons: one step after another, or all at once by an associative scan."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.control import checks
from lqrlab.control.riccati import equations
from lqrlab.control.weights import stage_weight

METHODS = ("auto", "sequential", "parallel")


@pytree
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon."""

    K: Array
    P: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


def _sequential(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
    def back(P: Array, now: tuple) -> tuple[Array, tuple[Array, Array]]:
        A, B, Q, R, N = now
        K = equations.gain_discrete(A, B, R, N, P)
        closed = A - B @ K
        before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
        return before, (K, before)

    _, (K, P) = jax.lax.scan(back, Qf, (A, B, Q, R, N), reverse=True)
    return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))


def _parallel(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
    """Source: S. Särkkä and Á. F. García-Fernández, Temporal parallelization of dynamic programming and linear
    quadratic control, IEEE Trans. Autom. Control 68 (2023), section III-B (without the affine terms)."""
    t = partial(jnp.swapaxes, axis1=-1, axis2=-2)
    n = A.shape[-1]
    invR = linalg.solve_many(R, jnp.concatenate([t(B), t(N)], axis=-1))
    RB, RN = invR[..., :n], invR[..., n:]
    zero = jnp.zeros((1, n, n), A.dtype)
    F = jnp.concatenate([A - B @ RN, zero])
    G = jnp.concatenate([linalg.symmetric(B @ RB), zero])
    H = jnp.concatenate([linalg.symmetric(Q - N @ RN), Qf[None]])
    eye = jnp.eye(n, dtype=A.dtype)

    def join(later: tuple, sooner: tuple) -> tuple:  # a reversed scan hands over the later stretch first
        (F2, G2, H2), (F1, G1, H1) = later, sooner
        both = linalg.solve_many(
            jnp.broadcast_to(eye, F1.shape) + G1 @ H2, jnp.concatenate([F1, G1], axis=-1)
        )
        WF, WG = both[..., :n], both[..., n:]
        return F2 @ WF, G2 + linalg.symmetric(F2 @ WG @ t(F2)), H1 + linalg.symmetric(t(F1) @ H2 @ WF)

    P = jax.lax.associative_scan(join, (F, G, H), reverse=True)[2]
    after = P[1:]
    K = linalg.solve_many(R + t(B) @ after @ B, t(B) @ after @ A + t(N))
    return TimeVaryingLQR(K, P)


def _jitted(form: Callable, varying: str, num_steps: int) -> Callable:
    cores = [3 if name in varying else 2 for name in "ABQRN"]

    def one(*args: Array) -> TimeVaryingLQR:
        *matrices, Qf = args
        full = (jnp.broadcast_to(a, (num_steps, *a.shape[-2:])) for a in matrices)
        return form(*full, Qf)

    return lambda *args: broadcast(one, *zip(args, (*cores, 2)))


@partial(jax.jit, static_argnames=("num_steps", "varying", "parallel"))
def _solve(args: tuple[Array, ...], num_steps: int, varying: str, parallel: bool) -> TimeVaryingLQR:
    return _jitted(_parallel if parallel else _sequential, varying, num_steps)(*args)


def finite_horizon(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None = None,
    N: ArrayLike | None = None,
    *,
    varying: str = "",
    method: str = "auto",
) -> TimeVaryingLQR:
    """Minimise x[T]ᵀQf x[T] + Σ_{t<T} xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t].

    Args:
        A, B, Q, R, N: as in :func:`dlqr`; those named in ``varying`` have a time axis ``[..., T, rows, columns]``.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; Q if left out, the last one if Q varies.
        varying: letters of the arguments that change with time, such as ``"AB"``.
        method: ``"sequential"``, ``"parallel"`` (an associative scan: more arithmetic in fewer steps, for
            accelerators; needs R > 0) or ``"auto"``: parallel on an accelerator from 64 steps.

    Returns:
        :class:`TimeVaryingLQR`: u[t] = −K[t] x[t].

    Raises:
        ValueError: bad arguments.

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).
    """
    if not isinstance(num_steps, int | np.integer) or num_steps < 1:
        raise ValueError(f"num_steps: expected a horizon of at least one step, but found {num_steps!r}")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, but found {method!r}")
    if set(varying) - set("ABQRN") or ("N" in varying and N is None):
        raise ValueError(
            f"varying: expected letters of the given arguments among A, B, Q, R, N, but found {varying!r}"
        )
    given: dict[str, Any] = dict(zip("ABQRN", (A, B, Q, R, N)))
    for name in varying:
        shape = jnp.shape(given[name])
        if len(shape) < 3 or shape[-3] != num_steps:
            raise ValueError(
                f"{name}: expected a time axis of {num_steps}, [..., T, rows, columns], but found {shape}"
            )
    first: Any = {k: jnp.asarray(a)[..., 0, :, :] if k in varying else a for k, a in given.items()}
    checked = dict(zip("ABQRN", checks.arguments(*first.values())))
    full = [jnp.asarray(given[k], checked[k].dtype) if k in varying else checked[k] for k in "ABQRN"]
    last = full[2][..., -1, :, :] if "Q" in varying else full[2]
    terminal = last if Qf is None else jnp.asarray(Qf, last.dtype)
    if terminal.shape[-2:] != last.shape[-2:]:
        raise ValueError(f"Qf: expected shape {last.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")
    alone = all(a.ndim == (3 if k in varying else 2) for k, a in zip("ABQRN", full))
    if alone and not checks.traced(*full):  # the steps after the first, too
        checks.values({k: np.asarray(a) for k, a in zip("ABQRN", full) if k != "N" or N is not None})
    checks.weight("Qf", terminal)
    parallel = method == "parallel" or (
        method == "auto" and num_steps >= 64 and jax.default_backend() != "cpu"
    )
    return _solve((*full, terminal), num_steps, varying, parallel)
