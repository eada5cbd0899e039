"""Closed loops put together by hand."""

import numpy as np


def loop(A, B, C, D, nmeas, ncon, K):
    """From w to z with u = K y, by eliminating u and y from the equations of both."""
    A, B, C, D = (np.asarray(x, float) for x in (A, B, C, D))
    n, k, z, w = len(A), len(K.A), len(C) - nmeas, B.shape[1] - ncon
    # y − D22 u = C2 x + D21 w; u − Dk y = Ck xk
    left = np.block([[np.eye(nmeas), -D[z:, w:]], [-K.D, np.eye(ncon)]])
    by_states = np.block([[C[z:], np.zeros((nmeas, k))], [np.zeros((ncon, n)), K.C]])
    by_states = np.linalg.solve(left, by_states)
    by_w = np.linalg.solve(left, np.vstack([D[z:, :w], np.zeros((ncon, w))]))
    u_x, u_w, y_x, y_w = by_states[nmeas:], by_w[nmeas:], by_states[:nmeas], by_w[:nmeas]
    a = np.vstack([np.hstack([A, np.zeros((n, k))]) + B[:, w:] @ u_x, np.hstack([np.zeros((k, n)), K.A]) + K.B @ y_x])
    b = np.vstack([B[:, :w] + B[:, w:] @ u_w, K.B @ y_w])
    return a, b, np.hstack([C[:z], np.zeros((z, k))]) + D[:z, w:] @ u_x, D[:z, :w] + D[:z, w:] @ u_w
