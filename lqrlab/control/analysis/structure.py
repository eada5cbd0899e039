"""What a plant lets a controller do: modes, controllability, Gramians, and a diagnosis in words."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.control import checks
from lqrlab.control.lyapunov import dlyap, lyap
from lqrlab.control.riccati import equations


def ctrb(A: ArrayLike, B: ArrayLike) -> Array:
    """[B, AB, …, Aⁿ⁻¹B] ``[..., n, n m]``. Its numerical rank misleads; :func:`diagnose` asks mode by mode."""
    A, B = equations.together(*checks.matrices(A=(A, "nn"), B=(B, "nm")))
    columns = [B]
    for _ in range(A.shape[-1] - 1):
        columns.append(A @ columns[-1])
    return jnp.concatenate(columns, axis=-1)


def obsv(A: ArrayLike, C: ArrayLike) -> Array:
    """[C; CA; …; CAⁿ⁻¹] ``[..., n p, n]``."""
    return jnp.swapaxes(
        ctrb(jnp.swapaxes(jnp.asarray(A), -1, -2), jnp.swapaxes(jnp.asarray(C), -1, -2)), -1, -2
    )


def gram(A: ArrayLike, B: ArrayLike, *, discrete: bool = False) -> Array:
    """Controllability Gramian ∫ eᴬᵗBBᵀeᴬᵀᵗ dt (Σ AᵏBBᵀAᵀᵏ if ``discrete``) of a stable A; batched, differentiable.

    Its inverse is the least energy that reaches a state. The observability Gramian is ``gram(A.T, C.T)``.

    Args:
        A: ``[..., n, n]``, stable.
        B: ``[..., n, m]``.

    Returns:
        ``[..., n, n]``; NaN where A is unstable.
    """
    A, B = checks.matrices(A=(A, "nn"), B=(B, "nm"))
    return (dlyap if discrete else lyap)(A, B @ jnp.swapaxes(B, -1, -2))


@dataclasses.dataclass(frozen=True)
class Mode:
    """A mode of a linear system, a conjugate pair counted once.

    Attributes:
        pole: its eigenvalue, in rad/s (of the equivalent continuous system where a sample time was given).
        frequency: |pole| [rad/s].
        damping: −Re(pole)/|pole|; −1 … 1.
        time_constant: −1/Re(pole) [s]; negative for a mode that grows, infinite on the boundary.
        states: indices of the states that it lives in, the strongest first.
        shape: its eigenvector [n], largest entry 1.
    """

    pole: complex
    frequency: float
    damping: float
    time_constant: float
    states: tuple[int, ...]
    shape: np.ndarray

    def __str__(self) -> str:
        sign = f"{self.pole.real:+.3g}" + (f" ± {abs(self.pole.imag):.3g}j" if self.pole.imag else "")
        return f"mode at {sign} rad/s (in state {', '.join(map(str, self.states))})"


def modes(A: ArrayLike, dt: float | None = None) -> list[Mode]:
    """The modes of ẋ = Ax, or of x[t+1] = Ax[t] with sample time ``dt`` [s]; the slowest to decay first.

    Raises:
        ValueError: not a square matrix of finite numbers.
    """
    A = np.asarray(A, float)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not np.isfinite(A).all():
        raise ValueError(f"A: expected a square matrix of finite numbers, but found shape {A.shape}")
    values, vectors = np.linalg.eig(A)
    with np.errstate(divide="ignore"):
        poles = values if dt is None else np.log(values.astype(complex)) / dt
    found = []
    for i in np.argsort(-poles.real):
        p = complex(poles[i])
        if values[i].imag < 0:  # its conjugate stands for both
            continue
        size = np.abs(vectors[:, i])
        order = np.argsort(-size, kind="stable")
        lives = tuple(int(j) for j in order if size[j] > 0.1 * size.max())
        found.append(
            Mode(
                pole=p,
                frequency=abs(p),
                damping=-p.real / abs(p) if abs(p) > 0 else 1.0,
                time_constant=-1 / p.real if p.real else np.inf,
                states=lives,
                shape=vectors[:, i] / vectors[order[0], i],
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as sentences.

    Attributes:
        modes: of the plant.
        reach: distance to an uncontrollable plant that each mode shows, relative to [A, B]: σₙ([A − λI, B]).
        sight: the same for detection through Q: σₙ([A − λI; Q]).
        scaling: factors that the states should be divided by to even out A, B, Q, R ``[n]``.
        residual: of the Riccati equation, relative; NaN if there is no design.
        conditioning: how much a relative error of Q is magnified in P; NaN if there is no design.
        sentences: all of it in words, the worst first.
    """

    modes: tuple[Mode, ...]
    reach: np.ndarray
    sight: np.ndarray
    scaling: np.ndarray
    residual: float
    conditioning: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def diagnose(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    N: ArrayLike | None = None,
    dt: float | None = None,
) -> Diagnosis:
    """Say whether, and how well, a plant can be controlled optimally: mode by mode, in words.

    Args:
        A, B, Q, R, N: one problem as in :func:`lqr`, or as in :func:`dlqr` if ``dt`` [s] is given.

    Raises:
        ValueError: wrong shapes, numbers that are not finite.
    """
    from lqrlab.control import regulator
    from lqrlab.control.riccati import matrix_sign

    args = checks.arguments(A, B, Q, R, N, weights=False)
    if checks.traced(*args) or any(a.ndim != 2 for a in args):
        raise ValueError("diagnose: expected one problem outside jit, vmap and grad")
    a, b, q, r, cross = (np.asarray(x, float) for x in args)
    found, eye = modes(a, dt), np.eye(len(a))
    values = [m.pole if dt is None else np.exp(m.pole * dt) for m in found]
    reach = np.array([_least(np.hstack([a - v * eye, b])) for v in values])
    sight = np.array([_least(np.vstack([a - v * eye, q])) for v in values])
    say: list[tuple[int, str]] = []
    for mode, value, near, seen in zip(found, values, reach, sight):
        grows = mode.pole.real > -1e-9 * max(abs(mode.pole), 1e-300) if dt is None else abs(value) > 1 - 1e-9
        boundary = abs(mode.pole.real) < 1e-6 * max(abs(mode.pole), 1e-6)
        if near < 1e-12:
            what = (
                "is not stabilizable: it has no input authority"
                if grows
                else "is out of the inputs' reach, but decays"
            )
            say.append((0 if grows else 2, f"The {mode} {what}."))
        elif near < 1e-6:
            say.append(
                (
                    1,
                    f"The {mode} is barely within the inputs' reach: a relative change of {near:.1g} would free it.",
                )
            )
        if seen < 1e-12 and boundary:
            say.append(
                (0, f"The {mode} lies on the stability boundary and Q does not see it: it is not detectable.")
            )
    d = np.asarray(matrix_sign.scales(*(jnp.asarray(x)[:, :, None] for x in _reduced(a, b, q, r, cross))))[
        :, 0
    ]
    if d.max() / d.min() > 1e4:
        units = ", ".join(f"state {i} by {d[i]:.2g}" for i in np.argsort(np.abs(np.log(d)))[::-1][:4])
        say.append((1, f"The scaling is bad by a factor of {d.max() / d.min():.1g}: divide {units}."))
    residual = conditioning = np.nan
    try:
        answer = (regulator.lqr if dt is None else regulator.dlqr)(a, b, q, r, None if N is None else cross)
        residual = float(answer.residual)
        closed, P = np.asarray(answer.closed_loop), np.asarray(answer.P)
        size = max(float(np.linalg.norm(P)), 1e-300)
        widest = (lyap if dt is None else dlyap)(closed.T, eye)  # the norm of the inverse Lyapunov operator
        conditioning = float(np.linalg.norm(widest, 2) * np.linalg.norm(q) / size)
        say.append((3, f"The regulator exists; its equation holds to {residual:.1g}."))
        if conditioning > 1e6:
            say.append((1, f"P is badly conditioned: relative errors of Q grow {conditioning:.1g}-fold."))
    except ValueError as error:
        say.append((0, f"There is no regulator: {error}."))
    sentences = tuple(text for _, text in sorted(say, key=lambda pair: pair[0]))
    return Diagnosis(tuple(found), reach, sight, d, residual, conditioning, sentences)


def _least(pencil: np.ndarray) -> float:
    sizes = np.linalg.svd(pencil, compute_uv=False)
    return float(sizes[-1] / max(sizes[0], 1e-300))


def _reduced(a: Any, b: Any, q: Any, r: Any, cross: Any) -> tuple[Any, Any, Any]:
    inverse = np.linalg.pinv(r)
    return a - b @ inverse @ cross.T, b @ inverse @ b.T, q - cross @ inverse @ cross.T
