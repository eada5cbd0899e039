"""Open-loop modes, in numbers and in words."""

import dataclasses

import numpy as np

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


_COUNT = (
    *("no", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def open_loop_modes(plant: Plant) -> list[OpenLoopMode]:
    """The modes of one plant at its equilibrium, the least stable first.

    Eigenvalues closer than a millionth of the largest (in the units of the plant's scales) count as one.

    >>> [mode.sentence for mode in systems.open_loop_modes(systems.make("pendulum"))]
    ['one unstable real mode, time constant 0.24 s', 'one decaying real mode, time constant 0.22 s']
    """
    check_plant(plant)
    if plant.batch_shape:
        raise ValueError(
            f"open_loop_modes: expected one plant, but found a batch of shape {plant.batch_shape}"
        )
    scale = np.asarray(plant.scales[0], float)
    A = np.asarray(plant.matrices()[0], float) * scale / scale[:, None]
    values = np.linalg.eigvals(A)
    near = 1e-6 * max(np.abs(values).max(), 1e-300)
    groups: list[list[complex]] = []
    for value in sorted(values, key=lambda v: (-v.real, abs(v.imag))):
        if value.imag < -near:  # its conjugate speaks for it
            continue
        group = next((group for group in groups if abs(group[0] - value) < near), None)
        if group is None:
            groups.append(group := [])
        group.append(complex(value))
    sizes = np.linalg.svd(A, compute_uv=False)
    chained = int(np.sum(sizes < 1e-9 * max(sizes[0], 1e-300))) < int(np.sum(np.abs(values) < near))
    return [_mode(complex(np.mean(group)), len(group), near, chained) for group in groups]


def _mode(value: complex, count: int, near: float, chained: bool) -> OpenLoopMode:
    size, still, s = abs(value), abs(value.real) < near, "s" if count > 1 else ""
    time = float("inf") if still else 1 / abs(value.real)
    number = _COUNT[count] if count < len(_COUNT) else str(count)
    if size < near:
        words = f"{number} integrator{s}" + (
            " in a row: a push grows on" if chained else ": what is put in stays"
        )
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
