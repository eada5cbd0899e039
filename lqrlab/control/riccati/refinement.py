"""Newton steps on a Riccati equation whose residual has twice the digits, for plants that an input hardly moves.

Their P is some 10¹⁰ times Q: a residual in plain double precision is then worth less than the answer, and Newton's
method with it goes round in circles. With an accurate one and corrections in double precision it converges.

Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 12 (iterative refinement).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.double_double import Pair
from lqrlab.control.lyapunov import smith, smith_continuous
from lqrlab.control.riccati.doubling import CORRECTION, DoublingProblem, Solution

_STEPS = 6  # two are enough for most


def _newton_step(problem: DoublingProblem, P: Pair, *, continuous: bool) -> tuple[Pair, Array]:
    """P after a step, and whether the loop of the gain of P is stable."""
    A, B, Q, R, N = (Pair.of(a) for a in problem)
    PB = P.times(B)
    M = PB.plus(N) if continuous else A.transposed().times(PB).plus(N)
    S = R if continuous else R.plus(B.transposed().times(PB))
    # rounded: an error in K enters the residual squared
    K = Pair.of(batch_last.mul(batch_last.inverse(S.high), M.transposed().high))
    closed, NK = A.minus(B.times(K)), N.times(K)
    PC = P.times(closed)
    stage = Q.plus(K.transposed().times(R.times(K))).minus(NK).minus(NK.transposed())
    moved = PC.plus(PC.transposed()) if continuous else closed.transposed().times(PC).minus(P)
    wrong = batch_last.symmetric(moved.plus(stage).high)
    step, stable = (smith_continuous if continuous else smith)(batch_last.t(closed.high), wrong, CORRECTION)
    return P.plus(Pair.of(batch_last.symmetric(step))), stable


def refined(
    problem: DoublingProblem, known: tuple[Solution, Array], *, continuous: bool
) -> tuple[Solution, Array]:
    """The best answer on the way of a few Newton steps from a known one, and its error."""

    def step(_: Array, state: tuple) -> tuple:
        P, *best = state
        P, stable = _newton_step(problem, P, continuous=continuous)
        found = problem.finished(P.high, stable, continuous=continuous)
        return P, *better((best[0], best[1]), found)

    return jax.lax.fori_loop(0, _STEPS, step, (Pair.of(known[0].P), *known))[1:]


def better(first: tuple[Solution, Array], second: tuple[Solution, Array]) -> tuple[Solution, Array]:
    """Of two answers that of the smaller error, for each member."""
    which = second[1] < first[1]
    return jax.tree.map(lambda a, b: jnp.where(which, b, a), first, second)
