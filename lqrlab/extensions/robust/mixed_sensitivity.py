"""Loop shaping by H∞ synthesis: weighted sensitivities, and normalized coprime factors."""

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.control import matrix_checks
from lqrlab.extensions.robust.generalized_plant import System, partitioned
from lqrlab.extensions.robust.hinf_synthesis import synthesis
from lqrlab.extensions.robust.synthesis_result import Synthesis

Weight = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike] | ArrayLike | None
"""A, B, C, D; a gain, as a number or matrix; or None for none."""
_LETTERS = {"A": "nn", "B": "nm", "C": "pn", "D": "pm"}


def mixsyn(
    G: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
    W1: Weight = None,
    W2: Weight = None,
    W3: Weight = None,
    dt: float | None = None,
) -> Synthesis:
    """H∞ controller u = K (r − y) of y = Gu that keeps ‖[W1 S; W2 K S; W3 T]‖ small, S = (I + GK)⁻¹ and T = I − S.

    Args:
        G: the plant, A, B, C, D.
        W1, W2, W3: weights of the control error, the control and the output, each A, B, C, D or a gain.
        dt: sample time [s] of a discrete plant and its weights.

    Errors as of :func:`hinfsyn`; a weight with a mode on or beyond the stability boundary, which no controller
    stabilizes, is refused. Source: H. Kwakernaak, Robust control and H∞-optimization, Automatica 29 (1993).

    >>> slow = [[-0.01]], [[1.0]], [[0.5]], [[0.5]]  # no more than a hundredth of the error is left at low frequencies
    >>> d = robust.mixsyn(([[-1.0]], [[1.0]], [[1.0]], [[0.0]]), W1=slow, W2=0.1)
    >>> bool(d.norm <= d.gamma < 1)
    True
    """
    matrix_checks.on_host("mixsyn", G, W1, W2, W3, dt)
    a, b, c, d = _system("G", G, None)
    (p, m), n = d.shape, len(a)
    weights = [_system(f"W{i}", W, size) for i, (W, size) in enumerate(((W1, p), (W2, m), (W3, p)), 1) if W is not None]
    if not weights:
        raise ValueError("W1, W2, W3: expected at least one weight, but found None for all")
    # the signals that are weighted, r − y, u and y, by the plant's states, r and u
    signals = (-c, np.eye(p), -d), (np.zeros((m, n)), np.zeros((m, p)), np.eye(m)), (c, np.zeros((p, p)), d)
    rows = [signal for signal, W in zip(signals, (W1, W2, W3)) if W is not None]
    A = scipy.linalg.block_diag(a, *(w[0] for w in weights))
    A[n:, :n] = np.vstack([w[1] @ x for w, (x, _, _) in zip(weights, rows)])
    B = np.vstack([np.hstack([np.zeros((n, p)), b]), *(w[1] @ np.hstack(r[1:]) for w, r in zip(weights, rows))])
    own = scipy.linalg.block_diag(*(w[2] for w in weights))
    C = np.hstack([np.vstack([w[3] @ r[0] for w, r in zip(weights, rows)]), own])
    D = np.vstack([w[3] @ np.hstack(r[1:]) for w, r in zip(weights, rows)])
    C = np.vstack([C, np.hstack([-c, np.zeros((p, len(A) - n))])])
    D = np.vstack([D, np.hstack([np.eye(p), -d])])
    return synthesis("mixsyn", partitioned("mixsyn", A, B, C, D, p, m, dt))


def ncfsyn(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, dt: float | None = None) -> Synthesis:
    """Loop-shaping controller u = K y of a shaped plant y = Gu that is the most robust: Glover and McFarlane's.

    It stabilizes each plant whose normalized coprime factors are within 1/norm of those of G: ``1/norm`` is the
    stability margin, good from about 0.3. The norm is that from disturbances of y and u to [u; y]. A, B, C, D are those
    of the plant with its shaping filters, ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]``; errors as of :func:`hinfsyn`.

    Source: D. McFarlane and K. Glover, IEEE Transactions on Automatic Control 37 (1992).

    >>> round(robust.ncfsyn([[0.0]], [[1.0]], [[1.0]], [[0.0]]).norm, 2)  # an integrator: √2
    1.41
    """
    matrix_checks.on_host("ncfsyn", A, B, C, D, dt)
    a, b, c, d = _system("", (A, B, C, D), None)
    (p, m), n = d.shape, len(a)
    B1 = np.hstack([np.zeros((n, p)), b, b])
    C1 = np.vstack([np.zeros((m, n)), c, c])
    through = np.hstack([np.eye(p), d, d])
    D1 = np.vstack([np.hstack([np.zeros((m, p + m)), np.eye(m)]), through, through])
    return synthesis("ncfsyn", partitioned("ncfsyn", a, B1, C1, D1, p, m, dt))


def _system(name: str, given: Weight, size: int | None) -> System:
    """The matrices of a system or gain, checked; a number is that gain of each of ``size`` signals."""
    if size is not None and not isinstance(given, tuple | list):
        gain = np.asarray(matrix_checks.real(name, given), float)
        gain = gain * np.eye(size) if gain.ndim == 0 else gain
        rows, columns = gain.shape if gain.ndim == 2 else (size, size)
        given = np.zeros((0, 0)), np.zeros((0, columns)), np.zeros((rows, 0)), gain
    if not isinstance(given, tuple | list) or len(given) != 4:
        raise ValueError(f"{name}: expected the matrices (A, B, C, D), but found {type(given).__name__}")
    try:
        system = matrix_checks.host_matrices("mixsyn", **{k: (v, _LETTERS[k]) for k, v in zip("ABCD", given)})
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from error
    if size is not None and system[1].shape[1] != size:
        raise ValueError(f"{name}: expected a weight of {size} signals, but found one of {system[1].shape[1]}")
    return tuple(system)  # type: ignore[return-value]
