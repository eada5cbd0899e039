"""Finite-horizon regulators of plants and weights that may change with time, step by step backwards."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.control import checks
from lqrlab.control.weights import stage_weight


@pytree
@dataclasses.dataclass(frozen=True)
class TimeVaryingLQR:
    """Gains ``K [..., T, m, n]`` and costs to go ``P [..., T+1, n, n]`` of a finite horizon T."""

    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch T+1 n n"]

    def __iter__(self) -> Iterator[Array]:
        return iter((self.K, self.P))


@partial(jax.jit, static_argnames=("num_steps", "varying"))
def _solve(args: tuple[Array, ...], num_steps: int, varying: str) -> TimeVaryingLQR:
    def back(P: Array, now: tuple) -> tuple[Array, tuple[Array, Array]]:
        A, B, Q, R, N = now
        K = linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)
        closed = A - B @ K
        before = linalg.symmetric(closed.T @ P @ closed + stage_weight(Q, R, N, K))
        return before, (K, before)

    def one(*args: Array) -> TimeVaryingLQR:
        *matrices, Qf = args
        steps = tuple(jnp.broadcast_to(a, (num_steps, *a.shape[-2:])) for a in matrices)
        _, (K, P) = jax.lax.scan(back, Qf, steps, reverse=True)
        return TimeVaryingLQR(K, jnp.concatenate([P, Qf[None]]))

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
    Qf: ArrayLike | None = None, N: ArrayLike | None = None, *, varying: str = "",
) -> TimeVaryingLQR:  # fmt: skip
    """Minimise x[T]ᵀQf x[T] + Σ_{t<T} xᵀQx + uᵀRu + 2xᵀNu for x[t+1] = Ax[t] + Bu[t].

    Args:
        A, B, Q, R, N: as in :func:`dlqr`; those named in ``varying`` have a time axis ``[..., T, rows, columns]``.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; Q if left out, the last one if Q varies.
        varying: letters of the arguments that change with time, such as ``"AB"``.

    Returns:
        :class:`TimeVaryingLQR`: u[t] = −K[t] x[t].

    Raises:
        ValueError: bad arguments.

    Source: Anderson and Moore (1990), eqs. (2.4-2)-(2.4-4).

    >>> control.finite_horizon([[1.0]], [[1.0]], [[0.0]], [[1.0]], 2, Qf=[[1.0]]).K[:, 0, 0].tolist()
    [0.3333333333333333, 0.5]
    """
    whole("num_steps", num_steps)
    given = {"A": A, "B": B, "Q": Q, "R": R} | ({} if N is None else {"N": N})
    return _solve(_checked(given, num_steps, varying, Qf), num_steps, varying)
