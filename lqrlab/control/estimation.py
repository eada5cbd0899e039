"""State estimators as duals of regulators, and output feedback."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Complex, Float

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.compute.checks import choice, flag
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.stability_margins import Margins, margins
from lqrlab.control.discretization import compiled
from lqrlab.control.regulator import LQR, dlqr, lqr
from lqrlab.control.state_space import StateSpace


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
        M: in discrete time the gain of the filter form, x̂[t|t] = x̂[t|t−1] + M (y[t] − Cx̂[t|t−1]); else None.
    """

    L: Float[Array, "*batch n p"]
    P: Float[Array, "*batch n n"]
    residual: Float[Array, "*batch"]
    stabilizing: Bool[Array, "*batch"]
    dual: LQR
    M: Float[Array, "*batch n p"] | None = None

    @property
    def poles(self) -> Complex[Array, "*batch n"]:
        """Eigenvalues of A − LC ``[..., n]``."""
        return self.dual.poles

    def __iter__(self) -> Iterator[Array]:
        return iter((self.L, self.P, self.poles, self.residual, self.stabilizing))


@jax.jit
def _filter_gain(P: Array, C: Array, V: Array) -> Array:
    P, C, V = matrix_checks.together(P, C, V)
    return linalg.solve_many(C @ P @ C.mT + V, C @ P).mT


def _filter(
    design: Callable[..., LQR], A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike, S: ArrayLike | None
) -> Estimator:
    """The filter that is dual to the regulator of Aᵀ, Cᵀ with the weights W, V, S."""
    A, C = matrix_checks.matrices(A=(A, "nn"), C=(C, "pn"))
    W, V = (matrix_checks.real(name, a) for name, a in (("W", W), ("V", V)))
    try:
        dual = design(A.mT, C.mT, W, V, S)
    except ValueError as error:
        raise ValueError(
            f"in the dual regulator problem (A → Aᵀ, B → Cᵀ, Q → W, R → V, N → S): {error}. There 'not stabilizable' "
            "means that no measurement shows the mode, 'not detectable' that no noise drives it"
        ) from error
    M = _filter_gain(dual.P, C, V.astype(C.dtype)) if design is dlqr else None
    return Estimator(dual.K.mT, dual.P, dual.residual, dual.stabilizing, dual, M)


def lqe(A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike, S: ArrayLike | None = None) -> Estimator:
    """The stationary Kalman-Bucy filter of ẋ = Ax + Bu + w, y = Cx + v.

    Args:
        A: ``[..., n, n]`` [1/s].
        C: ``[..., p, n]``.
        W: intensity of the white noise w ``[..., n, n]``, ≥ 0.
        V: intensity of v ``[..., p, p]``, > 0.
        S: cross intensity of w and v ``[..., n, p]``, E[w vᵀ]; zero if left out.

    Raises:
        ValueError: bad arguments, or an unstable mode that is not seen; named as in the dual regulator.

    Source: Anderson and Moore (1990), section 7.2.

    >>> control.lqe([[0.0]], [[1.0]], [[4.0]], [[1.0]]).L
    Array([[2.]], dtype=float64)
    """
    return _filter(lqr, A, C, W, V, S)


def dlqe(A: ArrayLike, C: ArrayLike, W: ArrayLike, V: ArrayLike, S: ArrayLike | None = None) -> Estimator:
    """The stationary Kalman filter of x[t+1] = Ax[t] + Bu[t] + w[t], y[t] = Cx[t] + v[t].

    Its predictor form has the gain L, its filter form M. Arguments as in :func:`lqe`, with covariances for
    intensities; that of a continuous disturbance over a sample is :func:`sampled_noise`.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Filtering (1979), section 4.4.
    """
    return _filter(dlqr, A, C, W, V, S)


def sampled_noise(A: ArrayLike, W: ArrayLike, dt: ArrayLike) -> Float[Array, "*batch n n"]:
    """Covariance added to ẋ = Ax + w in a sample time by white noise of intensity W: ∫ exp(As) W exp(Aᵀs) ds.

    Args:
        A, W: ``[..., n, n]``.
        dt: sample time [s], scalar or with the leading axes.

    Source: C. F. Van Loan, IEEE Trans. Autom. Control 23 (1978), theorem 1.

    >>> round(float(control.sampled_noise([[0.0]], [[2.0]], 0.1)[0, 0]), 12)
    0.2
    """
    A, W = matrix_checks.matrices(A=(A, "nn"), W=(W, "nn"))
    matrix_checks.weight("W", W)
    none = jnp.zeros((A.shape[-1], 1), A.dtype)
    return compiled(A.mT, none, W, jnp.eye(1, dtype=A.dtype), none, matrix_checks.sample_time(dt, A.dtype, A, W)).Q


@pytree
@dataclasses.dataclass(frozen=True)
class LQG:
    """Output feedback: z' = Az + By, u = Cz + Dy, where z' is the derivative or the next state.

    In predictor form u = −Kz, D = 0. In filter form (discrete) the newest y counts already: u = −Kz − J (y − Cz).

    Attributes:
        A: A − LC − B(K − JC).
        B: L − BJ.
        C: −(K − JC).
        D: −J.
        regulator: :class:`LQR` of the state.
        estimator: :class:`Estimator` of the state.
        plant: its A, B, C.
        discrete: whether z' is the next state.
    """

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n p"]
    C: Float[Array, "*batch m n"]
    D: Float[Array, "*batch m p"]
    regulator: LQR
    estimator: Estimator
    plant: tuple[Array, Array, Array]
    discrete: bool = dataclasses.field(metadata={"static": True})

    def controller(self, dt: ArrayLike | None = None) -> StateSpace:
        """A, B, C, D as one value; ``dt`` [s] of a discrete design."""
        matrix_checks.own_time(dt, discrete=self.discrete)
        return StateSpace(self.A, self.B, self.C, self.D, dt)

    def loop(self, at: str = "input") -> tuple[Array, Array, Array]:
        """The opened loop as ``(A, B, K)``, closed by u = −Kx: what :func:`margins` and :func:`sensitivity` take.

        Args:
            at: where it is opened, at the plant's ``"input"`` or at its ``"output"``.
        """
        choice("at", at, ("input", "output"))
        A, B, C = self.plant
        zero = jnp.zeros_like(self.A)
        if at == "input":
            inside = jnp.block([[A, zero], [self.B @ C, self.A]])
            port = jnp.concatenate([B, jnp.zeros_like(B)], axis=-2)
            return inside, port, -jnp.concatenate([self.D @ C, self.C], axis=-1)
        inside = jnp.block([[A, B @ self.C], [zero, self.A]])
        port = jnp.concatenate([B @ self.D, self.B], axis=-2)
        return inside, port, -jnp.concatenate([C, jnp.zeros_like(C)], axis=-1)

    def margins(self, dt: float | None = None, at: str = "input") -> list[Margins]:
        """:func:`margins` at each input (or output) of one design; ``dt`` [s] of a discrete one.

        >>> design = control.lqg([[0.0]], [[1.0]], [[1.0]], [[1.0]], [[1.0]], [[1.0]], [[1.0]])
        >>> round(design.margins()[0].gain_up, 6)  # the loop gain is 1 / (s (s + 2))
        inf
        """
        matrix_checks.own_time(dt, discrete=self.discrete)
        return margins(*self.loop(at), dt)


def lqg(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    W: ArrayLike,
    V: ArrayLike,
    N: ArrayLike | None = None,
    S: ArrayLike | None = None,
    *,
    discrete: bool = False,
    form: str = "predictor",
) -> LQG:
    """The linear-quadratic-Gaussian controller: the regulator of Q, R, N fed by the estimator of W, V, S.

    Args:
        A, B, Q, R, N: as in :func:`lqr` (or :func:`dlqr` if ``discrete``).
        C, W, V, S: as in :func:`lqe` (or :func:`dlqe`).
        discrete: of x[t+1] = Ax[t] + Bu[t] instead of ẋ = Ax + Bu.
        form: ``"predictor"``: u[t] follows from y until t − 1, which leaves a sample time for its computation; or
            ``"filter"``: y[t] too, which costs less. A continuous design has one form.

    The policy for :func:`lqrlab.simulation.rollout` is :func:`lqrlab.simulation.estimated`.

    Source: Anderson and Moore (1990), section 8.1; the filter form in G. F. Franklin, J. D. Powell and
    M. Workman, Digital Control of Dynamic Systems, 3rd ed. (1998), section 8.2.4 (current estimators).
    """
    flag("discrete", discrete)
    choice("form", form, ("predictor", "filter") if discrete else ("predictor",))
    A, B, C = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    regulator = (dlqr if discrete else lqr)(A, B, Q, R, N)
    estimator = (dlqe if discrete else lqe)(A, C, W, V, S)
    K, P, L, M = regulator.K, regulator.P, estimator.L, estimator.M
    M = L if M is None else M

    def fed_through(A: Array, B: Array, R: Array, K: Array, P: Array, L: Array, M: Array) -> Array:
        # of a disturbance that comes with the noise of the sensors y tells something too: its mean is (L − AM)(y − Cz)
        return K @ M + linalg.solve(R + B.T @ P @ B, B.T @ P @ (L - A @ M))

    R = jnp.asarray(R, K.dtype)
    J = broadcast(fed_through, *((a, 2) for a in (A, B, R, K, P, L, M)))
    J = J if form == "filter" else jnp.zeros_like(J)
    A, B, C, K, L = (jnp.broadcast_to(a, (*J.shape[:-2], *a.shape[-2:])) for a in (A, B, C, K, L))
    K = K - J @ C
    return LQG(A - L @ C - B @ K, L - B @ J, -K, -J, regulator, estimator, (A, B, C), discrete)
