"""The regulator straight from a record of states and inputs, without a model in between."""

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, check_log, require_excitation
from lqrlab.extensions.identification.regression import transitions


def direct_lqr(log: Log, Q: ArrayLike, R: ArrayLike, *, robustness: float = 0.0) -> Float[Array, "m n"]:
    """The gain K, u = −Kx, that is optimal for x[t+1] = Ax + Bu as a persistently exciting record shows it.

    With U, X, X₊ the record's inputs, states and next states as columns, any loop is X₊G with XG = I and −K = UG.
    Minimised over G is the cost Σ xᵀQx + uᵀRu + ``robustness`` · ‖Gx‖², by one Riccati equation.

    Args:
        log: whose outputs are all the states, as deviations from the equilibrium (:meth:`Log.detrended`).
        Q, R: weights of a sample ``[n, n]``, ``[m, m]``.
        robustness: 0 keeps G in the space of U and X: without noise the optimum, with noise certainty equivalence.

    Raises:
        ValueError: a record that is not persistently exciting: U and X together have not full row rank.

    Source: C. De Persis and P. Tesi, Formulas for data-driven control, IEEE Trans. Autom. Control 65(3), 2020, theorem
    4; noise: the same, Low-complexity learning of linear quadratic regulators from noisy data, Automatica 128, 2021.
    """
    check_log(log)
    Q, R = (np.asarray(checks.real(name, a), float) for name, a in (("Q", Q), ("R", R)))
    n, m = log.ys.shape[1], log.us.shape[1]
    if Q.shape != (n, n) or R.shape != (m, m):
        raise ValueError(f"Q, R: expected shapes {(n, n)} and {(m, m)}, but found {Q.shape} and {R.shape}")
    weight = checks.number("robustness", robustness, "a weight ≥ 0", low=0)
    require_excitation(log, n + m + 1)
    X, U, after = (a.T for a in transitions(log.records))
    known = np.concatenate([U, X])
    data = np.concatenate([known, after]) if weight else known
    basis = np.linalg.svd(data / np.linalg.norm(data, axis=1, keepdims=True), full_matrices=False)[2]
    U, X, after = U @ basis.T, X @ basis.T, after @ basis.T  # G = basisᵀ H: other directions only cost
    free = np.linalg.svd(X)[2][n:].T  # the null space of X
    first = np.linalg.pinv(X)
    M = U.T @ R @ U + weight * np.eye(U.shape[1])
    gain = control.dlqr(after @ first, after @ free, Q + first.T @ M @ first, free.T @ M @ free, first.T @ M @ free).K
    return -U @ (first - free @ gain)
