"""Newton's step on a Riccati equation with a residual of twice the digits, for plants that an input hardly moves.

Their P is some 10¹⁰ times Q: a residual in plain double precision is then worth less than the answer, and Newton's
method with it goes round in circles. With an accurate one and corrections in double precision it converges.

Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 12 (iterative refinement).
"""

import jax.numpy as jnp
from jaxtyping import Array

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.compute.linalg.double_double import DoubleDouble
from lqrlab.control.lyapunov import smith, smith_continuous
from lqrlab.control.riccati.doubling import CORRECTION, DoublingProblem


def accurate_step(problem: DoublingProblem, P: DoubleDouble, *, continuous: bool) -> tuple[DoubleDouble, Array]:
    """P after a step, and whether the loop of the gain of P is stable.

    With Z = [A B] the residual is [I; −K]ᵀ T [I; −K], where T = [Q N; Nᵀ R] + [PZ; 0] + [PZ; 0]ᵀ in continuous and
    T = [Q N; Nᵀ R] + ZᵀPZ − [P 0; 0 0] in discrete time.
    """
    A, B, Q, R, N = problem
    n, m = B.shape[:2]
    Z, down = DoubleDouble.of(jnp.concatenate([A, B], axis=1)), ((0, m), (0, 0), (0, 0))
    weights = jnp.concatenate([jnp.concatenate([Q, N], axis=1), jnp.concatenate([t(N), R], axis=1)])
    PZ = P.times(Z)
    if continuous:
        PZ = DoubleDouble(*(jnp.pad(a, down) for a in PZ))
        T = DoubleDouble.of(weights).plus(PZ).plus(PZ.transposed())
    else:
        T = DoubleDouble.of(weights).plus(Z.transposed().times(PZ))
        T = T.plus(DoubleDouble(*(-jnp.pad(a, ((0, m), (0, m), (0, 0))) for a in P)))
    K = mul(batch_last.inverse(T.high[n:, n:]), t(T.high[:n, n:]))  # its rounding enters the residual squared
    E = DoubleDouble.of(jnp.concatenate([jnp.broadcast_to(eye(n, A), A.shape), -K]))
    wrong = symmetric(E.transposed().times(T.times(E)).high)
    step, stable = (smith_continuous if continuous else smith)(t(A - mul(B, K)), wrong, CORRECTION)
    return P.plus(DoubleDouble.of(symmetric(step))), stable
