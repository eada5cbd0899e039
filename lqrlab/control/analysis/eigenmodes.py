"""Poles and zeros of linear systems: modes in numbers and in words, settling times, transmission zeros."""

import dataclasses
import itertools

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.compute.checks import number, whole
from lqrlab.control import matrix_checks
from lqrlab.systems import Plant, check_plant

_COUNT = (*("no", "one", "two", "three", "four", "five", "six"), *("seven", "eight", "nine", "ten", "eleven", "twelve"))


@dataclasses.dataclass(frozen=True)
class Mode:
    """A mode of a linear system, a conjugate pair counted once.

    Attributes:
        pole: its eigenvalue, in rad/s (of the equivalent continuous system where a sample time was given).
        frequency: |pole| [rad/s].
        damping: −Re(pole)/|pole|; −1 … 1.
        time_constant: −1/Re(pole) [s]; negative for a mode that grows, infinite on the boundary.
        states: indices of the states that dominate it, the strongest first.
    """

    pole: complex
    frequency: float
    damping: float
    time_constant: float
    states: tuple[int, ...]

    def __str__(self) -> str:
        sign = f"{self.pole.real:+.3g}" + (f" ± {abs(self.pole.imag):.3g}j" if self.pole.imag else "")
        return f"mode at {sign} rad/s (in state {', '.join(map(str, self.states))})"


def dominant_states(vector: np.ndarray) -> tuple[int, ...]:
    """Indices of the entries of an eigenvector above a tenth of its largest, the strongest first."""
    size = np.abs(vector)
    return tuple(int(j) for j in np.argsort(-size, kind="stable") if size[j] > 0.1 * size.max())


def modes(A: ArrayLike, dt: float | None = None) -> list[Mode]:
    """The modes of ẋ = Ax, or of x[t+1] = Ax[t] with sample time ``dt`` [s]; the slowest to decay first.

    Raises:
        ValueError: not one square matrix of finite numbers.
    """
    (a,) = matrix_checks.host_matrices("modes", A=(A, "nn"))
    dt = matrix_checks.host_sample_time("modes", dt)
    values, vectors = np.linalg.eig(a)
    with np.errstate(divide="ignore"):
        poles = values if dt is None else np.log(np.abs(values)) / dt + 1j * (np.angle(values) / dt)
    listed = []
    for i in np.argsort(-poles.real):
        p = complex(poles[i])
        if values[i].imag < 0:  # its conjugate stands for both
            continue
        listed.append(
            Mode(
                pole=p,
                frequency=abs(p),
                damping=-p.real / abs(p) if 0 < abs(p) < np.inf else 1.0,  # a pole at z = 0 has no frequency
                time_constant=-1 / p.real if p.real else np.inf,
                states=dominant_states(vectors[:, i]),
            )
        )
    return listed


def modes_in_words(plant: Plant, A: ArrayLike | None = None) -> list[tuple[complex, str]]:
    """Eigenvalues [rad/s] and what they mean of one plant at its equilibrium, the least stable first.

    A conjugate pair is one, by its imaginary part ≥ 0; eigenvalues closer than a millionth of the largest (in the units
    of the plant's scales) are one that occurs several times. In numbers: :func:`modes` of A.

    Args:
        plant: one plant.
        A: its linearisation, if it is known already.

    >>> [words for _, words in control.modes_in_words(systems.make("pendulum"))]
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
    means = [(complex(np.mean(group)), len(group)) for group in groups]
    return [(value, _words(value, count, near, scaled)) for value, count in means]


def _words(value: complex, count: int, near: float, A: np.ndarray) -> str:
    if abs(value) < near:
        lengths = ", ".join(map(str, _chains(A, near)))
        return "integrator (pole at 0)" if count == 1 else f"{count} poles at 0 (chains of {lengths})"
    still, s = abs(value.real) < near, "s" if count > 1 else ""
    number = _COUNT[count] if count < len(_COUNT) else str(count)
    time = "" if still else f"time constant {float(f'{1 / abs(value.real):.2g}'):g} s"
    if abs(value.imag) < near:
        return f"{number} {'unstable' if value.real > 0 else 'decaying'} real mode{s}, {time}"
    way = "undamped" if still else "growing" if value.real > 0 else "damped"
    words = f"{number} {way} oscillation{s}, period {float(f'{2 * np.pi / abs(value.imag):.2g}'):g} s"
    return words if still else f"{words}, damping ratio {-value.real / abs(value):.2g}, {time}"


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


def settling_time(
    poles: ArrayLike, dt: ArrayLike | None = None, *, within: float = 1e-3
) -> Float[np.ndarray, "*batch"]:
    """Time until the slowest mode's amplitude has fallen to ``within`` of where it started [s]; on the host.

    Args:
        poles: in rad/s, or those of a discrete system, ``[..., n]``.
        dt: sample time [s] of a discrete system, scalar or with the leading axes; 1 gives the time in samples.
        within: the share of the amplitude that is left, between 0 and 1.

    Returns:
        log(1/within) / min(−Re pole) ``[...]``, with −log|pole|/dt for −Re pole in discrete time; else infinite.

    >>> float(control.settling_time([-1.0, -20.0], within=0.5))  # log 2
    0.6931471805599453
    """
    matrix_checks.on_host("settling_time", poles, dt)
    number("within", within, "a share between 0 and 1", above=0, below=1)
    values = np.asarray(matrix_checks.real("poles", poles, or_complex=True, finite=np.ndim(poles) < 2))
    if not values.ndim or not values.size:
        raise ValueError(f"poles: expected at least one, but found shape {values.shape}")
    with np.errstate(divide="ignore"):
        rates = -values.real if dt is None else -np.log(np.abs(values))
    slowest = np.asarray(rates.min(axis=-1), float)
    if dt is not None:
        slowest = slowest / np.asarray(matrix_checks.sample_time(dt, np.dtype(float), values[..., None]))
    settles = slowest > 0
    return np.where(settles, np.log(1 / within) / np.where(settles, slowest, 1.0), np.inf)


def settling_steps(
    poles: ArrayLike,
    *,
    times: float = 2.0,
    within: float = 1e-3,
    shortest: int = 100,
    longest: int = 2000,
    multiple: int = 50,
) -> int:
    """A horizon [samples] in which all loops with these discrete poles have settled.

    Args:
        poles: of discrete loops ``[..., n]``.
        times: how often over: so many settling times of the slowest loop, see :func:`settling_time`.
        within: the share of the amplitude that is left after one of them.
        shortest, longest: bounds; a loop that does not settle gets the longest.
        multiple: rounded up to a multiple of this, so that few horizons make few compiled programs.

    >>> control.settling_steps([0.9, 0.5])
    150
    """
    number("times", times, "a number above 0", above=0)
    low, high = whole("shortest", shortest), whole("longest", longest)
    if low > high:
        raise ValueError(f"shortest, longest: expected shortest ≤ longest, but found {low} and {high}")
    steps = times * settling_time(poles, 1.0, within=within).max()
    return int(np.clip(np.ceil(steps / whole("multiple", multiple)) * multiple, low, high))


def zeros(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> Complex[np.ndarray, " zeros"]:
    """Invariant (transmission) zeros of one system, on the host, the least stable first.

    At a zero the inputs can move the plant permanently without any effect on y = Cx + Du. A zero in the right
    half-plane (outside the unit circle if ``dt`` is given) makes y start the wrong way and bounds how fast any
    controller can be; one at the origin (at 1) means that no constant input holds y.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Source: A. Emami-Naeini, P. Van Dooren, Computation of zeros of linear multivariable systems, Automatica 18 (1982).

    >>> control.zeros([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], [[-1.0, 1.0]]).real  # (s − 1) / s²
    array([1.])
    """
    dt = matrix_checks.host_sample_time("zeros", dt)
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    a, b, c, *rest = matrix_checks.host_matrices("zeros", **given)
    d = rest[0] if rest else np.zeros((len(c), b.shape[1]))
    for _ in range(3):  # units of states, inputs and outputs change no zero, and make each other's uneven
        x = matrix_checks.even_units(a, b, c)
        a, b, c = a * x / x[:, None], b / x[:, None], c * x
        size = np.linalg.norm(a) or 1.0
        b, d = (y * (size / _sizes(np.vstack([b, d]), 0)) for y in (b, d))
        c, d = (y * (size / _sizes(np.hstack([c, d]), 1)) for y in (c, d))
    small = 100 * np.finfo(float).eps * max(a.shape[0] + c.shape[0], b.shape[1]) * size
    a, b, c, d = _full_row_rank((a, b, c, d), small)
    a, c, b, d = (x.T for x in _full_row_rank((a.T, c.T, b.T, d.T), small))
    if not len(a):
        return np.zeros(0, complex)
    # d is square and regular now: what the outputs do not see of (x, u), and how that moves x
    hidden = scipy.linalg.null_space(np.hstack([c, d]), rcond=1e-15)[:, : len(a)] if len(d) else np.eye(len(a))
    values = scipy.linalg.eigvals(np.hstack([a, b]) @ hidden, hidden[: len(a)])
    values = values[np.isfinite(values)].astype(complex)
    return values[np.argsort(-(values.real if dt is None else np.abs(values)), kind="stable")]


def _sizes(a: np.ndarray, axis: int) -> np.ndarray:
    """Norms of columns or rows; one for a column or row of zeros."""
    size = np.linalg.norm(a, axis=axis, keepdims=True)
    return np.where(size > 0, size, 1.0)


def _full_row_rank(system: tuple[np.ndarray, ...], small: float) -> tuple[np.ndarray, ...]:
    """A system with the same zeros whose D has full row rank.

    Outputs that no input acts on directly hold some states at zero; that these stay there is an output instead.
    """
    a, b, c, d = system
    while len(d):
        left, values, _ = np.linalg.svd(d) if d.shape[1] else (np.eye(len(d)), np.zeros(0), None)
        rank = int(np.sum(values > small))
        c, d = left.T @ c, left.T @ d
        rest, c, d = c[rank:], c[:rank], d[:rank]
        if not len(rest) or not len(a):
            break
        _, values, right = np.linalg.svd(rest)
        held = int(np.sum(values > small))
        if not held:
            break
        basis = np.vstack([right[held:], right[:held]]).T  # free states first, then those that are held
        a, b, c = basis.T @ a @ basis, basis.T @ b, c @ basis
        free = len(a) - held
        c, d = np.vstack([c[:, :free], a[free:, :free]]), np.vstack([d, b[free:]])
        a, b = a[:free, :free], b[:free]
    return a, b, c, d
