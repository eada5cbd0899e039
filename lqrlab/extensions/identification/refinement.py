"""Refinement of a linear model by prediction error: the gradient goes through the filter."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, require_excitation
from lqrlab.extensions.identification.model import LinearModel, placed

FOCUS = ("prediction", "simulation")


def refine(model: LinearModel, log: Log, *, focus: str = "prediction", iterations: int = 30) -> LinearModel:
    """Prediction-error refinement of a model, with the covariance of its entries.

    All entries of A, B, C, D, K, an initial state for each record and the outputs' mean are free: SciPy's trust region,
    with exact Jacobians from JAX. Coordinates of the state that no data can tell stay where they are.

    Args:
        model: to start from, as :func:`subspace` finds it.
        log: the record or records.
        focus: ``"prediction"`` (one step ahead; K free) or ``"simulation"`` (K = 0: what is best for step responses).
        iterations: at most so many evaluations.

    Raises:
        ValueError: signals that are not the model's, no excitation, fewer samples than unknowns.

    Source: L. Ljung, System Identification, 2nd ed. (1999), sections 7.2, 9.
    """
    checks.instance("model", model, LinearModel, "a linear model, as identification.subspace finds")
    checks.choice("focus", focus, FOCUS)
    checks.whole("iterations", iterations)
    model.check(log)
    n, m, p = model.order, len(model.inputs), len(model.outputs)
    given = {name: getattr(model, name) for name in ("A", "B", "C", "D", "K")}
    free = [name for name in given if (name != "K" or focus == "prediction") and (name != "D" or np.any(model.D))]
    start = model if focus == "prediction" else dataclasses.replace(model, K=np.zeros((n, p)))
    fixed = {name: jnp.asarray(getattr(start, name)) for name in given}
    rows = np.arange(len(log))
    # which record a row is of, and if it is the first of it: all records are one scan, however many samples were lost
    of, first = np.searchsorted(log.first, rows, "right") - 1, np.isin(rows, log.first)
    samples = tuple(jnp.asarray(a) for a in (log.us - model.u_mean, log.ys, of, first))
    ys, begin = start.run(log, start.K)
    z0 = np.concatenate([*(given[name].ravel() for name in free), begin.ravel(), model.y_mean])
    require_excitation(log, max(n + m, -(-(len(z0) - n * n) // p)))  # the state's coordinates are free
    weight = np.linalg.inv(np.linalg.cholesky(_covariance(log.ys - ys)))
    for _ in range(2):  # once with the weights of the start, once with those of what was found
        args = (fixed, samples, jnp.asarray(weight), tuple(free), (n, m, p))
        how: dict[str, Any] = {"x_scale": "jac", "max_nfev": iterations, "ftol": 1e-7, "args": args}
        missed, slopes = (functools.partial(_bounded, f) for f in (_missed, _slopes))
        try:
            found = scipy.optimize.least_squares(missed, z0, slopes, **how)
        except np.linalg.LinAlgError:  # LAPACK gave up on the decomposition of a Jacobian; MINPACK needs none
            found = scipy.optimize.least_squares(missed, z0, slopes, method="lm", **how)
        z0 = found.x
        e = np.linalg.solve(weight, found.fun.reshape(-1, p).T).T
        weight = np.linalg.inv(np.linalg.cholesky(_covariance(e)))
    A, B, C, D, K, _, y_mean = _unpacked(jnp.asarray(z0), fixed, tuple(free), (n, m, p))
    made: dict[str, Any] = {name: np.asarray(a) for name, a in zip(given, (A, B, C, D, K))}
    if focus == "simulation":
        made["K"] = np.zeros((n, p))
    covariance = _of_jacobian(found.jac)
    return dataclasses.replace(
        model, **made, y_mean=np.asarray(y_mean), noise=_covariance(e), covariance=_placed(covariance, given, free)
    )


def _bounded(function: Callable[..., Array], z: np.ndarray, *args: Any) -> np.ndarray:
    """For SciPy: a predictor that is unstable on the way misses much, but not infinitely much."""
    return np.clip(np.nan_to_num(np.asarray(function(jnp.asarray(z), *args)), nan=1e9), -1e9, 1e9)


def _of_jacobian(J: np.ndarray) -> np.ndarray:
    """(JᵀJ)⁻¹, zero along what J does not see: coordinates of the state."""
    size = np.maximum(np.linalg.norm(J, axis=0), 1e-300)
    _, s, V = np.linalg.svd(J / size, full_matrices=False)
    inverse = np.where(s > 1e-9 * s[0], 1 / np.maximum(s, 1e-300), 0.0)
    half = (V.T * inverse) / size[:, None]
    return half @ half.T


def _covariance(e: np.ndarray) -> np.ndarray:
    e = e.reshape(len(e), -1)
    S = e.T @ e / len(e)
    return S + 1e-12 * np.trace(S) * np.eye(len(S)) + 1e-300 * np.eye(len(S))


def _unpacked(
    z: Array, fixed: dict[str, Array], free: tuple[str, ...], sizes: tuple[int, int, int]
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """A, B, C, D, K, initial states [records, n], the outputs' mean."""
    n, _, p = sizes
    at, named = 0, dict(fixed)
    for name in free:
        size = fixed[name].size
        named[name] = z[at : at + size].reshape(fixed[name].shape)
        at += size
    return (*(named[name] for name in ("A", "B", "C", "D", "K")), z[at:-p].reshape(-1, n), z[-p:])  # type: ignore[return-value]


@functools.partial(jax.jit, static_argnames=("free", "sizes"))
def _missed(
    z: Array,
    fixed: dict[str, Array],
    samples: tuple[Array, Array, Array, Array],
    weight: Array,
    free: tuple[str, ...],
    sizes: tuple[int, int, int],
) -> Float[Array, " k"]:
    """Innovations of samples (inputs, outputs, record, first of it), weighted by ``weight``, one after the other."""
    A, B, C, D, K, starts, mean = _unpacked(z, fixed, free, sizes)

    def step(x: Array, sample: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        u, y, record, first = sample
        x = jnp.where(first, starts[record], x)
        e = y - mean - C @ x - D @ u
        return A @ x + B @ u + K @ e, weight @ e

    return jax.lax.scan(step, starts[0], samples)[1].ravel()


_slopes = jax.jit(jax.jacfwd(_missed), static_argnums=(4, 5))


def _placed(covariance: np.ndarray, given: dict[str, np.ndarray], free: list[str]) -> np.ndarray:
    """The covariance of all of A, B, C, D, K: zero where an entry was not free."""
    at, index = 0, []
    for name, a in given.items():
        index += list(range(at, at + a.size)) if name in free else [-1] * a.size
        at += a.size if name in free else 0
    return placed(covariance, np.array(index))
