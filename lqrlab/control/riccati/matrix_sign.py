"""Riccati equations by the matrix sign function, for problems on which doubling stalls; the batch on the last axis.

Close to the imaginary axis, under bad scaling and with indefinite weights doubling stalls or loses digits. The
sign iteration on the balanced Hamiltonian then still finds the stable subspace, which Newton steps polish. Without it
CAREX 6 and 12 to 14 (P. Benner et al., 1995), as SciPy's tests number them from 1, have no answer inside a trace.

Sources: J. D. Roberts, Linear model reduction and solution of the algebraic Riccati equation by use of the sign
function, Int. J. Control 32 (1980), sections 3-4; R. Byers, Solving the algebraic Riccati equation with the
matrix sign function, Linear Algebra Appl. 85 (1987), section 4 (scaling).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.control.lyapunov import even_units
from lqrlab.control.riccati.doubling import DoublingProblem, Solution

_STEPS, _NEWTON = 60, 8
_PATIENT = 2  # Newton steps after which a digit less is enough


def scales(
    F: Float[Array, "n n batch"], G: Float[Array, "n n batch"], H: Float[Array, "n n batch"]
) -> Float[Array, "n batch"]:
    """d that evens out the rows and columns of the Hamiltonian [F −G; −H −Fᵀ] of x = D x̃, D = diag(d)."""
    both = even_units(_hamiltonian(F, G, H, continuous=True), 1.0)
    return 2.0 ** jnp.round(jnp.log2(both[: len(F)] / both[len(F) :]) / 2)  # powers of two: exact


def stable_subspace(S: Float[Array, "twice_n twice_n batch"]) -> Float[Array, "n n batch"]:
    """P of the graph [I; P] of the stable invariant subspace of S, from Z = sign(S) by Newton's Z ← (cZ + (cZ)⁻¹)/2."""
    double = S.shape[0]
    n = double // 2
    one = jnp.broadcast_to(eye(double, S), S.shape)
    tiny = float(jnp.finfo(S.dtype).eps)

    def more(state: tuple) -> Array:
        _, change, k = state
        return jnp.any((change > 100 * tiny) & (change < jnp.inf)) & (k < _STEPS)

    def step(state: tuple) -> tuple:
        Z, change, k = state
        inverse = batch_last.pivoted(Z, one)
        c = jnp.sqrt(batch_last.norm(inverse) / batch_last.norm(Z))
        c = jnp.where((change > 1e-2) & jnp.isfinite(c) & (c > 0), c, 1.0)[None, None]
        after = (c * Z + inverse / c) / 2
        return after, batch_last.norm(after - Z) / batch_last.norm(after), k + 1

    Z, _, _ = jax.lax.while_loop(more, step, (S, jnp.ones_like(S[0, 0]), jnp.zeros((), jnp.int32)))
    # (Z + I)[I; P] = 0, by least squares
    left = Z[:, n:] + one[:, n:]
    right = -(Z[:, :n] + one[:, :n])
    return batch_last.pivoted(mul(t(left), left), mul(t(left), right))


def by_sign_function(
    *matrices: Array, continuous: bool, known: tuple[Solution, Array] | None = None
) -> tuple[Solution, Array]:
    """The solution of A, B, Q, R, N by the sign function of the balanced problem and a few Newton steps.

    Args:
        matrices: A, B, Q, R, N.
        continuous: which equation.
        known: an answer, and its error, from which Newton's steps go on where the sign function's P is not stabilizing.

    Returns:
        The best answer on the way, the known one included; and its error, infinite where the loop is not stable.
    """
    problem = DoublingProblem(*matrices)
    best = problem.finished(problem.Q, problem.Q[0, 0] < -jnp.inf, continuous=continuous) if known is None else known
    balanced, both = _balanced(problem)
    fallback = best[0].P * both
    small = batch_last.enough(problem.A.dtype)

    def more(state: tuple) -> Array:
        _, (_, error), k = state
        wanted = small * jnp.where(k < _PATIENT, 1, 10)
        return (k == 0) | (jnp.any((error > wanted) & (error < jnp.inf)) & (k < _NEWTON))

    def step(state: tuple) -> tuple:
        P, best, k = state
        P, stable = balanced.newton_step(P, continuous=continuous)
        found = problem.finished(P / both, stable, continuous=continuous)
        which = found[1] < best[1]
        P = jnp.where(stable, P, fallback)
        return P, jax.tree.map(lambda a, b: jnp.where(which, b, a), best, found), k + 1

    S = _hamiltonian(*balanced.reduced(), continuous=continuous)
    return jax.lax.while_loop(more, step, (symmetric(stable_subspace(S)), best, 0))[1]


def _balanced(problem: DoublingProblem) -> tuple[DoublingProblem, Array]:
    """The problem in units in which its numbers are of one size, and what its P is larger by, entry by entry."""
    A, B, Q, R, N = problem
    size = jnp.sqrt(jnp.abs(jnp.diagonal(R, axis1=0, axis2=1))).T
    r = 2.0 ** -jnp.round(jnp.log2(jnp.where(size > 0, size, 1.0)))
    B, R, N = B * r[None], R * r[None] * r[:, None], N * r[None]
    d = scales(*DoublingProblem(A, B, Q, R, N).reduced())
    ratio, both = (d[None] / d[:, None]), (d[None] * d[:, None])
    return DoublingProblem(A * ratio, B / d[:, None], Q * both, R, N * d[:, None]), both


def _hamiltonian(F: Array, G: Array, H: Array, *, continuous: bool) -> Array:
    """The matrix whose sign gives P, ``[2n, 2n, batch]``; in discrete time by a bilinear transform.

    (M + L)⁻¹(L − M) of the symplectic pencil L − λM maps the unit circle to the imaginary axis.
    """
    if continuous:
        return jnp.concatenate([jnp.concatenate([F, -G], 1), jnp.concatenate([-H, -t(F)], 1)])
    zero, one = jnp.zeros_like(F), jnp.broadcast_to(eye(F.shape[0], F), F.shape)
    L = jnp.concatenate([jnp.concatenate([F, zero], 1), jnp.concatenate([-H, one], 1)])
    M = jnp.concatenate([jnp.concatenate([one, G], 1), jnp.concatenate([zero, t(F)], 1)])
    return batch_last.pivoted(L + M, L - M)
