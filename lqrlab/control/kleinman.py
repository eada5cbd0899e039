"""Better gains from a given one, by Newton's method on the discrete Riccati equation: policy iteration."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import checks as arguments
from lqrlab.compute import linalg
from lqrlab.compute.linalg import batch_last
from lqrlab.control import matrix_checks
from lqrlab.control.lyapunov import smith, solve_lyapunov, stage_weight
from lqrlab.control.regulator import LQR
from lqrlab.control.riccati.doubling import DoublingProblem, Solution

_DISCOUNTED = 24  # steps, at most; twelve were enough for every start tried on the catalogue
_MARGIN = 1e-3  # of a discounted loop's spectral radius: less, and the cost loses its digits
_ADDED = 1e-2  # to the state's weight while discounted, so that a mode that costs nothing is stabilised too


@batch_last.solver(2, 2, 2, 2, 2, 2)
def _improved(A: Array, B: Array, Q: Array, R: Array, N: Array, K: Array) -> Solution:
    """The next gain after K, the cost to go of K, and whether K is stabilizing; the batch on the last axis."""
    problem = DoublingProblem(A, B, Q, R, N)
    closed = A - batch_last.mul(B, K)
    stage = stage_weight(Q, R, N, K, mul=batch_last.mul, t=batch_last.t)
    P, reach = smith(batch_last.t(closed), stage, float(jnp.finfo(A.dtype).eps) ** 0.5 / 4)
    stable = reach < jnp.inf
    P = jnp.where(stable[None, None], batch_last.symmetric(P), jnp.nan)
    return problem.finished(P, stable, continuous=False)[0]


@jax.custom_jvp
def newton_step(A: Array, B: Array, Q: Array, R: Array, N: Array, K: Array) -> Solution:
    """One step from K ``[*batch, m, n]``, all equal leading axes: P is the cost to go of K, NaN where it has none.

    With F = A − BK and D = dF = dA − dB K − B dK the tangent of P solves dP = FᵀdP F + sym(FᵀP D) + dW, where W is
    the stage weight of K and sym(X) = X + Xᵀ; that of the next gain is as in the Riccati equation.
    """
    return _improved(A, B, Q, R, N, K)


@newton_step.defjvp
def _tangent(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Solution, Solution]:
    A, B, _, R, N, K = primals
    dA, dB, dQ, dR, dN, dK = tangents
    out = newton_step(*primals)
    P, after, S = out.P, out.closed, R + B.mT @ out.P @ B
    slope = (A - B @ K).mT @ P @ (dA - dB @ K - B @ dK) + (K.mT @ R - N) @ dK - dN @ K
    dP = solve_lyapunov((A - B @ K).mT, 2 * linalg.symmetric(slope) + dQ + K.mT @ dR @ K, continuous=False)
    dP = linalg.symmetric(dP)
    PD = B.mT @ P @ (dA - dB @ out.K)
    d_next = linalg.solve_many(S, dB.mT @ P @ after + B.mT @ dP @ after + PD + dN.mT - dR @ out.K)
    still = jnp.zeros_like(out.residual)
    return out, Solution(d_next, dP, dA - dB @ out.K - B @ d_next, *[still] * 3)


def spectral_radius(A: ArrayLike, *, squarings: int = 20) -> Float[Array, "*batch"]:
    """An upper bound on the spectral radius ``[...]`` of ``A [..., n, n]``, ‖A^N‖^(1/N) with N = 2^``squarings``.

    It is too large by at most κ^(1/N), κ the condition number of A's eigenvectors: 2·10⁻⁵ for 10¹⁰, twenty squarings.

    Source: I. Gelfand, Normierte Ringe, Mat. Sbornik 9 (1941).

    >>> float(control.spectral_radius(jnp.array([[0.5, 100.0], [0.0, 0.9]])).round(4))
    0.9
    """
    (A,) = matrix_checks.matrices(A=(A, "nn"))
    return _gelfand(A, arguments.whole("squarings", squarings, 0, 50))


@partial(jax.jit, static_argnames="squarings")
def _gelfand(A: Array, squarings: int) -> Array:
    def norm(A: Array) -> Array:
        return jnp.sqrt(jnp.sum(A * A, axis=(-1, -2)) + jnp.finfo(A.dtype).tiny)

    def square(state: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        A, log, weight = state
        size = norm(A)
        A = A / size[..., None, None]
        return (A @ A, log + weight * jnp.log(size), weight / 2), None

    start = (A, jnp.zeros(A.shape[:-2], A.dtype), jnp.ones((), A.dtype))
    (A, log, weight), _ = jax.lax.scan(square, start, length=squarings)
    return jnp.exp(log + weight * jnp.log(norm(A)))


@jax.jit
def _stabilised(problem: tuple[Array, ...], K: Array) -> Array:
    """Gains that stabilise, from any: costs are discounted just so much that they are finite, less at each step.

    A discounted problem is that of s A and s B with s < 1. Its next gain makes every mode that hardly decays there
    decay faster, so that the plant's own loop grows less, until it does not grow.
    """
    A, B, Q, R, N = problem
    state, control = (jnp.trace(w, axis1=-1, axis2=-2) / w.shape[-1] for w in (Q, R))
    one = jnp.broadcast_to(jnp.eye(Q.shape[-1], dtype=Q.dtype), Q.shape)
    Q = Q + _ADDED * (state + control)[..., None, None] * one

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        K, size = state
        grows = (size >= 1)[..., None, None]
        s = jnp.where(grows, (1 - _MARGIN) / size[..., None, None], 1.0)
        K = jnp.where(grows, newton_step(s * A, s * B, Q, R, N, K).K, K)
        return K, radius(K)

    def radius(K: Array) -> Array:
        # the bound's own slope is noise where a pair of modes turns: the phase of A^N is in it
        return spectral_radius(jax.lax.stop_gradient(A - B @ K))

    def maybe(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        return jax.lax.cond(jnp.any(state[1] >= 1), step, lambda state: state, state), None

    return jax.lax.scan(maybe, (K, radius(K)), length=_DISCOUNTED)[0][0]


def _stable_start(problem: tuple[Array, ...], K: Array) -> Array:
    """K, stabilised where it is not stabilizing; outside a trace only those members are worked on."""
    if arguments.traced(problem, K):
        return _stabilised(problem, K)
    bad = np.flatnonzero(~(np.asarray(_radius(problem, K)) < 1))
    if not len(bad):
        return K
    lead, core = K.shape[:-2], K.shape[-2:]
    few = 8 ** max(1, int(np.ceil(np.log(len(bad)) / np.log(8))))  # few sizes make few compiled programs
    rows = np.resize(bad, min(few, int(np.prod(lead))))
    chosen = tuple(np.asarray(a).reshape(-1, *a.shape[len(lead) :])[rows] for a in (*problem, K))
    whole = np.array(K).reshape(-1, *core)
    whole[rows] = np.asarray(_stabilised(tuple(map(jnp.asarray, chosen[:-1])), jnp.asarray(chosen[-1])))
    return jnp.asarray(whole.reshape(K.shape))


@jax.jit
def _radius(problem: tuple[Array, ...], K: Array) -> Array:
    return spectral_radius(problem[0] - problem[1] @ K)


@partial(jax.jit, static_argnames="steps")
def _improve(problem: tuple[Array, ...], K: Array, steps: int) -> LQR:
    K, _ = jax.lax.scan(lambda K, _: (newton_step(*problem, K).K, None), K, length=steps)
    reached = newton_step(*problem, K)
    closed = problem[0] - problem[1] @ K
    stable = (reached.stable > 0.5) & (reached.definite > 0.5) & jnp.all(jnp.isfinite(K), axis=(-1, -2))
    decays = _gelfand(jax.lax.stop_gradient(closed), 36) < 1 - float(jnp.finfo(K.dtype).eps) ** 0.5
    return LQR(K, reached.P, closed, reached.residual, stable & decays & _is_cost(reached.P, closed, problem, K))


def _is_cost(P: Array, closed: Array, problem: tuple[Array, ...], K: Array) -> Array:
    """True where P = FᵀPF + W holds to half of the digits, F the closed loop and W the stage weight of K."""
    _, _, Q, R, N = problem
    wrong = closed.mT @ P @ closed + stage_weight(Q, R, N, K) - P
    size, scale = (jnp.max(jnp.abs(a), axis=(-1, -2)) for a in (wrong, P))
    return size <= float(jnp.finfo(P.dtype).eps) ** 0.5 * scale


def policy_iteration(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None, *, K: ArrayLike, steps: int = 1
) -> LQR:
    """Improve a gain of x[t+1] = Ax[t] + Bu[t] with the cost Σ xᵀQx + uᵀRu + 2xᵀNu; batched, differentiable.

    A step computes what the loop of u = −Kx costs and takes the gain that is best if it is to pay so much from the
    next sample on. Stabilizing gains stay so, each step costs less than the last, and close to the optimum the
    error is squared. A gain that does not stabilise is first made to: by such steps on the problem with costs
    discounted so much that they are finite, with less discount each time. Derivatives are taken at these discounts.

    Args:
        A, B, Q, R, N: the problem, as for :func:`dlqr`.
        K: the gains to begin with ``[..., m, n]``, stabilizing or not.
        steps: after which the gains are given out; 0 only makes them stabilizing.

    Returns:
        :class:`LQR` with the gains reached. P is what *they* cost, not the optimum, and ``residual`` says how far it is
        from solving the Riccati equation. ``stabilizing`` says that the loop is stable, its poles by √ε, and P what it
        costs; where none was found, as of a plant that has none, it is False and the gain, most often NaN, useless.

    Sources: G. A. Hewer, An iterative technique for the computation of the steady state gains for the discrete optimal
    regulator, IEEE Trans. Autom. Control 16 (1971), after D. L. Kleinman, ibid. 13 (1968), for continuous time;
    J. Perdomo, J. Umenberger, M. Simchowitz, Stabilizing via policy gradient methods, NeurIPS 2021 (discount).

    >>> better = control.policy_iteration([[1.2]], [[1.0]], [[1.0]], [[1.0]], K=[[0.0]], steps=5)
    >>> optimum = control.dlqr([[1.2]], [[1.0]], [[1.0]], [[1.0]])
    >>> bool(abs(better.K - optimum.K).max() < 1e-12)
    True
    """
    steps = arguments.whole("steps", steps, 0)
    problem = matrix_checks.arguments(A, B, Q, R, N, weights=False)
    letters = zip("ABQRN", problem, ("nn", "nm", "nn", "mm", "nm"))
    *matrices, K = matrix_checks.matrices(**{name: (a, axes) for name, a, axes in letters}, K=(K, "mn"))
    with jax.debug_nans(False):  # NaN marks what has no answer
        return _improve(tuple(matrices), _stable_start(tuple(matrices), K), steps)
