"""H∞ synthesis: the controller that makes the largest gain from w to z nearly least; and loop shaping by it."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike

from lqrlab.control import matrix_checks
from lqrlab.control.analysis.system_norms import hinf_norm
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant, System, beside, partitioned, sampled, series
from lqrlab.extensions.robust.synthesis_result import Synthesis, best_controller

_SKEW = 1e-3  # times U1's least singular value: a subspace of both eigenvalues of a pair on the axis is not symmetric
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class StableSubspace:
    """X = U2 U1⁻¹, the stabilizing solution of a Riccati equation, without the inverse: X may be unbounded.

    Attributes:
        U1, U2: ``[n, n]``; U1ᵀU2 is symmetric.
        motion: A + BF in the coordinates of the subspace: (A + BF) U1 = U1 motion.
        gain: F U1, where F = −R⁻¹(DᵀC + BᵀX).
        least: least eigenvalue of U1ᵀU2, scaled: X is semidefinite where this is not below zero.
    """

    U1: np.ndarray
    U2: np.ndarray
    motion: np.ndarray
    gain: np.ndarray
    least: float

    def solution(self) -> tuple[np.ndarray, np.ndarray]:
        """X and F."""
        x, f = (np.linalg.solve(self.U1.T, u.T).T for u in (self.U2, self.gain))
        return (x + x.T) / 2, f


def stable_subspace(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, squares: np.ndarray
) -> StableSubspace | None:
    """The stabilizing solution for the cost |Cx + Du|² − Σ squares u², maximized over inputs with large squares.

    ``squares`` has γ² of each input that disturbs, zero of each that controls. None where an eigenvalue of the
    Hamiltonian matrix lies on the imaginary axis: there is no such solution.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), sections 13.2 and 17.1; A. J. Laub,
    A Schur method for solving algebraic Riccati equations, IEEE Transactions on Automatic Control 24 (1979).
    """
    n = len(a)
    try:
        inner = np.linalg.inv(d.T @ d - np.diag(squares))
        cross, row = d.T @ c, inner @ np.hstack([d.T @ c, b.T])
        upper = np.hstack([a, np.zeros((n, n))]) - b @ row
        lower = np.hstack([-c.T @ c, -a.T]) + cross.T @ row
        size, acts, costs = (float(np.linalg.norm(x)) for x in (upper[:, :n], upper[:, n:], lower[:, :n]))
        # X = s X̃ of order one: by cost, by instability
        s = max(costs / acts, (size / acts) ** 2) ** 0.5 if acts else 0.0
        s = 2.0 ** np.round(np.log2(s)) if 0 < s < np.inf else 1.0
        scaled = np.vstack([np.hstack([upper[:, :n], upper[:, n:] * s]), np.hstack([lower[:, :n] / s, lower[:, n:]])])
        motion, basis, count = scipy.linalg.schur(scaled, sort="lhp", check_finite=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    U1, U2 = basis[:n, :n], basis[n:, :n]
    product = U1.T @ U2
    skew = np.abs(product - product.T).max()
    if count != n or skew > max(_SKEW * np.linalg.svd(U1)[1][-1], _ROUNDING):
        return None
    gain = -row @ np.vstack([U1, s * U2])
    least = float(np.linalg.eigvalsh((product + product.T) / 2)[0])
    return StableSubspace(U1, s * U2, motion[:n, :n], gain, least)


_BRACKET = 5e-5  # relative width at which the bisection ends
_ABOVE = 5e-4, 2e-3, 1e-2, 5e-2, 0.2, 1.0, 4.0, 20.0  # the optimum: where controllers are tried
_FIRST = 1e-3  # relative width of the first step down from a level that is near the optimum
_LARGEST, _LEAST = 1e9, 1e-9  # times the level that the search starts from
_INDEFINITE = -1e-9


def hinfsyn(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, nmeas: int, ncon: int, dt: float | None = None
) -> Synthesis:
    """H∞ controller u = K y of a plant from [w; u] to [z; y]: least H∞ norm from w to z within 1e-3, on the host.

    A singular plant is made regular by small added outputs and disturbances, and its loop measured without them.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, w + ncon]``, ``[z + nmeas, n]``, ``[z + nmeas, w + ncon]``; any D.
        nmeas, ncon: the last so many outputs are measured, y; the last so many inputs are controls, u.
        dt: sample time [s] of a discrete plant, which is solved as the continuous one with the same gains.

    Raises:
        ValueError: wrong arguments; a mode that cannot be stabilized or detected, with its eigenvalue; no controller
            whose loop is stable, with the level and the condition that fails there.

    Source: K. Glover, J. C. Doyle, Syst. Control Lett. 11 (1988); K. Zhou et al., Robust and Optimal Control (1996).

    >>> d = robust.hinfsyn([[1.0]], [[1.0, 0.0, 1.0]], [[1.0], [0.0], [1.0]], [[0, 0, 0], [0, 0, 1], [0, 1, 0]], 1, 1)
    >>> bool(d.norm <= d.gamma), d.controller.order
    (True, 1)
    """
    plant = partitioned("hinfsyn", A, B, C, D, nmeas, ncon, dt)
    return synthesis("hinfsyn", plant)


def synthesis(function: str, plant: GeneralizedPlant) -> Synthesis:
    """The H∞ controller of a checked plant."""
    even, *units = plant.even()
    with np.errstate(all="ignore"):
        gain = even.off_minus_one()
        continuous = even.fed_back(gain).continuous()
        failed: list[str] = []

        def solve(regular: GeneralizedPlant, below: float | None) -> tuple[float, "RegularProblem"] | None:
            problem = RegularProblem.of(regular)
            level, why = problem.optimum(below)
            failed.append(why or f"no loop of a controller above γ = {level:.4g} is stable in floating point")
            return None if level is None else (level, problem)

        def controllers(optimum: float, problem: "RegularProblem") -> Iterator[tuple[float, System]]:
            for level in (optimum * (1 + above) for above in _ABOVE):
                with contextlib.suppress(np.linalg.LinAlgError):  # the conditions do not hold there
                    made = continuous.controller(problem.controller(level), 0 * gain, *(np.ones(len(x)) for x in units))
                    made = made if plant.dt is None else sampled(made)
                    yield level, even.controller(made, gain, *units)

        best = best_controller(
            plant,
            continuous,
            solve,
            controllers,
            lambda loop: hinf_norm(*loop, plant.dt)[0],
            lambda optimum, problem: problem.limit(optimum),
        )
    if best is None:
        raise ValueError(
            f"{function}: no controller was found: {'; '.join(dict.fromkeys(failed))}; check for an unstable "
            "mode that is almost uncontrollable or undetectable, and for units far from one"
        )
    return best


@dataclasses.dataclass(frozen=True)
class RegularProblem:
    """A regular continuous plant with D12 = [0; I], D21 = [0, I], D22 = 0, and the way back.

    Attributes:
        plant: the normal form.
        inputs, outputs: u = inputs ũ and ỹ = outputs y.
    """

    plant: GeneralizedPlant
    inputs: np.ndarray
    outputs: np.ndarray

    @classmethod
    def of(cls, plant: GeneralizedPlant) -> "RegularProblem":
        """The normal form of a regular plant, by singular value decompositions of D12 and D21."""
        (z, u), (wt, yt) = _normalising(plant.D12), _normalising(plant.D21.T)
        nmeas, ncon = plant.D22.shape
        a, b, c, d = plant.system
        left = scipy.linalg.block_diag(z, yt.T)
        right = scipy.linalg.block_diag(wt.T, u)
        d = left @ d @ right
        d[-nmeas:, -ncon:] = 0
        d[:-nmeas, -ncon:] = np.eye(len(z))[:, len(z) - ncon :]
        d[-nmeas:, :-ncon] = np.eye(len(wt))[len(wt) - nmeas :]
        return cls(GeneralizedPlant.of((a, b @ right, left @ c, d), nmeas, ncon), u, yt.T)

    @functools.cached_property
    def floor(self) -> float:
        """The gain of D11 that no controller changes."""
        d = self.plant.D11
        nmeas, ncon = self.plant.D22.shape
        return max(_gain(d[: len(d) - ncon]), _gain(d[:, : d.shape[1] - nmeas]))

    def subspaces(self, level: float) -> tuple[StableSubspace, StableSubspace] | str:
        """Those of X and Y at a level γ, or the condition on one of them that fails."""
        if level <= self.floor * (1 + 1e-12):
            return "γ is not above the gain of D11 that no controller changes"
        found = []
        for name, plant in (("X of the control", self.plant), ("Y of the filter", self._dual)):
            a, b, c1, d1 = plant.A, np.hstack([plant.B1, plant.B2]), plant.C1, np.hstack([plant.D11, plant.D12])
            squares = np.repeat([level**2, 0.0], [plant.B1.shape[1], plant.B2.shape[1]])
            half = stable_subspace(a, b, c1, d1, squares)
            if half is None:
                return f"there is no solution {name} Riccati equation: its Hamiltonian matrix has imaginary eigenvalues"
            if half.least < _INDEFINITE:
                return f"the solution {name} Riccati equation is not positive semidefinite"
            found.append(half)
        return found[0], found[1]

    @functools.cached_property
    def _dual(self) -> GeneralizedPlant:
        return self.plant.transposed()

    def failing(self, level: float) -> tuple[str, float]:
        """The condition that fails at a level, empty if none does, and log ρ(XY)/γ², NaN if X or Y is at fault."""
        pair = self.subspaces(level)
        if isinstance(pair, str):
            return pair, np.nan
        x, y = pair
        try:
            radius = np.abs(scipy.linalg.eigvals(y.U2.T @ x.U2, y.U1.T @ x.U1, check_finite=False)).max()
        except np.linalg.LinAlgError:
            radius = np.nan
        coupling = float(np.log(max(radius, 1e-300)) - 2 * np.log(level))
        return ("" if coupling < 0 else "the spectral radius ρ(XY) is not below γ²"), coupling

    def optimum(self, below: float | None = None) -> tuple[float | None, str]:
        """The least level at which all conditions hold, by bisection, and the one that fails below it.

        Where ρ(XY) < γ² is the one, the secant of its logarithm leads there sooner. None, and what fails, if there is
        no such level, or none ``below`` one.
        """
        low, step = 0.0, 0.1
        high = below or max(self.floor, 1e-3 * _gain(self.plant.D11)) * 1.01 or 1.0
        start = high
        seen: list[tuple[float, float]] = []  # logarithms of levels and couplings
        while (found := self.failing(high))[0]:
            low, high = high, 10 * high
            if below or high > _LARGEST * start:
                return None, f"at γ = {low:.4g} {found[0]}"
        least = high * _LEAST
        if below:  # the optimum is likely to be near
            step = 1 - _FIRST
        level = high
        for k in itertools.count():
            seen = [*seen[-1:], (np.log(level), found[1])]
            if high <= least or high <= low * (1 + _BRACKET):
                return high, ""
            level = (low * high) ** 0.5 if low else max(high * step, self.floor)
            if k % 4 and len(seen) == 2 and (change := seen[1][1] - seen[0][1]):
                root = np.exp(seen[1][0] - seen[1][1] * (seen[1][0] - seen[0][0]) / change)
                sides = (root * (1 + 0.4 * _BRACKET), root * (1 - 0.4 * _BRACKET))
                level = next((s for s in sides if max(low, 0.01 * high) < s < high * (1 - 0.1 * _BRACKET)), level)
            found = self.failing(level)
            if found[0]:
                low = level
            else:
                high, step = level, max(step**2, 0.1)
        raise AssertionError

    def limit(self, level: float) -> str:
        """The condition that fails just below an optimum."""
        why, _ = self.failing(below := level * (1 - 2 * _BRACKET))
        return f"at γ = {below:.4g} {why}" if why else "no condition bounds γ below"

    def controller(self, level: float) -> System:
        """The central controller of a level, for the plant without D22.

        Written with U1, U2 of X and Y, so that neither has to be finite; the only inverse is that of
        V1ᵀU1 − γ⁻²V2ᵀU2, which is singular where ρ(XY) = γ²: a ``LinAlgError``, as where a condition does not hold.
        """
        pair, p = self.subspaces(level), self.plant
        if isinstance(pair, str):
            raise np.linalg.LinAlgError(pair)
        x, y = pair
        nmeas, ncon = p.D22.shape
        z, w = len(p.D11) - ncon, p.D11.shape[1] - nmeas
        d11, d12, d21, d22 = p.D11[:z, :w], p.D11[:z, w:], p.D11[z:, :w], p.D11[z:, w:]
        direct = -d21 @ d11.T @ np.linalg.solve(level**2 * np.eye(z) - d11 @ d11.T, d12) - d22
        f_w, f_u = x.gain[w : w + nmeas], x.gain[w + nmeas :]
        l_z, l_y = y.gain[z : z + ncon].T, y.gain[z + ncon :].T
        seen = -(p.C2 @ x.U1 + f_w)
        entering = -l_y + (y.U1.T @ p.B2 + l_z) @ direct
        # its inverse is shared among both sides: of a nearly optimal level it is large
        left, sizes, right = np.linalg.svd(y.U1.T @ x.U1 - y.U2.T @ x.U2 / level**2)
        root = sizes[:, None] ** 0.5
        b, seen = left.T @ entering / root, seen @ right.T / root.T
        a = root * (right @ x.motion @ right.T) / root.T + b @ seen
        c = f_u @ right.T / root.T + direct @ seen
        return a, b @ self.outputs, self.inputs @ c, self.inputs @ direct @ self.outputs


def _normalising(d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An orthogonal T and an R with T d R = [0; I], of a d with full column rank."""
    left, sizes, right = np.linalg.svd(d)
    return np.roll(left, -len(sizes), axis=1).T, right.T / sizes


def _gain(d: np.ndarray) -> float:
    return float(np.linalg.norm(d, 2)) if d.size else 0.0


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
    # the signals that are weighted, r − y, u and y, by the plant's states and [r; u]; and r − y, which is measured
    error = -c, np.hstack([np.eye(p), -d])
    signals = error, (np.zeros((m, n)), np.eye(m, p + m, p)), (c, np.hstack([np.zeros((p, p)), d]))
    rows = [signal for signal, W in zip(signals, (W1, W2, W3)) if W is not None]
    C, D = (np.vstack(parts) for parts in zip(*rows, error))
    plant = a, np.hstack([np.zeros((n, p)), b]), C, D
    measured = np.zeros((0, 0)), np.zeros((0, p)), np.zeros((p, 0)), np.eye(p)
    return synthesis("mixsyn", partitioned("mixsyn", *series(beside([*weights, measured]), plant), p, m, dt))


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
