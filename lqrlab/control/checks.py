"""What is asked of the arguments of a design, and why a design has no answer, in control terms."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

_warned = False


def traced(*args: Any) -> bool:
    """Whether any argument is abstract: inside ``jit``, ``vmap`` or ``grad`` there is nothing to look at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))


def floating(*arrays: Array) -> Any:
    """The floating type to compute with: that of the arrays; of whole numbers, which have none, JAX's default."""
    dtype = jnp.result_type(*arrays)
    return jnp.result_type(dtype, jnp.float32 if jnp.issubdtype(dtype, jnp.inexact) else float)


def matrices(**given: tuple[ArrayLike, str]) -> list[Array]:
    """Matrices as arrays of one floating type whose shapes go together.

    Args:
        given: name → (matrix, the letters of its rows and columns): ``A=(A, "nn"), B=(B, "nm")``.

    Raises:
        ValueError: which one does not go with those before it.
    """
    arrays = [jnp.asarray(a) for a, _ in given.values()]
    dtype = floating(*arrays)
    sizes: dict[str, int] = {}
    for (name, (_, letters)), a in zip(given.items(), arrays):
        if a.ndim < 2:
            raise ValueError(f"{name}: expected a matrix [{', '.join(letters)}], but found shape {a.shape}")
        expected = tuple(sizes.setdefault(k, size) for k, size in zip(letters, a.shape[-2:]))
        if a.shape[-2:] != expected:
            raise ValueError(
                f"{name}: expected shape {expected}, [{', '.join(letters)}], but found {a.shape[-2:]}"
            )
    return [a.astype(dtype) for a in arrays]


def arguments(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None, *, weights: bool = True
) -> tuple[Array, Array, Array, Array, Array]:
    """The five matrices of a design as arrays of one floating type, checked; N defaults to zero.

    Args:
        A, B, Q, R, N: as given; a scalar R is the weight of a single input.
        weights: refuse an indefinite weight. An equation, unlike a cost, may have one.

    Raises:
        ValueError: a wrong shape (always); outside a trace also a number that is not finite, an asymmetric
            or indefinite weight in a single problem. A batch is not refused for one bad member: that member's
            answer is marked.
    """
    global _warned
    named = {"A": A, "B": B, "Q": Q, "R": R} | ({} if N is None else {"N": N})
    arrays = {name: jnp.asarray(value) for name, value in named.items()}
    if arrays["R"].ndim == 0:
        arrays["R"] = arrays["R"].reshape(1, 1)
    for name, a in arrays.items():
        if jnp.iscomplexobj(a):
            raise ValueError(
                f"{name}: expected real numbers, but found {a.dtype}: make states of the real and imaginary parts"
            )
    dtype = floating(*arrays.values())
    arrays = {name: a.astype(dtype) for name, a in arrays.items()}
    if dtype == jnp.float32 and not _warned:
        _warned = True
        warnings.warn(
            "a Riccati design in float32 leaves a few loops in a thousand unstable; call "
            "lqrlab.compute.setup() and pass float64 arrays",
            stacklevel=3,
        )
    for name, a in arrays.items():
        if a.ndim < 2:
            raise ValueError(f"{name}: expected a matrix, but found shape {a.shape}")
    n, m = arrays["B"].shape[-2:]
    if not n or not m:
        raise ValueError(f"B: expected at least one state and one input, but found shape {(n, m)}")
    for name, shape in {"A": (n, n), "B": (n, m), "Q": (n, n), "R": (m, m), "N": (n, m)}.items():
        if name in arrays and arrays[name].shape[-2:] != shape:
            why = f"to go with B of shape ({n}, {m})" if name != "B" else "[n, m]"
            raise ValueError(f"{name}: expected shape {shape} {why}, but found {arrays[name].shape[-2:]}")
    try:
        jnp.broadcast_shapes(*(a.shape[:-2] for a in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"leading axes: expected shapes that broadcast, but found {shapes}") from None
    if not traced(*arrays.values()) and all(a.ndim == 2 for a in arrays.values()):
        values({name: np.asarray(a) for name, a in arrays.items()}, weights=weights)
    return (
        arrays["A"], arrays["B"], arrays["Q"], arrays["R"], arrays.get("N", jnp.zeros((n, m), dtype)),
    )  # fmt: skip


def finite(name: str, a: np.ndarray) -> None:
    """Refuse a matrix ``[..., rows, columns]`` with a number that is not finite."""
    if not np.all(np.isfinite(a)):
        *step, i, j = at = np.argwhere(~np.isfinite(a))[0]
        where = f"row {i}, column {j}" + (f" of step {step[0]}" if step else "")
        raise ValueError(f"{name}: expected finite numbers, but found {a[tuple(at)]} in {where}")


def tolerance(dtype: Any) -> float:
    """Relative to its largest entry, how far a weight may be from symmetric and from semidefinite."""
    return 1e-4 if dtype == np.float32 else 1e-8


def _symmetric(name: str, a: np.ndarray) -> None:
    skew = np.max(np.abs(a - np.swapaxes(a, -1, -2)), axis=(-1, -2))
    if np.any(skew > tolerance(a.dtype) * np.max(np.abs(a), axis=(-1, -2))):
        raise ValueError(
            f"{name}: expected a symmetric matrix, but found entries that differ by {skew.max():.3g} across the "
            f"diagonal; a quadratic cost sees only ({name} + {name}ᵀ)/2, pass that"
        )


def weight(name: str, a: Array) -> None:
    """Refuse a weight of one problem, outside a trace, that is not finite, symmetric and semidefinite."""
    if traced(a) or a.ndim != 2:
        return
    found = np.asarray(a)
    finite(name, found)
    _symmetric(name, found)
    _semidefinite(name, found, found)


def _semidefinite(name: str, a: np.ndarray, like: np.ndarray) -> None:
    low = np.linalg.eigvalsh((a + np.swapaxes(a, -1, -2)) / 2)[..., 0]
    # an indefinite weight may still have an optimum (a sampled cost, a frequency-domain condition), but
    # nobody asks for one by hand; designs that make their own weights do not come through here
    if np.any(low < -tolerance(a.dtype) * np.maximum(np.max(np.abs(like), axis=(-1, -2)), 1e-300)):
        raise ValueError(
            f"{name}: expected positive semidefinite, but found the eigenvalue {low.min():.3g}: a motion that "
            "earns instead of costs is driven on for ever; use weights ≥ 0"
        )


def values(arrays: dict[str, np.ndarray], *, weights: bool = True) -> None:
    """Refuse what no optimum can be asked of: of one problem, or of each of its steps along a leading axis."""
    for name, a in arrays.items():
        finite(name, a)
    for name in "QR":
        _symmetric(name, arrays[name])
    if not weights:
        return
    low = np.linalg.eigvalsh(arrays["R"]).min()
    if low <= 0:
        raise ValueError(
            f"R: expected positive definite, but found the eigenvalue {low:.3g}: an input that costs nothing "
            "would be used without bound; give every input a positive weight"
        )
    Q, R, N = arrays["Q"], arrays["R"], arrays.get("N")
    if N is None:
        _semidefinite("Q", Q, Q)
        return
    R = np.broadcast_to(R, (*np.broadcast_shapes(R.shape[:-2], N.shape[:-2]), *R.shape[-2:]))
    Nt = np.broadcast_to(np.swapaxes(N, -1, -2), (*R.shape[:-2], *N.shape[:-3:-1]))
    _semidefinite("Q − N R⁻¹ Nᵀ", Q - N @ np.linalg.solve(R, Nt), Q)


def why_not(A: np.ndarray, B: np.ndarray, Q: np.ndarray, *, continuous: bool) -> str:
    """Why one problem has no stabilizing optimum: the mode at fault, by the Popov-Belevitch-Hautus test."""
    values, vectors = np.linalg.eig(A)
    margin = values.real if continuous else np.abs(values) - 1
    size = max(float(np.linalg.norm(A, 2)), 1e-300)
    eye = np.eye(len(A))

    def name(value: complex) -> str:
        where = f"{value.real:+.3g}" + (f" ± {abs(value.imag):.3g}j" if abs(value.imag) > 1e-9 * size else "")
        return f"mode at {where}{' rad/s' if continuous else ' (discrete)'}"

    for i in np.argsort(-margin):
        if margin[i] < -1e-9 * size:
            break
        pencil = np.hstack([A - values[i] * eye, B])
        if np.linalg.svd(pencil, compute_uv=False)[-1] < 1e-9 * max(float(np.linalg.norm(pencil, 2)), 1e-300):
            lives = np.abs(vectors[:, i])
            states = ", ".join(str(j) for j in np.flatnonzero(lives > 0.1 * lives.max()))
            return (
                f"{name(values[i])} is not stabilizable: it has no input authority (it lives in state {states}); "
                "give the plant an input that reaches it, or leave the mode out"
            )
    for i in np.argsort(np.abs(margin)):
        if abs(margin[i]) > 1e-6 * size:
            break
        pencil = np.vstack([A - values[i] * eye, Q])
        if np.linalg.svd(pencil, compute_uv=False)[-1] < 1e-9 * max(float(np.linalg.norm(pencil, 2)), 1e-300):
            return (
                f"{name(values[i])} lies on the stability boundary and Q does not see it (not detectable): the "
                "optimum leaves it alone and the loop is not stable; give the states it moves some weight"
            )
    return (
        "no stabilizing solution was found although every unstable mode can be reached: the problem is close to "
        "one that has none, or badly scaled; rescale states and inputs to deviations of order one"
    )


def sample_time(dt: ArrayLike, dtype: Any) -> Array:
    """dt as an array; a ``ValueError`` if it is not above 0 s."""
    step = jnp.asarray(dt, dtype)
    if not traced(step) and not bool(jnp.all(jnp.isfinite(step) & (step > 0))):
        raise ValueError(f"dt: expected a sample time above 0 s, but found {dt}")
    return step
