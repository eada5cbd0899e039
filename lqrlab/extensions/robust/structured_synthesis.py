"""H∞ and H2 synthesis of controllers of fixed order and structure, for one plant or several at once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Bool, Float

from lqrlab.compute.checks import choice, number, whole
from lqrlab.control import StateSpace, matrix_checks
from lqrlab.control.analysis.system_norms import hinf_norm, stable
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant, System, partitioned
from lqrlab.extensions.robust.hinf_synthesis import hinfsyn
from lqrlab.extensions.robust.model_reduction import balred
from lqrlab.extensions.robust.synthesis_result import Synthesis

_NOTHING = 1e-12  # of a direct effect, relative, beside which an H2 norm is infinite


@dataclasses.dataclass(frozen=True)
class NormRequirement:
    """A norm of the closed loop, and its bound.

    Attributes:
        norm: ``"hinf"``, the largest gain, or ``"h2"``, the root mean square under unit white noise.
        at_most: what it is to be at most; norms are compared relative to it.
        outputs: numbers of the outputs z that it is of; all if left out.
        inputs: numbers of the disturbances w; all if left out.
        name: for the answer.

    >>> robust.NormRequirement("h2", 2.0, outputs=[0]).at_most
    2.0
    """

    norm: str = "hinf"
    at_most: float = 1.0
    outputs: Sequence[int] | None = None
    inputs: Sequence[int] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        choice("norm", self.norm, ("hinf", "h2"))
        number("at_most", self.at_most, "a number above 0", above=0)
        for name, given in (("outputs", self.outputs), ("inputs", self.inputs)):
            _chosen(name, given, 0 if given is None else 2**63)

    def of(self, plant: GeneralizedPlant) -> GeneralizedPlant:
        """The plant with these outputs and disturbances alone."""
        rows = _chosen("outputs", self.outputs, len(plant.C1))
        columns = _chosen("inputs", self.inputs, plant.B1.shape[1])
        return dataclasses.replace(
            plant,
            B1=plant.B1[:, columns],
            C1=plant.C1[rows],
            D11=plant.D11[np.ix_(rows, columns)],
            D12=plant.D12[rows],
            D21=plant.D21[:, columns],
        )

    def value(self, loop: System, dt: float | None) -> float:
        """The norm of a stable loop, relative to its bound."""
        if self.norm == "hinf":
            return hinf_norm(*loop, dt)[0] / self.at_most
        return h2(loop, dt)[0] / self.at_most


def _chosen(name: str, given: Any, count: int) -> list[int]:
    numbers = range(count) if given is None else given if np.ndim(given) else [given]
    found = [whole(name, i, 0) for i in numbers]
    if max(found, default=count) >= count and given is not None:
        raise ValueError(f"{name}: expected numbers from 0 to {count - 1}, at least one, but found {given!r}")
    return found


def h2(loop: System, dt: float | None) -> tuple[float, Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]]:
    """The H2 norm of a stable loop, and its Gramians of the states reached and of the states seen.

    Infinite for a continuous loop with a direct effect.
    """
    a, b, c, d = loop
    if dt is None:
        reached = scipy.linalg.solve_continuous_lyapunov(a, -b @ b.T)
        seen = scipy.linalg.solve_continuous_lyapunov(a.T, -c.T @ c)
        square = np.trace(c @ reached @ c.T)
        direct = np.abs(d).max(initial=0.0)
        if direct > _NOTHING * max(np.abs(c).max(initial=0.0) * np.abs(b).max(initial=0.0), 1e-300):
            square = np.inf
    else:
        reached = scipy.linalg.solve_discrete_lyapunov(a, b @ b.T)
        seen = scipy.linalg.solve_discrete_lyapunov(a.T, c.T @ c)
        square = np.trace(c @ reached @ c.T) + np.sum(d**2)
    return float(np.sqrt(max(square, 0.0))), reached, seen


Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A function of a vector, infinite where it is not defined, with its gradient."""

_STEPS, _HALVINGS, _LONGEST, _REST = 300, 40, 64.0, 1e-6
_NEARBY = 0.1, 0.03, 0.01, 0.003, 0.001  # relative, from where the best is looked for once more
_DECREASE, _SLOPE = 1e-4, 0.9  # of a line search: weak Wolfe conditions
_DECAY, _LEAST = 1e-3, 1e-6  # how fast a loop decays that a descent begins with, and each at least, over its size
_LIKE = 1.01  # times the best norm: starts that end there have found the same


def hinfstruct(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    D: ArrayLike,
    nmeas: int,
    ncon: int,
    order: int = 0,
    *,
    free: ArrayLike | None = None,
    requirements: Sequence[NormRequirement] = (NormRequirement(),),
    starts: int = 10,
    seed: int = 0,
    dt: float | None = None,
) -> Synthesis:
    """Controller u = K y of fixed order or structure with the least H∞ norm that a search finds, on the host.

    From each start the loop is stabilized and its norm descends along exact gradients to a local optimum. Of several
    plants, or requirements (each norm relative to its bound), the worst counts; ``remark`` says each.

    Args:
        A, B, C, D, nmeas, ncon, dt: as for :func:`hinfsyn`; several plants by leading axes ``[*batch, …]``.
        order: states of the controller; 0 is static output feedback.
        free: entries of the controller's [[D, C], [B, A]] that may differ from zero, ``[ncon + order, nmeas + order]``.
        requirements: norms of chosen channels; the H∞ norm from w to z if left out.
        starts, seed: number of searches, and of their random starts.

    Raises:
        ValueError: wrong arguments; no search led to a controller with which all loops are stable.

    Source: P. Apkarian and D. Noll, IEEE Trans. Automatic Control 51 (2006); J. V. Burke et al., HIFOO, IFAC ROCOND
    2006; A. S. Lewis and M. L. Overton, Mathematical Programming 141 (2013) (the line search).

    >>> integrator = [[0.0]], [[1.0, 1.0]], [[1.0], [0.0], [1.0]], [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    >>> found = robust.hinfstruct(*integrator, nmeas=1, ncon=1)  # √(1 + k²) / k from w to [x; u] with u = −k x
    >>> bool(1 < found.norm < 1.01)
    True
    """
    plants = _plants((A, B, C, D), nmeas, ncon, dt)
    order, starts = whole("order", order, 0), whole("starts", starts)
    size = ncon + order, nmeas + order
    allowed = _pattern(free, size)
    if not isinstance(requirements, Sequence) or not requirements:
        raise ValueError(f"requirements: expected a list of NormRequirement, at least one, but found {requirements!r}")
    loops = [_Loop.of(each.of(plant), order, each) for plant in plants for each in requirements]
    norm, decay = (_of_entries(allowed, [getattr(loop, name) for loop in loops]) for name in ("norm", "decay"))
    found, rng = [], np.random.default_rng(whole("seed", seed, 0))
    for x in _starts(plants[0], order, allowed, starts, rng):
        stable = _descend(decay, x, enough=-_DECAY * min(loop.size for loop in loops))
        found.append(_descend(norm, stable[1]) if np.isfinite(norm(stable[1])[0]) else (np.inf, x))
    best = min(found, key=lambda each: each[0])
    for distance in _NEARBY if np.isfinite(best[0]) else ():  # out of a kink, where gradients mislead
        around = best[1] * (1 + distance * rng.normal(size=best[1].shape))
        best = min(best, _descend(norm, around), key=lambda each: each[0])
    if not np.isfinite(best[0]):
        kind = "" if free is None else "of this structure "
        raise ValueError(
            f"order: no controller of order {order} {kind}was found from {starts} starts with which each loop is "
            "stable: there may be none; allow a higher order or more entries in free, or try more starts"
        )
    K = np.zeros(size)
    K[allowed] = best[1]
    alike = sum(each[0] <= best[0] * _LIKE for each in found)
    return _measured(plants, K, (ncon, nmeas), requirements, f"{alike} of {starts} starts end within 1 % of this norm")


def _plants(systems: tuple[ArrayLike, ...], nmeas: int, ncon: int, dt: float | None) -> list[GeneralizedPlant]:
    matrix_checks.on_host("hinfstruct", *systems, dt)
    stacks = [np.asarray(matrix_checks.real(name, a), float) for name, a in zip("ABCD", systems)]
    for name, a in zip("ABCD", stacks):
        if a.ndim < 2:
            raise ValueError(f"{name}: expected a matrix, or one for each plant, but found shape {a.shape}")
    lead = np.broadcast_shapes(*(a.shape[:-2] for a in stacks))
    num = int(np.prod(lead))
    flat = [np.broadcast_to(a, (*lead, *a.shape[-2:])).reshape(num, *a.shape[-2:]) for a in stacks]
    plants = [partitioned("hinfstruct", a, b, c, d, nmeas, ncon, dt) for a, b, c, d in zip(*flat)]
    if not plants:
        raise ValueError(f"A, B, C, D: expected at least one plant, but found leading axes {lead}")
    if any((plant.D22 != plants[0].D22).any() for plant in plants):
        raise ValueError("D: expected plants with the same direct effect of u on y, but found several (D22)")
    return plants


def _pattern(free: ArrayLike | None, size: tuple[int, int]) -> Bool[np.ndarray, "r c"]:
    if free is None:
        return np.ones(size, bool)
    allowed = np.asarray(matrix_checks.real("free", np.multiply(free, 1)))  # truth values too
    if allowed.shape != size or not np.isin(allowed, (0, 1)).all() or not allowed.any():
        raise ValueError(
            f"free: expected {size[0]} by {size[1]} entries, true where [[D, C], [B, A]] of the controller may differ "
            f"from zero, at least one of them, but found shape {allowed.shape}"
        )
    return allowed.astype(bool)


@dataclasses.dataclass(frozen=True)
class _Loop:
    """x' = (A + B2 K C2) x + (B1 + B2 K D21) w, z = (C1 + D12 K C2) x + (D11 + D12 K D21) w, K = [[D, C], [B, A]]."""

    plant: GeneralizedPlant
    requirement: NormRequirement

    @classmethod
    def of(cls, p: GeneralizedPlant, order: int, requirement: NormRequirement) -> "_Loop":
        """The loop of a plant, its D22 left out, whose controller's states are states that K sees and moves."""
        (n, w), (z, k) = p.B1.shape, (len(p.C1), order)
        nmeas, ncon = p.D22.shape
        a = np.pad(p.A, ((0, k), (0, k)))
        b = np.block([[p.B1, p.B2, np.zeros((n, k))], [np.zeros((k, w + ncon)), np.eye(k)]])
        c = np.block([[p.C1, np.zeros((z, k))], [p.C2, np.zeros((nmeas, k))], [np.zeros((k, n)), np.eye(k)]])
        d = np.pad(np.block([[p.D11, p.D12], [p.D21, p.D22]]), ((0, k), (0, k)))
        return cls(GeneralizedPlant.of((a, b, c, d), nmeas + k, ncon + k, p.dt), requirement)

    @property
    def size(self) -> float:
        """Of the plant's modes."""
        return 1.0 if self.plant.dt is not None else float(np.linalg.norm(self.plant.A, 2)) or 1.0

    def closed(self, K: np.ndarray) -> System:
        """From w to z."""
        p = self.plant
        return p.A + p.B2 @ K @ p.C2, p.B1 + p.B2 @ K @ p.D21, p.C1 + p.D12 @ K @ p.C2, p.D11 + p.D12 @ K @ p.D21

    def norm(self, K: np.ndarray) -> tuple[float, np.ndarray]:
        """The norm that is required over its bound, infinite if the loop is not stable, and its gradient."""
        if not self.decay(K)[0] < -_LEAST * self.size:
            return np.inf, np.zeros_like(K)
        value, slope = self._h2(K) if self.requirement.norm == "h2" else self._hinf(K)
        return value / self.requirement.at_most, slope / self.requirement.at_most

    def _h2(self, K: np.ndarray) -> tuple[float, np.ndarray]:
        """The H2 norm, and its gradient by the two Gramians."""
        p, loop = self.plant, self.closed(K)
        value, reached, seen = h2(loop, p.dt)
        if not np.isfinite(value) or value <= 0:
            return value, np.zeros_like(K)
        a, b, c, d = loop
        moved = seen @ (reached if p.dt is None else a @ reached)
        slope = p.B2.T @ (moved @ p.C2.T + seen @ b @ p.D21.T) + p.D12.T @ c @ reached @ p.C2.T
        return value, (slope if p.dt is None else slope + p.D12.T @ d @ p.D21.T) / value

    def _hinf(self, K: np.ndarray) -> tuple[float, np.ndarray]:
        """The H∞ norm, and its gradient: that of the gain at its peak."""
        p, (a, b, c, d) = self.plant, self.closed(K)
        value, frequency = hinf_norm(a, b, c, d, p.dt)
        left, right, response = p.D12, p.D21, d
        if np.isfinite(frequency):
            at = 1j * frequency if p.dt is None else np.exp(1j * frequency * p.dt)
            resolvent = np.linalg.inv(at * np.eye(len(a)) - a)
            left, right = c @ resolvent @ p.B2 + left, p.C2 @ resolvent @ b + right
            response = c @ resolvent @ b + d
        u, _, v = np.linalg.svd(response)
        return value, np.outer(u[:, 0].conj() @ left, right @ v[0].conj()).real

    def decay(self, K: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest real part of the modes, or of the logarithm of their size if discrete, and its gradient."""
        p, a = self.plant, self.closed(K)[0]
        if not np.isfinite(a).all():
            return np.inf, np.zeros_like(K)
        values, vectors = np.linalg.eig(a)
        i = int(np.argmax(values.real if p.dt is None else np.abs(values)))
        mode, x = values[i], vectors[:, i]
        weight = np.linalg.pinv(vectors)[i]  # y of yᵀ dA x = dλ
        slope = np.outer(weight @ p.B2, p.C2 @ x)
        if p.dt is None:
            return float(mode.real), slope.real
        return float(np.log(np.abs(mode) + 1e-300)), (slope / (mode if mode else 1.0)).real


def _of_entries(allowed: np.ndarray, functions: list[Callable]) -> Objective:
    """The largest of some functions of K as a function of its free entries."""

    def largest(x: np.ndarray) -> tuple[float, np.ndarray]:
        K = np.zeros(allowed.shape)
        K[allowed] = x
        value, slope = max((f(K) for f in functions), key=lambda each: each[0])
        return value, slope[allowed]

    return largest


def _starts(plant: GeneralizedPlant, order: int, allowed: np.ndarray, num: int, rng: np.random.Generator) -> list:
    """The controller of full order, reduced, if there is one and its structure is free; zero; random ones."""
    made, size = [], np.linalg.norm(plant.A, 2) / (np.linalg.norm(plant.B2) * np.linalg.norm(plant.C2) or 1.0) or 1.0
    nmeas, ncon = plant.D22.shape
    if order and allowed.all():
        try:
            full = hinfsyn(*plant.system, nmeas, ncon, plant.dt)
            small = balred(*full.controller.matrices, order, plant.dt).system
        except ValueError:
            pass
        else:
            K, k = np.zeros(allowed.shape), small.order
            K[: ncon + k, : nmeas + k] = np.block([[small.D, small.C], [small.B, small.A]])
            made.append(K[allowed])
    made.append(np.zeros(allowed.sum()))
    made += [size * rng.normal(size=allowed.sum()) * 10 ** rng.uniform(-1.5, 0.5) for _ in range(num)]
    return made[:num]


def _descend(function: Objective, x: np.ndarray, enough: float = -np.inf) -> tuple[float, np.ndarray]:
    """A local minimum by BFGS with a line search for weak Wolfe conditions; the first x that is good enough."""
    value, slope = function(x)
    H = np.eye(len(x)) / (np.linalg.norm(slope) or 1.0)
    for _ in range(_STEPS):
        direction = -H @ slope
        fall = float(slope @ direction)
        if not np.isfinite(value) or value <= enough or fall >= 0:
            break
        step, low, high = 1.0, 0.0, np.inf
        for _ in range(_HALVINGS):
            there, slope_there = function(x + step * direction)
            if not there <= value + _DECREASE * step * fall:
                high = step
            elif slope_there @ direction < _SLOPE * fall:
                low = step
                if step >= _LONGEST:  # the norm falls towards an infinite gain
                    break
            else:
                break
            step = (low + high) / 2 if np.isfinite(high) else 2 * low
        if not there < value:
            break
        moved, turned, fell = step * direction, slope_there - slope, value - there
        x, value, slope = x + moved, there, slope_there
        curvature = float(moved @ turned)
        if curvature > 0:
            left = np.eye(len(x)) - np.outer(moved, turned) / curvature
            H = left @ H @ left.T + np.outer(moved, moved) / curvature
        if fell <= _REST * abs(value):
            break
    return value, x


def _measured(
    plants: list[GeneralizedPlant],
    K: Float[np.ndarray, "r c"],
    size: tuple[int, int],
    requirements: Sequence[NormRequirement],
    remark: str,
) -> Synthesis:
    """The controller with what its loops are measured to have."""
    ncon, nmeas = size
    one = np.ones(ncon), np.ones(nmeas)
    made = K[ncon:, nmeas:], K[ncon:, :nmeas], K[:ncon, nmeas:], K[:ncon, :nmeas]
    controller = plants[0].controller(made, np.zeros((ncon, nmeas)), *one)
    loops = [plant.closed(controller) for plant in plants]
    assert all(stable(loop[0], plant.dt) for loop, plant in zip(loops, plants))
    each = np.array([[r.value(r.of(p).closed(controller), p.dt) for r in requirements] for p in plants])
    norms = each.max(axis=1)
    worst = int(np.argmax(norms))
    if len(requirements) > 1:
        said = (
            f"{r.name or r.norm}: {most * r.at_most:.4g} of at most {r.at_most:g}"
            for r, most in zip(requirements, each.max(axis=0))
        )
        remark = "; ".join([*said, remark])
    poles = np.linalg.eigvals(loops[worst][0]).astype(complex)
    norm = float(norms[worst])
    return Synthesis(StateSpace(*controller, plants[0].dt), norm, norm, poles, 0.0, 0.0, remark)
