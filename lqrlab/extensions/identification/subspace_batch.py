"""Linear models of many records at once, in one compiled program."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import checks

_FLOOR = 1e-14
"""Variance, relative, that is added to all signals."""


class Realisations(NamedTuple):
    """Models x[t+1] = A x + B u, y = C x, in deviations from each record's mean."""

    A: Float[Array, "N n n"]
    B: Float[Array, "N n m"]
    C: Float[Array, "N p n"]
    singular_values: Float[Array, "N s"]


def subspaces(us: ArrayLike, ys: ArrayLike, order: int, *, horizon: int | None = None) -> Realisations:
    """Models as :func:`subspace` finds them (oblique projection, no feedthrough), of a batch of records of one length.

    B is the one whose simulation, from an initial state of each record's own, misses least; the plants have to be
    stable. Nothing is checked of single records: look at ``singular_values``, and at how the models simulate.

    Args:
        us, ys: inputs ``[N, T, m]`` and outputs ``[N, T, p]``.
        order: number of states.
        horizon: block rows of the past and of the future; about twice the order if left out.

    >>> found = identification.subspaces(np.zeros((3, 100, 1)), np.zeros((3, 100, 2)), 2)
    >>> found.A.shape
    (3, 2, 2)
    """
    us, ys = jnp.asarray(us, float), jnp.asarray(ys, float)
    if us.ndim != 3 or ys.ndim != 3 or us.shape[:2] != ys.shape[:2]:
        raise ValueError(
            f"us, ys: expected [N, T, m] and [N, T, p] of the same N and T, but found {us.shape}, {ys.shape}"
        )
    p, m = ys.shape[-1], us.shape[-1]
    least = -(-checks.whole("order", order) // p) + 1
    i = checks.whole("horizon", max(2 * least, 10) if horizon is None else horizon, least)
    needed = 2 * i * (m + p) + 2 * i
    if us.shape[1] < needed:
        raise ValueError(
            f"us: order {order} with horizon {i} needs {needed} samples, but found {us.shape[1]}; record longer"
        )
    return _all(us, ys, order, i)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _all(us: Array, ys: Array, n: int, i: int) -> Realisations:
    # not vmap: on two cores jaxlib's batched LAPACK calls can wait for each other for ever
    return jax.lax.map(lambda record: _one(record[0], record[1], n, i), (us, ys))


def _one(us: Array, ys: Array, n: int, i: int) -> Realisations:
    """The model of one record."""
    (T, m), p = us.shape, ys.shape[1]
    us, ys = (a - a.mean(0, keepdims=True) for a in (us, ys))
    U, Y = _hankel(us, 2 * i), _hankel(ys, 2 * i)
    rows = jnp.concatenate([U[:, i * m :], U[:, : i * m], Y[:, : i * p], Y[:, i * p :]], 1)
    # the covariance's factor takes a tenth of the time of the rows' own, which keeps what is below 1e-7 of them
    size = jnp.sqrt(jnp.mean(rows**2, 0, keepdims=True)) + 1e-300
    rows = rows / size
    L = jnp.linalg.cholesky(rows.T @ rows / len(rows) + _FLOOR * jnp.eye(rows.shape[1])) * size.T
    a, b = i * m, i * m + i * (m + p)
    past = jax.scipy.linalg.solve_triangular(L[a:b, a:b], L[b:, a:b].T, lower=True, trans=1).T
    left, values, _ = jnp.linalg.svd(past @ L[a:b, :b], full_matrices=False)
    gamma = left[:, :n] * jnp.sqrt(values[None, :n])
    C, A = gamma[:p], jnp.linalg.pinv(gamma[:-p]) @ gamma[p:]

    # outputs from each unit state, C Aᵗ, and with them those of each input into each state alone
    free = _powers(C, A, T)
    spectra = (jnp.fft.rfft(a, 2 * T, 0) for a in (free, us))
    driven = jnp.fft.irfft(jnp.einsum("tpn,tm->tpnm", *spectra), axis=0)[: T - 1]
    driven = jnp.pad(driven, ((1, 0), (0, 0), (0, 0), (0, 0)))
    seen = jnp.concatenate([driven.reshape(T * p, -1), free.reshape(T * p, -1)], 1)
    joint = jnp.linalg.qr(jnp.concatenate([seen, ys.reshape(-1, 1)], 1), mode="r")
    found = jnp.linalg.pinv(joint[:-1, :-1]) @ joint[:-1, -1]
    return Realisations(A, found[: n * m].reshape(n, m), C, values)


def _powers(C: Float[Array, "p n"], A: Float[Array, "n n"], num: int) -> Float[Array, "num p n"]:
    """C, CA, CA², …, each round twice as many."""
    made, power = C[None], A
    while len(made) < num:
        made, power = jnp.concatenate([made, made @ power]), power @ power
    return made[:num]


def _hankel(a: Float[Array, "T k"], rows: int) -> Float[Array, "N rows_k"]:
    """Row t holds a[t], …, a[t + rows − 1]."""
    at = jnp.arange(len(a) - rows + 1)[:, None] + jnp.arange(rows)[None]
    return a[at].reshape(len(at), -1)
