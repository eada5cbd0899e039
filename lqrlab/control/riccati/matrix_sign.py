"""Riccati equations by the matrix sign function, for problems on which doubling stalls; the batch on the last axis.

Close to the imaginary axis, under bad scaling and with indefinite weights doubling stalls or loses digits. The
sign iteration on the balanced Hamiltonian then still finds the stable subspace, which Newton steps polish.

Sources: J. D. Roberts, Linear model reduction and solution of the algebraic Riccati equation by use of the sign
function, Int. J. Control 32 (1980), sections 3-4; R. Byers, Solving the algebraic Riccati equation with the
matrix sign function, Linear Algebra Appl. 85 (1987), section 4 (scaling); D. Ruiz, A scaling algorithm to
equilibrate both rows and columns norms in matrices (2001).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.control.riccati.doubling import DoublingProblem, Solution

_STEPS, _BALANCING, _NEWTON = 60, 24, 4


def scales(
    F: Float[Array, "n n batch"], G: Float[Array, "n n batch"], H: Float[Array, "n n batch"]
) -> Float[Array, "n batch"]:
    """d that evens out the rows and columns of the Hamiltonian [F −G; −H −Fᵀ] of x = D x̃, D = diag(d)."""
    f, g, h = jnp.abs(F), jnp.abs(G), jnp.abs(H)
    off = 1 - jnp.eye(F.shape[0], dtype=F.dtype)[:, :, None]  # no scaling changes the diagonal

    def once(_: Array, d: Array) -> Array:
        ratio = d[None] / d[:, None]
        both = d[None] * d[:, None]
        rows = jnp.sum(f * off * ratio + g / both, axis=1)
        columns = jnp.sum(f * off * ratio, axis=0) + jnp.sum(h * both, axis=1)
        seen = (rows > 0) & (columns > 0)
        change = jnp.where(seen, jnp.where(seen, rows, 1.0) / jnp.where(seen, columns, 1.0), 1.0) ** 0.25
        d = d * change
        return jnp.where(jnp.isfinite(d) & (d > 0), d, 1.0)

    d = jax.lax.fori_loop(0, _BALANCING, once, jnp.ones_like(F[0]))
    return 2.0 ** jnp.round(jnp.log2(d))  # powers of two: exact


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


def polished(
    problem: DoublingProblem, *, continuous: bool
) -> tuple[Float[Array, "n n batch"], Bool[Array, " batch"]]:
    """P by the sign function of the balanced problem and a few Newton steps, and whether its loop is stable."""
    A, B, Q, R, N = problem
    size = jnp.sqrt(jnp.abs(jnp.diagonal(R, axis1=0, axis2=1))).T
    r = 2.0 ** -jnp.round(jnp.log2(jnp.where(size > 0, size, 1.0)))
    B, R, N = B * r[None], R * r[None] * r[:, None], N * r[None]
    F, G, H = DoublingProblem(A, B, Q, R, N).reduced()
    d = scales(F, G, H)
    ratio, both = (d[None] / d[:, None]), (d[None] * d[:, None])
    F, G, H = F * ratio, G / both, H * both
    problem = DoublingProblem(A * ratio, B / d[:, None], Q * both, R, N * d[:, None])
    one = jnp.broadcast_to(eye(F.shape[0], F), F.shape)
    if continuous:
        S = jnp.concatenate([jnp.concatenate([F, -G], 1), jnp.concatenate([-H, -t(F)], 1)])
    else:  # (M + L)⁻¹(L − M) of the symplectic pencil L − λM maps the unit circle to the imaginary axis
        zero = jnp.zeros_like(F)
        L = jnp.concatenate([jnp.concatenate([F, zero], 1), jnp.concatenate([-H, one], 1)])
        M = jnp.concatenate([jnp.concatenate([one, G], 1), jnp.concatenate([zero, t(F)], 1)])
        S = batch_last.pivoted(L + M, L - M)
    P, stable = jax.lax.fori_loop(
        0,
        _NEWTON,
        lambda _, state: problem.newton_step(state[0], continuous=continuous),
        (symmetric(stable_subspace(S)), jnp.zeros(R.shape[2:], bool)),
    )
    return P / both, stable


def by_sign_function(*matrices: Array, continuous: bool) -> tuple[Solution, Array]:
    """The solution of A, B, Q, R, N by the sign function; and its error, infinite where the loop is not stable."""
    problem = DoublingProblem(*matrices)
    return problem.finished(*polished(problem, continuous=continuous), continuous=continuous)
