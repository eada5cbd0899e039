"""State estimators as duals of regulators, and output feedback."""

import dataclasses
from collections.abc import Callable, Iterator

from jaxtyping import Array, ArrayLike, Bool, Complex, Float

from lqrlab.compute import pytree
from lqrlab.control import checks
from lqrlab.control.regulator import LQR, dlqr, lqr


@pytree
@dataclasses.dataclass(frozen=True)
class Estimator:
    """A stationary Kalman filter; unpacks as ``L, P, poles, residual, stabilizing``.

    Attributes:
        L: gain: x̂' = Ax̂ + Bu + L(y − Cx̂), where x̂' is the derivative or the next state.
        P: covariance of the error; in discrete time of the prediction, before y is seen.
        residual: of the Riccati equation, relative.
        stabilizing: whether the error decays.
        dual: the regulator of (Aᵀ, Cᵀ) that it is.
    """

    L: Float[Array, "*batch n p"]
    P: Float[Array, "*batch n n"]
    residual: Float[Array, "*batch"]
    stabilizing: Bool[Array, "*batch"]
    dual: LQR

    @property
    def poles(self) -> Complex[Array, "*batch n"]:
        """Eigenvalues of A − LC ``[..., n]``."""
        return self.dual.poles

    def __iter__(self) -> Iterator[Array]:
        return iter((self.L, self.P, self.poles, self.residual, self.stabilizing))


def _filter(design: Callable[..., LQR], A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike) -> Estimator:
    """The filter that is dual to the regulator of Aᵀ, Cᵀ with the weights W, V."""
    A, C = checks.matrices(A=(A, "nn"), C=(C, "pn"))
    W, V = (checks.real(name, a) for name, a in (("W", W), ("V", V)))
    try:
        dual = design(A.mT, C.mT, W, V)
    except ValueError as error:
        raise ValueError(
            f"in the dual regulator problem (A → Aᵀ, B → Cᵀ, Q → W, R → V): {error}. There 'not stabilizable' means "
            "that no measurement shows the mode, 'not detectable' that no noise drives it"
        ) from error
    return Estimator(dual.K.mT, dual.P, dual.residual, dual.stabilizing, dual)


def lqe(A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike) -> Estimator:
    """The stationary Kalman-Bucy filter of ẋ = Ax + Bu + w, y = Cx + v.

    Args:
        A: ``[..., n, n]`` [1/s].
        C: ``[..., p, n]``.
        W: intensity of the white noise w ``[..., n, n]``, ≥ 0.
        V: intensity of v ``[..., p, p]``, > 0.

    Raises:
        ValueError: bad arguments, or an unstable mode that is not seen; named as in the dual regulator.

    Source: Anderson and Moore (1990), section 7.2.

    >>> control.lqe([[0.0]], [[1.0]], [[4.0]], [[1.0]]).L
    Array([[2.]], dtype=float64)
    """
    return _filter(lqr, A, C, W, V)


def dlqe(A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike) -> Estimator:
    """The stationary one-step predictor of x[t+1] = Ax[t] + Bu[t] + w[t], y[t] = Cx[t] + v[t].

    Arguments as in :func:`lqe`, with covariances for intensities.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Filtering (1979), section 4.4.
    """
    return _filter(dlqr, A, C, W, V)


@pytree
@dataclasses.dataclass(frozen=True)
class LQG:
    """Output feedback: z' = Az + By, u = Cz, where z' is the derivative or the next state.

    Attributes:
        A: A − BK − LC.
        B: L.
        C: −K.
        regulator: :class:`LQR` of the state.
        estimator: :class:`Estimator` of the state.
    """

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n p"]
    C: Float[Array, "*batch m n"]
    regulator: LQR
    estimator: Estimator


def lqg(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, Q: ArrayLike, R: ArrayLike, W: ArrayLike, V: ArrayLike,
    N: ArrayLike | None = None, *, discrete: bool = False,
) -> LQG:  # fmt: skip
    """The linear-quadratic-Gaussian controller: the regulator of Q, R, N fed by the estimator of W, V.

    Args:
        A, B, Q, R, N: as in :func:`lqr` (or :func:`dlqr` if ``discrete``).
        C, W, V: as in :func:`lqe` (or :func:`dlqe`).
        discrete: of x[t+1] = Ax[t] + Bu[t] instead of ẋ = Ax + Bu.

    Source: Anderson and Moore (1990), section 8.1.
    """
    A, B, C = checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    regulator = (dlqr if discrete else lqr)(A, B, Q, R, N)
    estimator = (dlqe if discrete else lqe)(A, C, W, V)
    inner = A - B @ regulator.K - estimator.L @ C
    return LQG(inner, estimator.L, -regulator.K, regulator, estimator)
