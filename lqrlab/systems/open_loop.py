"""Open-loop modes, in numbers and in words."""

import dataclasses
import itertools

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.systems.declaration_checks import check_plant
from lqrlab.systems.plant import Plant


@dataclasses.dataclass(frozen=True)
class OpenLoopMode:
    """A real eigenvalue or a conjugate pair of a plant's A, perhaps several times over.

    Attributes:
        eigenvalue: the one with imaginary part ≥ 0 [rad/s].
        count: how many such modes there are.
        frequency: |eigenvalue| [rad/s].
        damping: ratio −Re/|·|; 1 for a decaying real mode, negative for a growing one; NaN at zero.
        time_constant: seconds in which it decays or grows by e; infinite if it does neither.
        sentence: all that in words.
    """

    eigenvalue: complex
    count: int
    frequency: float
    damping: float
    time_constant: float
    sentence: str


_COUNT = (*("no", "one", "two", "three", "four", "five", "six"), *("seven", "eight", "nine", "ten", "eleven", "twelve"))


def open_loop_modes(plant: Plant, A: ArrayLike | None = None) -> list[OpenLoopMode]:
    """The modes of one plant at its equilibrium, the least stable first; ``A`` if it has been linearised already.

    Eigenvalues closer than a millionth of the largest (in the units of the plant's scales) count as one.

    >>> [mode.sentence for mode in systems.open_loop_modes(systems.make("pendulum"))]
    ['one unstable real mode, time constant 0.24 s', 'one decaying real mode, time constant 0.22 s']
    """
    check_plant(plant, one=True)
    scale = np.asarray(plant.scales[0], float)
    scaled = np.asarray(plant.matrices()[0] if A is None else A, float) * scale / scale[:, None]
    values = np.linalg.eigvals(scaled)
    near = 1e-6 * max(np.abs(values).max(), 1e-300)
    groups: list[list[complex]] = []
    for value in sorted(values, key=lambda v: (-v.real, abs(v.imag))):
        if value.imag < -near:  # its conjugate speaks for it
            continue
        group = next((group for group in groups if abs(group[0] - value) < near), None)
        if group is None:
            groups.append(group := [])
        group.append(complex(value))
    return [_mode(complex(np.mean(group)), len(group), near, _chains(scaled, near)) for group in groups]


def _chains(A: np.ndarray, near: float) -> list[int]:
    """Lengths of the chains of integrators, the longest first: A's Jordan blocks at zero.

    As many chains have at least k integrators as the rank of Aᵏ is below that of Aᵏ⁻¹, on the part of the space that
    the zero eigenvalues span, so that fast modes do not hide slow ones.
    """
    T, _, num = scipy.linalg.schur(A, output="complex", sort=lambda value: abs(value) < near)
    T, power = T[:num, :num], np.eye(num)
    size = max(np.linalg.norm(T, 2), 1e-300) if num else 1.0
    ranks = [num]
    while ranks[-1]:
        power = power @ T / size
        ranks.append(min(int(np.linalg.matrix_rank(power, tol=1e-9)), ranks[-1] - 1))
    longer = [before - after for before, after in itertools.pairwise(ranks)]
    return [sum(count > i for count in longer) for i in range(longer[0])] if longer else []


def _mode(value: complex, count: int, near: float, chains: list[int]) -> OpenLoopMode:
    size, still, s = abs(value), abs(value.real) < near, "s" if count > 1 else ""
    time = float("inf") if still else 1 / abs(value.real)
    number = _COUNT[count] if count < len(_COUNT) else str(count)
    if size < near:
        lengths = ", ".join(map(str, chains))
        words = "integrator (pole at 0)" if count == 1 else f"{count} poles at 0 (chains of {lengths})"
        return OpenLoopMode(value, count, 0.0, float("nan"), time, words)
    damping = 0.0 if still else -value.real / size
    if abs(value.imag) < near:
        way = "unstable" if value.real > 0 else "decaying"
        words = f"{number} {way} real mode{s}, time constant {time:.2g} s"
    else:
        way = "undamped" if still else "growing" if value.real > 0 else "damped"
        words = f"{number} {way} oscillation{s}, period {2 * np.pi / abs(value.imag):.2g} s"
        words += "" if still else f", damping ratio {damping:.2g}, time constant {time:.2g} s"
    return OpenLoopMode(value, count, size, damping, time, words)
