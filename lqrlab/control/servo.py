"""Regulators that bring outputs to a set-point: integral action, feedforward, placed poles."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import linalg, pytree
from lqrlab.compute.checks import flag
from lqrlab.control import matrix_checks
from lqrlab.control.regulator import LQR, dlqr, lqr
from lqrlab.control.state_space import StateSpace


@pytree
@dataclasses.dataclass(frozen=True)
class Integral:
    """u = −Kx − Ki z with z' the integral (or sum) of y − r.

    Attributes:
        K: gain on the state.
        Ki: gain on the integrals.
        design: :class:`LQR` of the state (x, z).
        C: the outputs that are held.
        discrete: whether z is a sum.
    """

    K: Float[Array, "*batch m n"]
    Ki: Float[Array, "*batch m p"]
    design: LQR
    C: Float[Array, "*batch p n"]
    discrete: bool = dataclasses.field(metadata={"static": True})

    def controller(self, dt: ArrayLike | None = None) -> StateSpace:
        """Gain and integrals as u = K(z) x; ``dt`` [s] of a discrete design."""
        matrix_checks.own_time(dt, discrete=self.discrete)
        p = self.C.shape[-2]
        memory = np.broadcast_to(self.discrete * np.eye(p), (*self.C.shape[:-1], p))
        return StateSpace(memory, self.C, -self.Ki, -self.K, dt)


def _zeros(like: Array, rows: int, columns: int) -> Array:
    return jnp.zeros((*like.shape[:-2], rows, columns), like.dtype)


def lqi(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    Qi: ArrayLike,
    N: ArrayLike | None = None,
    *,
    discrete: bool = False,
) -> Integral:
    """A regulator with integral action: constant disturbances leave no error in y = Cx.

    Args:
        A, B, Q, R, N: as in :func:`lqr` (or :func:`dlqr` if ``discrete``).
        C: the outputs to be held ``[..., p, n]``, p ≤ m.
        Qi: weight of the integrals ``[..., p, p]``, > 0.
        discrete: sum the error step by step instead of integrating it.

    The policy for :func:`lqrlab.simulation.rollout` is :func:`lqrlab.simulation.integrating`.

    Raises:
        ValueError: bad arguments, or a plant that cannot hold y: a transmission zero at the origin.

    Source: H. Kwakernaak and R. Sivan, Linear Optimal Control Systems (1972), section 3.7.

    >>> control.lqi([[0.0]], [[1.0]], [[1.0]], [[2.0]], [[1.0]], [[1.0]]).Ki
    Array([[1.]], dtype=float64)
    """
    A, B, C, Q, Qi = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"), Q=(Q, "nn"), Qi=(Qi, "pp"))
    flag("discrete", discrete)
    n, m, p = A.shape[-1], B.shape[-1], C.shape[-2]
    if p > m:
        raise ValueError(f"C: {m} inputs cannot hold {p} outputs at will; choose at most {m}")
    memory = jnp.broadcast_to(jnp.eye(p, dtype=A.dtype), Qi.shape) if discrete else jnp.zeros_like(Qi)
    dynamics = jnp.block([[A, _zeros(A, n, p)], [C, memory]])
    inputs = jnp.block([[B], [_zeros(B, p, m)]])
    weight = jnp.block([[Q, _zeros(Q, n, p)], [_zeros(Q, p, n), Qi]])
    cross = None if N is None else jnp.block([[jnp.asarray(matrix_checks.real("N", N), A.dtype)], [_zeros(B, p, m)]])
    try:
        design = (dlqr if discrete else lqr)(dynamics, inputs, weight, R, cross)
    except ValueError as error:  # of one problem, outside a trace; of an integral it speaks as of a state after the n
        if A.ndim == B.ndim == C.ndim == 2 and (
            lost := _not_held(np.asarray(A), np.asarray(B), np.asarray(C), discrete)
        ):
            raise ValueError(
                f"C: output {', '.join(map(str, lost))} cannot be held: constant inputs do not move it, or not apart "
                "from the others (a transmission zero at the origin); leave it out, or choose another one"
            ) from error
        raise
    return Integral(design.K[..., :n], design.K[..., n:], design, C, discrete)


def _not_held(A: np.ndarray, B: np.ndarray, C: np.ndarray, discrete: bool) -> list[int]:
    """Outputs of which a combination is the same at rest whatever the input."""
    rows = np.block([[A - discrete * np.eye(len(A)), B], [C, np.zeros((len(C), B.shape[1]))]])
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    left, sizes, _ = np.linalg.svd(rows / np.where(size > 0, size, 1.0))
    last = np.abs(left[len(A) :, -1])
    return list(map(int, np.flatnonzero(last > 0.1 * last.max()))) if sizes[-1] < 1e-9 < last.max() else []


def feedforward(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False
) -> tuple[Float[Array, "*batch n m"], Float[Array, "*batch m m"]]:
    """The state and the input that hold y = Cx = r: x = Nx r, u = Nu r; track with u = Nu r − K(x − Nx r).

    Args:
        A, B: ``[..., n, n]``, ``[..., n, m]``.
        C: ``[..., m, n]``: as many outputs as inputs.
        discrete: of x[t+1] = Ax[t] + Bu[t] instead of ẋ = Ax + Bu.

    Returns:
        ``(Nx [..., n, m], Nu [..., m, m])``; not finite where a transmission zero lies at the origin (at 1 if
        discrete) but for rounding: no constant input holds such an output.

    Source: G. F. Franklin, J. D. Powell, M. Workman, Digital Control of Dynamic Systems (1998), section 8.4.

    >>> Nx, Nu = control.feedforward([[-2.0]], [[1.0]], [[1.0]])
    >>> float(Nx[0, 0]), float(Nu[0, 0])
    (1.0, 2.0)
    """
    A, B, C = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    flag("discrete", discrete)
    n, m = B.shape[-2:]
    if C.shape[-2:] != (m, n):
        raise ValueError(f"C: expected shape ({m}, {n}), as many outputs as inputs, but found {C.shape[-2:]}")
    drift = A - jnp.broadcast_to(jnp.eye(n, dtype=A.dtype), A.shape) if discrete else A
    rest = jnp.block([[drift, B], [C, _zeros(A, m, m)]])
    inverse = linalg.solve_many(rest, jnp.broadcast_to(jnp.eye(n + m, dtype=A.dtype), rest.shape))
    changed = jnp.sum(jnp.abs(inverse * rest.mT), axis=-1).max(-1)  # by rounding, in its units, whatever those are
    lost = changed > float(jnp.finfo(A.dtype).eps) ** -0.8
    both = jnp.where(lost[..., None, None], jnp.nan, inverse[..., n:])
    return both[..., :n, :], both[..., n:, :]


def _apart(poles: np.ndarray, wanted: np.ndarray) -> float:
    """The largest distance of the poles from the wanted ones, each taken for one of them."""
    size = np.abs(poles[:, None] - wanted)
    return float(size[scipy.optimize.linear_sum_assignment(size)].max())


def place(A: ArrayLike, B: ArrayLike, poles: ArrayLike) -> Float[Array, "m n"]:
    """K ``[m, n]`` that gives A − BK the ``poles`` ``[n]``; one problem, on the host.

    Raises:
        ValueError: bad shapes, a pole without its conjugate, more equal poles than inputs, an uncontrollable mode.

    Source: A. L. Tits and Y. Yang, IEEE Trans. Autom. Control 41 (1996), as in ``scipy.signal.place_poles``.

    >>> control.place([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], [-1.0, -2.0])
    Array([[2., 3.]], dtype=float64)
    """
    a, b = matrix_checks.host_matrices("place", A=(A, "nn"), B=(B, "nm"))
    matrix_checks.on_host("place", poles)
    wanted = np.atleast_1d(np.asarray(matrix_checks.real("poles", poles, or_complex=True), complex))
    if wanted.shape != (len(a),):
        raise ValueError(f"poles: expected n poles, {len(a)}, but found shape {wanted.shape}")
    try:
        K = scipy.signal.place_poles(a, b, wanted).gain_matrix
    except ValueError as error:
        raise ValueError(f"poles: {error}") from error
    far, moved = (_apart(np.linalg.eigvals(x), wanted) for x in (a - b @ K, a))
    if not far <= 1e-3 * moved + 1e-9 * np.abs(wanted).max():
        raise ValueError(
            f"poles: the nearest that was reached is {far:.2g} away from one of them: a mode is uncontrollable "
            "(see diagnose) or the problem is very badly conditioned"
        )
    return jnp.asarray(K)
