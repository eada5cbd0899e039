"""Does the control room ever hand out a wrong gain? Hard problems by the ten thousand, judged by NumPy alone."""

from collections.abc import Sequence

import numpy as np

from lqrlab import control
from lqrlab.benchmarks.measurement import Row, row
from lqrlab.benchmarks.riccati import Problems, problems


def scaled(n: int, num: int, seed: int) -> Problems:
    """Dense problems (A, B, Q, R) in units that differ by up to eight decades from state to state."""
    A, B, Q, R = problems(n, num, seed)
    d = 10 ** np.random.default_rng(seed).uniform(-4, 4, (num, n))
    return A * d[:, :, None] / d[:, None], B * d[:, :, None], Q / d[:, :, None] / d[:, None], R


def chains(n: int, num: int, seed: int) -> Problems:
    """Masses on stiff springs with hardly any damping and a force on the first: ten decades of stiffness.

    With an odd n the last mass hangs on a damper alone and has no position.
    """
    rng = np.random.default_rng(seed)
    masses, springs = n - n // 2, n // 2
    k = 10 ** rng.uniform(-2, 8, (num, masses))
    mass = 10 ** rng.uniform(-2, 2, (num, masses))
    L = np.zeros((num, masses, masses))
    i = np.arange(masses)
    L[:, i, i] = k
    L[:, i[:-1], i[:-1]] += k[:, 1:]
    L[:, i[:-1], i[1:]] = L[:, i[1:], i[:-1]] = -k[:, 1:]
    damping = 10 ** rng.uniform(-4, -1, num) / np.sqrt(k.max(1) * mass.max(1))
    A, B = np.zeros((num, n, n)), np.zeros((num, n, 1))
    A[:, :springs, springs:n] = np.eye(springs, masses)
    A[:, springs:, :springs] = -(L / mass[:, :, None])[:, :, :springs]
    A[:, springs:, springs:] = -damping[:, None, None] * L / mass[:, :, None]
    B[:, springs, 0] = 1 / mass[:, 0]
    return A, B, np.broadcast_to(np.eye(n), A.shape), 10 ** rng.uniform(-6, 2, (num, 1, 1))


KINDS = {"dense": problems, "badly scaled": scaled, "stiff chain": chains}


def acceptance(dimensions: Sequence[int] = tuple(range(1, 13)), *, num: int = 10_000) -> list[Row]:
    """Design for ``num`` problems a dimension, a third of each of :data:`KINDS`, continuous and sampled.

    An answer that was given out is wrong if its closed loop has a mode that does not decay (by NumPy's
    eigenvalues, to rounding) or if it leaves more than 1e-8 of the largest term of its equation.

    Returns:
        For each kind of problem: how many were accepted, how many of these are wrong (none should be).
    """
    rows, each = [], -(-num // len(KINDS))
    for kind, draw in KINDS.items():
        for judge in (_continuous, _sampled):
            counts = [_counts(*judge(*draw(n, each, n))) for n in dimensions]
            accepted, certified, unstable, loose = (sum(column) for column in zip(*counts))
            name, asked = f"{judge.__name__[1:]}, {kind}", each * len(dimensions)
            rows += [
                row(f"{name}: problems", asked, "problems"),
                row(f"{name}: accepted", 100 * accepted / asked, "%"),
                row(f"{name}: accepted to 1e-10", 100 * certified / asked, "%"),
                row(f"{name}: accepted and unstable", unstable, "problems", 0, least=False),
                row(f"{name}: accepted and above 1e-8", loose, "problems", 0, least=False),
            ]
    return rows


def _counts(edge: np.ndarray, terms: Sequence[np.ndarray]) -> tuple[int, int, int, int]:
    """How many answers were accepted, are right to 1e-10, have an unstable loop, leave more than 1e-8.

    Args:
        edge: how far the closed loop of each accepted answer is beyond the stability boundary.
        terms: of the Riccati equation with these answers; they sum to zero.
    """
    largest = np.max([np.abs(term).max((1, 2)) for term in terms], axis=0)
    residual = np.abs(sum(terms)).max((1, 2)) / largest
    certified, unstable, loose = residual <= 1e-10, edge > 1e-14, residual > 1e-8
    return len(edge), int(certified.sum()), int(unstable.sum()), int(loose.sum())


def _continuous(*problem: np.ndarray) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    found = control.lqr(*problem)
    good = np.asarray(found.stabilizing)
    A, B, Q, _ = (a[good] for a in problem)
    K, P = np.asarray(found.K)[good], np.asarray(found.P)[good]
    closed = A - B @ K
    edge = np.linalg.eigvals(closed).real.max(-1) / np.linalg.norm(closed, axis=(1, 2))
    return edge, (P @ A, _t(P @ A), -P @ B @ K, Q)


def _sampled(*problem: np.ndarray) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    A, B, Q, R = problem
    dt = 1 / np.abs(np.linalg.eigvals(A)).max(-1)  # held for as long as the fastest mode takes
    sampled = [np.asarray(a) for a in control.discretize(A, B, Q, R, dt)]
    found = control.dlqr(*sampled)
    good = np.asarray(found.stabilizing)
    A, B, Q, _, N = (a[good] for a in sampled)
    K, P = np.asarray(found.K)[good], np.asarray(found.P)[good]
    edge = np.abs(np.linalg.eigvals(A - B @ K)).max(-1) - 1
    return edge, (_t(A) @ P @ A, -P, -(_t(A) @ P @ B + N) @ K, Q)


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)
