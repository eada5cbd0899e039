"""Pole placement on the host: gains that give a loop the poles asked for."""

import jax.numpy as jnp
import numpy as np
import scipy.signal
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import checks


def place(A: ArrayLike, B: ArrayLike, poles: ArrayLike) -> Float[Array, "m n"]:
    """K ``[m, n]`` that gives A − BK the ``poles`` ``[n]``; one problem, on the host.

    Raises:
        ValueError: bad shapes, a pole without its conjugate, more equal poles than inputs, an uncontrollable mode.

    Source: A. L. Tits and Y. Yang, IEEE Trans. Autom. Control 41 (1996), as in ``scipy.signal.place_poles``.

    >>> control.place([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], [-1.0, -2.0])
    Array([[2., 3.]], dtype=float64)
    """
    a, b = checks.host_matrices("place", A=(A, "nn"), B=(B, "nm"))
    checks.on_host("place", poles)
    wanted = np.atleast_1d(np.asarray(poles, complex))
    if wanted.shape != (len(a),):
        raise ValueError(f"poles: expected n poles, {len(a)}, but found shape {wanted.shape}")
    try:
        K = scipy.signal.place_poles(a, b, wanted).gain_matrix
    except ValueError as error:
        raise ValueError(f"poles: {error}") from error
    reached = np.linalg.eigvals(a - b @ K)
    far = max(np.abs(reached - w).min() for w in wanted)
    if not far < 1e-3 * max(1.0, np.abs(wanted).max()):
        raise ValueError(
            f"poles: the nearest that was reached is {far:.2g} away from one of them: a mode is uncontrollable "
            "(see diagnose) or the problem is very badly conditioned"
        )
    return jnp.asarray(K)
