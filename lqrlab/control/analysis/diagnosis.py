"""Controllability and diagnosis: matrices, Gramians, the distance mode by mode, and in words what can be controlled."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute.checks import flag
from lqrlab.control import discretization, matrix_checks
from lqrlab.control.analysis.eigenmodes import Mode, dominant_states, modes
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.regulator import dlqr, lqr
from lqrlab.control.riccati import on_host

_ZERO = 1e-14  # an input so much weaker than the others, in whatever units, is rounding
_NEAR = 1e-5  # the boundary: rounding moves a double pole by the root of its size


def ctrb(A: ArrayLike, B: ArrayLike) -> Float[Array, "*batch n nm"]:
    """[B, AB, …, Aⁿ⁻¹B] ``[..., n, n m]``. Its numerical rank misleads; :func:`diagnose` asks mode by mode.

    >>> control.ctrb([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]]).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    A, B = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"))
    columns = [B]
    for _ in range(A.shape[-1] - 1):
        columns.append(A @ columns[-1])
    return jnp.concatenate(columns, axis=-1)


def obsv(A: ArrayLike, C: ArrayLike) -> Float[Array, "*batch np n"]:
    """[C; CA; …; CAⁿ⁻¹] ``[..., n p, n]``.

    >>> control.obsv([[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0]]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    A, C = matrix_checks.matrices(A=(A, "nn"), C=(C, "pn"))
    return ctrb(A.mT, C.mT).mT


def gram(A: ArrayLike, B: ArrayLike, *, discrete: bool = False) -> Float[Array, "*batch n n"]:
    """Controllability Gramian ∫ eᴬᵗBBᵀeᴬᵀᵗ dt (Σ AᵏBBᵀAᵀᵏ if ``discrete``) of a stable A; batched, differentiable.

    Its inverse is the least energy that reaches a state. The observability Gramian is ``gram(A.T, C.T)``.

    Args:
        A: ``[..., n, n]``, stable.
        B: ``[..., n, m]``.

    Returns:
        ``[..., n, n]``; NaN where A is unstable.

    >>> control.gram([[-0.5]], [[2.0]])
    Array([[4.]], dtype=float64)
    """
    A, B = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"))
    flag("discrete", discrete)
    return (dlyap if discrete else lyap)(A, B @ B.mT)


def controllability_distance(A: np.ndarray, B: np.ndarray, value: complex) -> float:
    """σₙ([A − λI, B]) / σ₁: zero where no input moves the mode at λ.

    It is the size of the smallest change of [A, B], relative to it, that makes λ an uncontrollable mode, in units of
    the states in which rows and columns are of like size, of inputs as large as A. Undetectable: the same of Aᵀ, Cᵀ.

    Source: M. L. J. Hautus, Controllability and observability of autonomous systems, Indag. Math. 72 (1969).
    """
    columns = np.linalg.norm(B, axis=0)
    counts = columns > _ZERO * columns.max(initial=0.0)
    size = np.linalg.norm(A, 2) or 1.0
    x = matrix_checks.even_units(A, B[:, counts] / columns[counts] * size, np.zeros((0, len(A))))
    A, B = A * x / x[:, None], B[:, counts] / x[:, None]
    B = B / np.linalg.norm(B, axis=0) * (np.linalg.norm(A, 2) or 1.0)
    sizes = np.linalg.svd(np.hstack([A - value * np.eye(len(A)), B]), compute_uv=False)
    return float(sizes[-1] / max(sizes[0], 1e-300))


def why_not(problem: Sequence[np.ndarray], *, continuous: bool, residual: float | None = None) -> str:
    """Why one problem A, B, Q, R, N has no stabilizing optimum: the mode at fault, and a remedy.

    Or why its optimum cannot be given, where a stable loop was found whose equation leaves too large a ``residual``.
    A sixth number is the sample time [s] of the discrete problem that is asked for.
    """
    A = problem[0]
    for name, a in zip("ABQ", problem):
        if (largest := float(np.abs(a).max())) > float(np.finfo(a.dtype).max) ** (1 / 3):
            return (
                f"{name}: its entry of size {largest:.3g} is too large: products with it overflow in {a.dtype}; "
                "rescale states and inputs to deviations of order one"
            )
    if (found := fault(problem[:5], continuous=continuous)) is not None:
        return found
    if len(problem) == 6:
        sampled = [a[0] for a in discretization.sampled_on_host(*(np.asarray(a, float)[None] for a in problem))]
        if (found := fault(sampled, continuous=False)) is not None:
            return f"sampled every {float(problem[5]):.6g} s, the {found}, or choose another sample time"
    if residual is not None:
        return (
            f"a stable loop was found, but its Riccati equation leaves a relative {residual:.1g}: an unstable mode is "
            f"hardly moved by the input, and {A.dtype} does not hold the digits of so large an optimal cost; choose an "
            "input that moves it more, or rescale states and inputs to deviations of order one"
        )
    return (
        "no stabilizing solution was found although every unstable mode can be reached: the problem is close to "
        "one that has none, or badly scaled; rescale states and inputs to deviations of order one"
    )


def fault(problem: Sequence[np.ndarray], *, continuous: bool) -> str | None:
    """The mode, in words, because of which A, B, Q, R, N have no stabilizing optimum; None if there is no such mode."""
    A, B, Q = problem[:3]
    values, vectors = np.linalg.eig(A)
    margin = values.real if continuous else np.abs(values) - 1
    size = max(float(np.linalg.norm(A, 2)), 1e-300)

    def named(value: complex) -> str:
        pair = abs(value.imag) > 1e-9 * size
        where = f"{value.real:+.3g}" + (f" ± {abs(value.imag):.3g}j" if pair else "")
        return f"mode at {where}{' rad/s' if continuous else ' (discrete)'}"

    for i in np.argsort(-margin):
        value = values[i]
        if margin[i] >= -1e-9 * size and controllability_distance(A, B, value) < 1e-9:
            states = ", ".join(map(str, dominant_states(vectors[:, i])))
            return (
                f"{named(value)} is not stabilizable: no input moves it (it is dominated by state {states}); "
                "give the plant an input that reaches it, or leave the mode out"
            )
        if abs(margin[i]) <= 1e-6 * size and controllability_distance(A.T, Q.T, value) < 1e-9:
            return (
                f"{named(value)} lies on the stability boundary and Q does not see it (not detectable): the "
                "optimum leaves it alone and the loop is not stable; give the states it moves some weight"
            )
    pencil = on_host.optimality(problem, continuous)
    best = np.zeros(0) if pencil is None else scipy.linalg.eigvals(*pencil)  # of the optimal loop, and their images
    best = best[np.isfinite(best)]
    edge = np.abs(best.real) / size if continuous else np.abs(np.abs(best) - 1)
    if len(edge) and edge[k := int(np.argmin(edge))] < _NEAR:
        return (
            f"{named(best[k])} of the optimal loop lies on the stability boundary, as near as rounding tells: a motion "
            "in it costs nothing and does not decay; give its states, or each input, some weight"
        )
    return None


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The answer of :func:`diagnose`; prints as sentences.

    Attributes:
        modes: of the plant.
        scaling: factors that the states should be divided by to even out A, B, Q, R.
        residual: of the Riccati equation, relative; NaN if there is no design.
        sentences: all of it in words, the worst first.
    """

    modes: tuple[Mode, ...]
    scaling: Float[np.ndarray, " n"]
    residual: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def diagnose(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None, dt: float | None = None
) -> Diagnosis:
    """Diagnose stabilizability, detectability and conditioning of a design problem, mode by mode, as text.

    Args:
        A, B, Q, R, N: one problem as in :func:`lqr`, or as in :func:`dlqr` if ``dt`` [s] is given.

    Raises:
        ValueError: wrong shapes, numbers that are not finite.

    >>> "not stabilizable" in str(control.diagnose([[1.0]], [[0.0]], [[1.0]], [[1.0]]))
    True
    """
    problem = [np.asarray(x, float) for x in matrix_checks.one_problem("diagnose", A, B, Q, R, N, weights=False)]
    a, b = problem[:2]
    plant_modes = modes(a, dt)
    values = np.array([m.pole if dt is None else np.exp(m.pole * dt) for m in plant_modes])
    controllable = np.array([controllability_distance(a, b, v) for v in values])
    scaling, _ = on_host.scales(problem)
    decay = -values.real / max(float(np.linalg.norm(a, 2)), 1e-300) if dt is None else 1 - np.abs(values)
    try:
        residual = float((lqr if dt is None else dlqr)(A, B, Q, R, N).residual)
        remarks = _remarks(plant_modes, controllable, np.full_like(decay, True), scaling)  # what no input moves decays
        remarks.append(f"The regulator exists; its equation holds to {residual:.1g}.")
    except ValueError as error:
        residual = np.nan
        remarks = [f"There is no regulator: {error}.", *_remarks(plant_modes, controllable, decay > _NEAR, scaling)]
    return Diagnosis(tuple(plant_modes), scaling, residual, tuple(remarks))


def _remarks(plant_modes: list[Mode], controllable: np.ndarray, decaying: np.ndarray, scaling: np.ndarray) -> list[str]:
    """Modes that the inputs hardly move or do not move, and bad scaling, in words."""
    remarks = []
    for mode, near, decays in zip(plant_modes, controllable, decaying):
        if near < 1e-12:
            remarks.append(f"The {mode} is moved by no input{', but decays' if decays else ''}.")
        elif near < 1e-6:
            text = f"The {mode} is barely controllable: a relative change of {near:.1g} would make it uncontrollable."
            remarks.append(text)
    ratio = scaling.max() / scaling.min()
    if ratio > 1e4:
        worst = np.argsort(np.abs(np.log(scaling)))[::-1][:4]
        units = ", ".join(f"state {i} by {scaling[i]:.2g}" for i in worst)
        remarks.append(f"The scaling is bad by a factor of {ratio:.1g}: divide {units}.")
    return remarks
