"""Does the control room ever hand out a wrong gain? Hard problems by the ten thousand, judged by NumPy alone."""

from collections.abc import Sequence

import numpy as np

from benchmarks.measurement import Row, row
from benchmarks.riccati import Problems, problems
from lqrlab import control


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
        for continuous in (True, False):
            counts = [_judged(*draw(n, each, n), continuous=continuous) for n in dimensions]
            accepted, certified, unstable, loose = (sum(column) for column in zip(*counts))
            name, asked = f"{'continuous' if continuous else 'sampled'}, {kind}", each * len(dimensions)
            rows += [
                row(f"{name}: problems", asked, "problems"),
                row(f"{name}: accepted", 100 * accepted / asked, "%"),
                row(f"{name}: accepted to 1e-10", 100 * certified / asked, "%"),
                row(f"{name}: accepted and unstable", unstable, "problems", 0, least=False),
                row(f"{name}: accepted and above 1e-8", loose, "problems", 0, least=False),
            ]
    return rows


def _judged(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, *, continuous: bool
) -> tuple[int, ...]:
    """How many designs were accepted, are right to 1e-10, have an unstable loop, leave more than 1e-8."""
    if continuous:
        found, N = control.lqr(A, B, Q, R), np.zeros_like(B)
    else:  # held for as long as the fastest mode takes
        dt = 1 / np.abs(np.linalg.eigvals(A)).max(-1)
        A, B, Q, R, N = (np.asarray(a) for a in control.discretize(A, B, Q, R, dt))
        found = control.dlqr(A, B, Q, R, N)
    good = np.asarray(found.stabilizing)
    A, B, Q, N, K, P = (np.asarray(a)[good] for a in (A, B, Q, N, found.K, found.P))
    closed, PA = A - B @ K, P @ A
    poles = np.linalg.eigvals(closed)
    if continuous:
        edge = poles.real.max(-1) / np.linalg.norm(closed, axis=(1, 2))
        terms = (PA, _t(PA), -(P @ B + N) @ K, Q)
    else:
        edge = np.abs(poles).max(-1) - 1
        terms = (_t(A) @ PA, -P, -(_t(PA) @ B + N) @ K, Q)
    largest = np.max([np.abs(term).max((1, 2)) for term in terms], axis=0)
    residual = np.abs(sum(terms)).max((1, 2)) / largest
    counts = (residual <= 1e-10).sum(), (edge > 1e-14).sum(), (residual > 1e-8).sum()
    return len(edge), *(int(count) for count in counts)


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)
