"""What a loop costs and passes on: noise, norms, the price of sampling; bridges to python-control."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.control import checks
from lqrlab.control.analysis.structure import gram
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.regulator import lqr, lqrd


def covariance(A: ArrayLike, W: ArrayLike, *, discrete: bool = False) -> Array:
    """Stationary covariance of x' = Ax + w; batched, differentiable.

    Args:
        A: ``[..., n, n]``, stable: usually a closed loop.
        W: intensity of the white noise w (covariance if ``discrete``) ``[..., n, n]``.

    Returns:
        ``[..., n, n]``; NaN where A is unstable.
    """
    return (dlyap if discrete else lyap)(A, W)


def noise_cost(P: ArrayLike, W: ArrayLike) -> Array:
    """Mean cost that noise of intensity (discrete: covariance) W keeps up, a second (a step) ``[...]``: tr(PW).

    Args:
        P: cost to go of a regulator ``[..., n, n]``.
        W: ``[..., n, n]``.
    """
    return jnp.sum(jnp.asarray(P) * jnp.swapaxes(jnp.asarray(W), -1, -2), axis=(-1, -2))


def h2_norm(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False) -> Array:
    """H2 norm of x' = Ax + Bw, y = Cx ``[...]``: the root mean square of y under unit white noise; differentiable.

    NaN where A is unstable.
    """
    A, B, C = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    return jnp.sqrt(
        jnp.trace(C @ gram(A, B, discrete=discrete) @ jnp.swapaxes(C, -1, -2), axis1=-1, axis2=-2)
    )


def hinf_norm(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> tuple[float, float]:
    """H∞ norm of one system, on the host: the largest gain over all frequencies, and where it is [rad/s].

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Raises:
        ValueError: the system is not stable, so that its gain has no bound.
    """
    import control as python_control

    checks.finite("A", np.asarray(A))
    modes = np.linalg.eigvals(np.asarray(A))
    if not (modes.real.max() < 0 if dt is None else np.abs(modes).max() < 1):
        raise ValueError("A: the system is not stable, so its H∞ norm is infinite")
    gain, frequency = python_control.linfnorm(to_statespace(A, B, C, D, dt))
    return float(gain), float(frequency)


def sampling_cost(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike) -> Array:
    """How much more the sampled-data optimum costs than the continuous one, from initial states of every direction.

    Args:
        A, B, Q, R: as in :func:`lqr`.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        tr(P_sampled)/tr(P) − 1 ``[...]``, ≥ 0.
    """
    sampled, continuous = (
        jnp.trace(d.P, axis1=-2, axis2=-1) for d in (lqrd(A, B, Q, R, dt), lqr(A, B, Q, R))
    )
    return sampled / continuous - 1


def to_statespace(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike | None = None,
    D: ArrayLike | None = None,
    dt: float | None = None,
) -> Any:
    """A ``control.StateSpace`` of one system; C is the identity and D zero if left out, continuous without dt."""
    import control as python_control

    A, B = np.asarray(A, float), np.asarray(B, float)
    C = np.eye(len(A)) if C is None else np.asarray(C, float)
    D = np.zeros((len(C), B.shape[1])) if D is None else np.asarray(D, float)
    return python_control.ss(A, B, C, D, *(() if dt is None else (dt,)))


def from_statespace(system: Any) -> tuple[Array, Array, Array, Array, float | None]:
    """``(A, B, C, D, dt)`` of a ``control.StateSpace``; dt is None for a continuous system.

    Raises:
        ValueError: a discrete system whose sample time is not given.
    """
    if system.dt is True:
        raise ValueError(
            "system: expected a sample time in seconds, but found dt=True, 'discrete, unspecified'"
        )
    matrices = (jnp.asarray(getattr(system, name), float) for name in "ABCD")
    A, B, C, D = matrices
    return A, B, C, D, float(system.dt) if system.dt else None
