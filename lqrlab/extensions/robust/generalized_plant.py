"""Generalized plant of a synthesis: what is disturbed, controlled, kept small and measured; structure of its Δ."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.compute.checks import whole
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.diagnosis import controllability_distance
from lqrlab.control.analysis.system_norms import bilinear

System = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""A, B, C, D."""

_LOST = 1e-9  # a mode so near to an uncontrollable one, relative, counts as one
_AXIS = 1e-8  # how near to the axis a mode is on it: a double integrator's two are off by the root of the rounding
_IDLE = 1e-2  # a control or measurement that does so little next to the others is penalized as if it did so much
_MISSING = 1e-7  # a control or measurement that so little of D reaches, relative to the rest of the plant


@dataclasses.dataclass(frozen=True)
class GeneralizedPlant:
    """x' = A x + B1 w + B2 u (x[t+1] if discrete), z = C1 x + D11 w + D12 u, y = C2 x + D21 w + D22 u.

    A controller u = K y is to keep the effect of w on z small.

    Attributes:
        A, B1, B2, C1, C2, D11, D12, D21, D22: the matrices.
        dt: sample time [s]; None in continuous time.
        transformed: a continuous plant with the gains of a discrete one, z = (1 + s) / (1 − s).
    """

    A: np.ndarray
    B1: np.ndarray
    B2: np.ndarray
    C1: np.ndarray
    C2: np.ndarray
    D11: np.ndarray
    D12: np.ndarray
    D21: np.ndarray
    D22: np.ndarray
    dt: float | None = None
    transformed: bool = False

    @classmethod
    def of(cls, system: System, nmeas: int, ncon: int, dt: float | None = None) -> "GeneralizedPlant":
        """The plant whose last ``nmeas`` outputs are measured and last ``ncon`` inputs are controls."""
        a, b, c, d = system
        z, w = len(c) - nmeas, b.shape[1] - ncon
        blocks = d[:z, :w], d[:z, w:], d[z:, :w], d[z:, w:]
        return cls(a, b[:, :w], b[:, w:], c[:z], c[z:], *blocks, dt)

    @property
    def system(self) -> System:
        """From [w; u] to [z; y]."""
        d = np.block([[self.D11, self.D12], [self.D21, self.D22]])
        return self.A, np.hstack([self.B1, self.B2]), np.vstack([self.C1, self.C2]), d

    def replaced(self, system: System, *, dual: bool = False) -> "GeneralizedPlant":
        """The plant of another system from [w; u] to [z; y] with as many measurements and controls, or the reverse."""
        nmeas, ncon = self.D22.T.shape if dual else self.D22.shape
        return dataclasses.replace(self.of(system, nmeas, ncon), dt=self.dt, transformed=self.transformed)

    def transposed(self) -> "GeneralizedPlant":
        """The dual plant: its controls are the measurements."""
        a, b, c, d = self.system
        return self.replaced((a.T, c.T, b.T, d.T), dual=True)

    def scaled(self) -> "GeneralizedPlant":
        """The plant with states of like size."""
        return self.replaced(in_even_states(self.system))

    def even(self) -> tuple["GeneralizedPlant", np.ndarray, np.ndarray]:
        """The plant with states, controls and measurements of like size, u = diag(u) ũ and ỹ = diag(y) y; u, y."""
        plant, units = self.scaled(), []
        for side in (plant, plant.transposed()):  # by what each control does to z, at once and by way of the states
            through = np.linalg.norm(side.C1) / (np.linalg.norm(side.A) or 1.0) or 1.0
            size = np.linalg.norm(np.vstack([through * side.B2, side.D12]), axis=0)
            units.append(2.0 ** -np.round(np.log2(np.where(size > 0, size, 1.0))))
        (a, b, c, d), (u, y) = plant.system, units
        right, left = np.append(np.ones(self.B1.shape[1]), u), np.append(np.ones(len(self.C1)), y)
        return self.replaced((a, b * right, left[:, None] * c, left[:, None] * d * right)), u, y

    def closed(self, controller: System) -> System:
        """The loop from w to z with u = K y; a ``LinAlgError`` where u depends on itself: I − D D22 is singular."""
        a, b, c, d = controller
        back = np.linalg.inv(np.eye(len(d)) - d @ self.D22)  # u = back (c x + d (C2 x + D21 w))
        u_x, u_k, u_w = back @ d @ self.C2, back @ c, back @ d @ self.D21
        y_x, y_k, y_w = self.C2 + self.D22 @ u_x, self.D22 @ u_k, self.D21 + self.D22 @ u_w
        A = np.block([[self.A + self.B2 @ u_x, self.B2 @ u_k], [b @ y_x, a + b @ y_k]])
        B = np.vstack([self.B1 + self.B2 @ u_w, b @ y_w])
        return A, B, np.hstack([self.C1 + self.D12 @ u_x, self.D12 @ u_k]), self.D11 + self.D12 @ u_w

    def fed_back(self, gain: np.ndarray) -> "GeneralizedPlant":
        """The plant without D22 that v sees, where u = gain y + v."""
        y = np.hstack([self.D21, 0 * self.D22])
        acting = np.vstack([self.D12, 0 * self.D22]) @ gain
        a, b, c, d = self.system
        d = d - scipy.linalg.block_diag(0 * self.D11, self.D22)
        moved = a + self.B2 @ gain @ self.C2, b + self.B2 @ gain @ y, c + acting @ self.C2, d + acting @ y
        return self.replaced(moved)

    def controller(self, made: System, gain: np.ndarray, u: np.ndarray, y: np.ndarray) -> System:
        """The controller u = K y of one in the units u and y for the plant :meth:`fed_back`, in states of like size."""
        a, b, c, d = made
        back = u[:, None] * np.linalg.inv(np.eye(len(d)) + (d + gain) @ self.D22)  # u = K (y − D22 u)
        c, d = back @ c, back @ (d + gain) * y
        through = b @ (self.D22 / u)
        return in_even_states((a - through @ c, b * y - through @ d, c, d))

    def refuse_lost_modes(self) -> None:
        """Raise a ValueError that names the modes that no controller stabilizes."""
        scaled, (measured, controls) = self.scaled(), self.D22.shape
        for name, plant, what, cause in (
            ("B", scaled, "stabilizable", f"none of the last {controls} inputs moves it"),
            ("C", scaled.transposed(), "detectable", f"none of the last {measured} outputs sees it"),
        ):
            values, size = np.linalg.eigvals(plant.A), np.linalg.norm(plant.A, 2)
            margin = values.real if self.dt is None else np.abs(values) - 1
            doubtful = values[(margin >= -_AXIS * size) & (values.imag >= 0)]
            lost = dict.fromkeys(shown(v) for v in doubtful if controllability_distance(plant.A, plant.B2, v) < _LOST)
            if lost:
                raise ValueError(
                    f"A, {name}: expected a plant that a controller can stabilize, but the mode at {', '.join(lost)}"
                    f"{' rad/s' if self.dt is None else ' (discrete)'} is not {what}: {cause}; give the plant one that "
                    "does, or leave the mode out (an integrator of a weight: move its pole a little to where it decays)"
                )

    def penalty(self, eps: float, *, everything: bool = False) -> tuple[System, list[str]]:
        """The system with outputs added to z that make D12 of full rank, and leave no zero on the imaginary axis.

        They are of size ``eps``, relative to what the plant has; with ``everything`` each control and each state is
        added, needed or not. Returned are the system, and in words why each is needed.
        """
        a, b, c, d = self.A, self.B2, self.C1, self.D12
        _, sizes, right = np.linalg.svd(d)
        sizes = np.concatenate([sizes, np.zeros(len(right) - len(sizes))])
        # how much of each control there is in z by way of the states
        alike = np.linalg.norm(c) * np.linalg.norm(b @ right.T, axis=0) / (np.linalg.norm(a) or 1.0)
        alike = np.maximum(alike, _IDLE * (max(alike.max(), sizes.max()) or 1.0))
        missing = (sizes <= _MISSING * alike) | everything
        C, D = np.zeros((missing.sum(), len(a))), (alike[:, None] * right)[missing]
        # else a discrete plant lacks it only at z = −1, where the transform's infinity is
        everywhere = not self.transformed or len(d) < len(missing)
        reasons = [f"rank {int((~missing).sum())} of {len(missing)}"] if missing.any() and everywhere else []
        zeros = axis_zeros(a, b, np.vstack([c, C]), np.vstack([d, D]))
        D = eps * D
        named = [shown((1 + v) / (1 - v) if self.transformed else v) for v in zeros]
        named += ["-1"] if missing.any() and not everywhere else []
        if named:
            reasons.append("invariant zero on the stability boundary at " + ", ".join(dict.fromkeys(named)))
        if zeros or everything:
            size = np.linalg.norm(c) or np.linalg.norm(d) * np.linalg.norm(a) / (np.linalg.norm(b) or 1.0) or 1.0
            more = eps * size / len(a) ** 0.5 * np.eye(len(a))
            C, D = np.vstack([C, more]), np.vstack([D, np.zeros((len(a), len(right)))])
        z = len(c)
        A, B, C_all, D_all = self.system
        added = np.hstack([np.zeros((len(C), self.B1.shape[1])), D])
        return (A, B, np.insert(C_all, [z] * len(C), C, 0), np.insert(D_all, [z] * len(C), added, 0)), reasons

    def regularised(self, eps: float, *, everything: bool = False) -> tuple["GeneralizedPlant", tuple[str, ...]]:
        """The plant with outputs z and disturbances w added, so that no loop has a smaller norm than before.

        Of eps = 0 it is this one; and in words what this one lacks.
        """
        system, controls = self.penalty(eps, everything=everything)
        plant = self.replaced(system).transposed()
        system, measured = plant.penalty(eps, everything=everything)
        regular = plant.replaced(system).transposed()
        return (regular if eps else self), (*(f"D12: {r}" for r in controls), *(f"D21: {r}" for r in measured))

    def off_minus_one(self) -> np.ndarray:
        """A gain from y to u that moves the modes of a discrete plant off −1, which :meth:`continuous` cannot take."""
        gain, size = np.zeros(self.D22.T.shape), np.linalg.norm(self.A, 2)
        if self.dt is not None and np.linalg.svd(self.A + np.eye(len(self.A)))[1][-1] < 1e-6 * size:
            gain = np.random.default_rng(0).normal(size=gain.shape)
            gain *= 0.3 * size / np.linalg.norm(self.B2 @ gain @ self.C2)
        return gain

    def continuous(self) -> "GeneralizedPlant":
        """The continuous plant with the same gains."""
        if self.dt is None:
            return self
        return dataclasses.replace(self.replaced(bilinear(*self.system)), dt=None, transformed=True)

    def discrete(self, dt: float) -> "GeneralizedPlant":
        """The way back."""
        return dataclasses.replace(self.replaced(sampled(self.system)), dt=dt, transformed=False)


def sampled(system: System) -> System:
    """The discrete system of a continuous one, s = (z − 1) / (z + 1)."""
    a, b, c, d = system
    moved = np.linalg.inv(np.eye(len(a)) - a)
    return moved @ (a + np.eye(len(a))), 2**0.5 * moved @ b, 2**0.5 * c @ moved, d + c @ moved @ b


def beside(systems: Sequence[System]) -> System:
    """Systems with inputs and outputs of their own, as one."""
    return tuple(scipy.linalg.block_diag(*x) for x in zip(*systems))


def series(second: System, first: System) -> System:
    """The second behind the first."""
    (a, b, c, d), (e, f, g, h) = first, second
    A = np.block([[a, np.zeros((len(a), len(e)))], [f @ c, e]])
    return A, np.vstack([b, f @ d]), np.hstack([h @ c, g]), h @ d


def in_even_states(system: System) -> System:
    """A system in units of its states in which the rows and columns of its matrices are of like size."""
    a, b, c, d = system
    x = matrix_checks.even_units(a, b, c)
    return a * x / x[:, None], b / x[:, None], c * x, d


def axis_zeros(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> list[complex]:
    """Invariant zeros on the imaginary axis, one of a conjugate pair, of a system whose D has full column rank."""
    inverse = np.linalg.pinv(d, rcond=1e-12)
    free, seen = a - b @ inverse @ c, c - d @ (inverse @ c)
    values, size = np.linalg.eigvals(free), np.linalg.norm(a, 2)
    near = [1j * v.imag for v in values if abs(v.real) <= 1e-6 * size and v.imag >= 0]
    return [v for v in near if controllability_distance(free.T, seen.T, v) < _MISSING]


def shown(value: complex) -> str:
    """An eigenvalue in a few digits, for both of a pair."""
    pair = abs(value.imag) > 1e-9 * max(abs(value), 1e-300)
    return f"{value.real:.4g} ± {abs(value.imag):.4g}j" if pair else f"{value.real:.4g}"


def partitioned(
    function: str, A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, nmeas: int, ncon: int, dt: float | None
) -> GeneralizedPlant:
    """The checked generalized plant of a ``function``'s arguments, which a controller can stabilize."""
    matrix_checks.on_host(function, A, B, C, D, dt)
    dt = matrix_checks.host_sample_time(function, dt)
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn"), "D": (D, "pm")}
    a, b, c, d = matrix_checks.host_matrices(function, **given)
    if not len(a):
        raise ValueError(f"A: expected at least one state, but found shape {a.shape}")
    outputs, inputs = d.shape
    if whole("nmeas", nmeas) >= outputs:
        raise ValueError(
            f"nmeas: expected fewer than the {outputs} outputs, some of which are kept small, but found {nmeas}"
        )
    if whole("ncon", ncon) >= inputs:
        raise ValueError(f"ncon: expected fewer than the {inputs} inputs, some of which disturb, but found {ncon}")
    plant = GeneralizedPlant.of((a, b, c, d), int(nmeas), int(ncon), dt)
    with np.errstate(all="ignore"):
        scaled = plant.scaled().system
    if not all(np.isfinite(x).all() and np.abs(x).max(initial=0) < 1e100 for x in scaled):
        raise ValueError("A, B, C, D: expected numbers nearer to one, whose products are finite; choose other units")
    plant.refuse_lost_modes()
    return plant


@dataclasses.dataclass(frozen=True)
class UncertaintyBlock:
    """Of Δ: full, or a scalar times the identity, complex or real.

    Attributes:
        full: any complex matrix; else a scalar times the identity.
        real: that scalar is real.
        begin, end: its first row and column in Δ, and those after its last; rows are inputs of M, columns outputs.
    """

    full: bool
    real: bool
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def rows(self) -> slice:
        """Its rows in Δ."""
        return slice(self.begin[0], self.end[0])

    @property
    def columns(self) -> slice:
        """Its columns in Δ."""
        return slice(self.begin[1], self.end[1])

    @property
    def size(self) -> int:
        """Number of its rows."""
        return self.end[0] - self.begin[0]


def uncertainty_structure(blocks: Any, z: int, w: int) -> tuple[UncertaintyBlock, ...]:
    """Blocks as ``robust.mu`` takes them, for M of shape (z, w); a ``ValueError`` where they do not go with it."""
    blocks = blocks.tolist() if isinstance(blocks, np.ndarray) else blocks
    if not isinstance(blocks, Sequence) or isinstance(blocks, str) or not blocks:
        raise ValueError(f"blocks: expected a list of the blocks of Δ, but found {blocks!r}")
    found, i, j = [], 0, 0
    for given in blocks:
        several = isinstance(given, tuple | list)
        pair = [whole("blocks", x, None) for x in (given if several else [given])]
        pair = pair if several else [*pair, max(*pair, 0)]
        if len(pair) != 2 or pair[0] == 0 or pair[1] < 0 or (pair[0] < 0 < pair[1]):
            wanted = "(r, c), (r, 0) or (-r, 0) with whole numbers"
            raise ValueError(f"blocks: expected {wanted}, but found {given!r}")
        rows, columns = abs(int(pair[0])), int(pair[1]) or abs(int(pair[0]))
        full, real = bool(pair[1] > 0), bool(pair[0] < 0)
        found.append(UncertaintyBlock(full, real, (i, j), (i + rows, j + columns)))
        i, j = i + rows, j + columns
    if (i, j) != (w, z):
        raise ValueError(f"blocks: expected {w} rows and {z} columns, as M of shape {(z, w)} wants, but found {i}, {j}")
    return tuple(found)
