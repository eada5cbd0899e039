"""Linear systems as python-control's state spaces."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike

if TYPE_CHECKING:
    from control import StateSpace


def to_statespace(
    A: ArrayLike, B: ArrayLike, C: ArrayLike | None = None, D: ArrayLike | None = None,
    dt: float | None = None,
) -> "StateSpace":  # fmt: skip
    """A ``control.StateSpace`` of one system; C is the identity and D zero if left out, continuous without dt.

    The way back is :func:`lqrlab.systems.from_control`.

    >>> control.to_statespace([[-1.0]], [[1.0]], dt=0.1).nstates
    1
    """
    import control as python_control

    A, B = np.asarray(A, float), np.asarray(B, float)
    C = np.eye(len(A)) if C is None else np.asarray(C, float)
    D = np.zeros((len(C), B.shape[1])) if D is None else np.asarray(D, float)
    return python_control.ss(A, B, C, D, *(() if dt is None else (dt,)))
