"""System norms: H2 and H∞."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import checks
from lqrlab.control.analysis.controllability import gram
from lqrlab.control.analysis.statespace import to_statespace


def h2_norm(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False) -> Float[Array, "*batch"]:
    """H2 norm of x' = Ax + Bw, y = Cx ``[...]``: the root mean square of y under unit white noise; differentiable.

    NaN where A is unstable.

    >>> control.h2_norm([[-0.5]], [[1.0]], [[2.0]])
    Array(2., dtype=float64)
    """
    A, B, C = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    return jnp.sqrt(jnp.trace(C @ gram(A, B, discrete=discrete) @ C.mT, axis1=-1, axis2=-2))


def hinf_norm(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> tuple[float, float]:
    """H∞ norm of one system, on the host: the largest gain over all frequencies, and where it is [rad/s].

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Raises:
        ValueError: the system is not stable, so that its gain has no bound.

    >>> control.hinf_norm([[-0.5]], [[1.0]], [[1.0]])  # 1 / (s + 0.5)
    (2.0, 0.0)
    """
    import control as python_control

    (a,) = checks.host_matrices("hinf_norm", A=(A, "nn"))
    if not stable(a, dt):
        raise ValueError("A: the system is not stable, so its H∞ norm is infinite")
    gain, frequency = python_control.linfnorm(to_statespace(A, B, C, D, dt))
    return float(gain), float(frequency)


def stable(A: np.ndarray, dt: float | None) -> bool:
    """Whether all modes of one system decay, on the host by its eigenvalues."""
    poles = np.linalg.eigvals(A)
    return bool(poles.real.max() < 0 if dt is None else np.abs(poles).max() < 1)
