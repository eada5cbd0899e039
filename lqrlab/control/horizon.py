"""Finite-horizon regulators: step by step backwards, or all steps at once by an associative scan."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import choice, traced, whole
from lqrlab.control import checks
from lqrlab.control.weights import stage_weight

METHODS = ("auto", "sequential", "parallel")


@pytree
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon T."""

    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch T+1 n n"]

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


def _sequential(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
    def back(P: Array, now: tuple) -> tuple[Array, tuple[Array, Array]]:
        A, B, Q, R, N = now
        K = linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)
        closed = A - B @ K
        before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
        return before, (K, before)

    _, (K, P) = jax.lax.scan(back, Qf, (A, B, Q, R, N), reverse=True)
    return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))


def _parallel(A: Array, B: Array, Q: Array, R: Array, N: Array, Qf: Array) -> TimeVaryingLQR:
    """Source: S. Särkkä and Á. F. García-Fernández, Temporal parallelization of dynamic programming and linear
    quadratic control, IEEE Trans. Autom. Control 68 (2023), section III-B (without the affine terms)."""
    n = A.shape[-1]
    invR = linalg.solve_many(R, jnp.concatenate([B.mT, N.mT], axis=-1))
    RB, RN = invR[..., :n], invR[..., n:]
    zero = jnp.zeros((1, n, n), A.dtype)
    F = jnp.concatenate([A - B @ RN, zero])
    G = jnp.concatenate([linalg.symmetric(B @ RB), zero])
    H = jnp.concatenate([linalg.symmetric(Q - N @ RN), Qf[None]])
    eye = jnp.eye(n, dtype=A.dtype)

    def join(later: tuple, sooner: tuple) -> tuple:  # a reversed scan passes the later part first
        (F2, G2, H2), (F1, G1, H1) = later, sooner
        both = linalg.solve_many(
            jnp.broadcast_to(eye, F1.shape) + G1 @ H2, jnp.concatenate([F1, G1], axis=-1)
        )
        WF, WG = both[..., :n], both[..., n:]
        return F2 @ WF, G2 + linalg.symmetric(F2 @ WG @ F2.mT), H1 + linalg.symmetric(F1.mT @ H2 @ WF)

    P = jax.lax.associative_scan(join, (F, G, H), reverse=True)[2]
    after = P[1:]
    K = linalg.solve_many(R + B.mT @ after @ B, B.mT @ after @ A + N.mT)
    return TimeVaryingLQR(K, P)


@partial(jax.jit, static_argnames=("num_steps", "varying", "parallel"))
def _solve(args: tuple[Array, ...], num_steps: int, varying: str, parallel: bool) -> TimeVaryingLQR:
    form: Callable[..., TimeVaryingLQR] = _parallel if parallel else _sequential

    def one(*args: Array) -> TimeVaryingLQR:
        *matrices, Qf = args
        return form(*(jnp.broadcast_to(a, (num_steps, *a.shape[-2:])) for a in matrices), Qf)

    cores = [3 if name in varying else 2 for name in "ABQRN"]
    return broadcast(one, *zip(args, (*cores, 2)))


def _checked(
    given: dict[str, ArrayLike], num_steps: int, varying: str, Qf: ArrayLike | None
) -> tuple[Array, ...]:
    """A, B, Q, R, N, Qf as arrays of one type, those named in ``varying`` with their time axis; or a refusal."""
    if set(varying) - set(given):
        raise ValueError(
            f"varying: expected letters among those of {', '.join(given)}, but found {varying!r}"
        )
    first = {name: jnp.asarray(a) for name, a in given.items()}
    for name in varying:
        shape = first[name].shape
        if len(shape) < 3 or shape[-3] != num_steps:
            raise ValueError(
                f"{name}: expected a time axis of {num_steps}, [..., T, rows, columns], but found {shape}"
            )
        first[name] = first[name][..., 0, :, :]
    full = dict(
        zip("ABQRN", checks.arguments(first["A"], first["B"], first["Q"], first["R"], first.get("N")))
    )
    full |= {name: jnp.asarray(given[name], full[name].dtype) for name in varying}
    last = full["Q"][..., -1, :, :] if "Q" in varying else full["Q"]
    terminal = last if Qf is None else jnp.asarray(Qf, last.dtype)
    if terminal.shape[-2:] != last.shape[-2:]:
        raise ValueError(f"Qf: expected shape {last.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")
    single = all(a.ndim == (3 if name in varying else 2) for name, a in full.items())
    if single and not traced(*full.values()):  # the steps after the first, too
        checks.values({name: np.asarray(full[name]) for name in given})
    checks.weight("Qf", terminal)
    return (*full.values(), terminal)


def finite_horizon(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, num_steps: int,
    Qf: ArrayLike | None = None, N: ArrayLike | None = None, *, varying: str = "", method: str = "auto",
) -> TimeVaryingLQR:  # fmt: skip
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

    >>> control.finite_horizon([[1.0]], [[1.0]], [[0.0]], [[1.0]], 2, Qf=[[1.0]]).K[:, 0, 0].tolist()
    [0.3333333333333333, 0.5]
    """
    whole("num_steps", num_steps)
    choice("method", method, METHODS)
    given = {"A": A, "B": B, "Q": Q, "R": R} | ({} if N is None else {"N": N})
    args = _checked(given, num_steps, varying, Qf)
    parallel = method == "parallel" or (
        method == "auto" and num_steps >= 64 and jax.default_backend() != "cpu"
    )
    return _solve(args, num_steps, varying, parallel)
