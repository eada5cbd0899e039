"""Plants as sampled problems with their optimum: those of all families by one compiled program.

In scaled coordinates, padded to one size, all plants look alike, so few numbers of them make few programs; and scaled
matrices lose the fewest digits. Large batches and larger plants are solved without padding.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control
from lqrlab.compute import as_jax, checks, jit_by_function, quick_jit
from lqrlab.compute.linalg import expand_batch
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Linear, Plant, check_plant, pad, pad_matrix
from lqrlab.systems.coordinates import SHAPES
from lqrlab.systems.declaration import check_slopes

Pair = tuple[Array, Array]
MOST_SUBSTEPS = 10_000  # Runge-Kutta steps in a sample time, at most: a mode 2500 times as fast as the sampling
_ANGLE = 0.25  # rad that the fastest mode turns or decays by in a Runge-Kutta step
_LONG, _ERROR = 1e6, 120 * 0.01  # samples of a run, and its largest error: a step of θ rad is off by θ⁵/120
_FEW, _MANY = (
    16,
    20_000,
)  # plants between which a program for all sizes is sooner done than one is compiled for theirs
_LEAST, _ROUNDED = 64, 1024  # members of a batch that is worked out together: powers of two, then multiples


class Continuous(NamedTuple):
    """ẋ = Ax + Bu about an equilibrium and the cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt; N is None for none."""

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n m"]
    Q: Float[Array, "*batch n n"]
    R: Float[Array, "*batch m m"]
    N: Float[Array, "*batch n m"] | None = None


def optimum(sampled: control.Sampled) -> Pair:
    """K and P of sampled problems; outside a trace a ``ValueError`` with the reason if a single one has no optimum."""
    design = control.dlqr(*sampled)
    return design.K, design.P


@contextlib.contextmanager
def or_without() -> Iterator[None]:
    """Add to a refusal of the optimum that a problem may do without."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{error}; what needs no regulator (MPC with a Qf) takes a problem of optimum=False"
        ) from error


class Part(NamedTuple):
    """Plants of one family, in SI units, each array with the axes of the batch in front."""

    plant: Continuous
    coordinates: Coordinates
    dt: Float[Array, "*batch"]


def sample(part: Part, *, design: bool) -> tuple[control.Sampled, tuple[Any, Any] | None]:
    """Plants under exact zero-order hold in SI units ``[*batch, …]``, and K and P of their optimum if it is wanted."""
    A, B, Q, R, N = part.plant
    batch, (n, m) = part.dt.shape, B.shape[-2:]
    fits = n <= N_MAX and m <= M_MAX and _FEW < np.prod(batch) <= _MANY
    if fits and not checks.traced(part, jnp.zeros(())):
        flat = _on_host(*_in_si_units(part, N_MAX, M_MAX), n, m, design=design)
        return jax.tree.map(lambda a: as_jax(a.reshape(*batch, *a.shape[1:])), flat)
    found = control.discretize(A, B, Q, R, part.dt, N)
    with or_without():
        try:
            best = optimum(found) if design else None
        except ValueError:
            control.lqrd(A, B, Q, R, part.dt, N)  # names the mode of the plant, not of its samples
            raise
    if best and not batch and not checks.traced(best):
        _remark_on_growth(np.asarray(found.Q), np.asarray(best[1]))
    return found, best


def _remark_on_growth(Q: np.ndarray, P: np.ndarray) -> None:
    """Warn where a sample without input costs so much more than the optimum that their difference has few digits."""
    try:
        half = np.linalg.inv(np.linalg.cholesky(P))
    except np.linalg.LinAlgError:  # a state that costs nothing
        return
    off = float(8 * np.finfo(float).eps * np.linalg.norm(half @ Q @ half.T, 2))
    if off > 1e-9:
        warnings.warn(
            f"dt: the plant grows so much in a sample time that costs in double precision are right to about {off:.0e};"
            " take a shorter dt",
            stacklevel=4,
        )


def listed(plants: object) -> Sequence[Plant]:
    """Batches of plants, at least one, whose numbers are known: they are sampled on the host."""
    if not isinstance(plants, Sequence) or isinstance(plants, str) or not plants:
        raise ValueError(f"plants: expected a plant, or a list of at least one, but found {plants!r}")
    for plant in plants:
        check_plant(plant)
    if checks.traced(plants):
        raise ValueError(
            "plants: a list of plants is padded and sampled on the host, where inside jit, grad or vmap their "
            "parameters have no numbers yet; make the problem outside and pass it in, or give one batch of one family"
        )
    return plants


def sample_together(parts: Sequence[Part], *, design: bool) -> tuple[Part, control.Sampled, tuple[Any, Any] | None]:
    """Plants of any families one after another ``[plants, …]``, padded, in SI units, and these sampled.

    They are padded to 12 states and 6 inputs, or the most that one has. What is added decays, and costs nothing.
    """
    n, m = (max(getattr(part.coordinates, size) for part in parts) for size in ("n_max", "m_max"))
    units, linear, N = jax.tree.map(lambda *a: np.concatenate(a), *(_in_si_units(part, n, m) for part in parts))
    part = Part(Continuous(linear.A, linear.B, linear.Q, linear.R, N), units, linear.dt)
    return jax.tree.map(as_jax, (part, *_on_host(units, linear, N, n, m, design=design)))


def _on_host(
    units: Coordinates, linear: Linear, cross: np.ndarray, n: int, m: int, *, design: bool
) -> tuple[control.Sampled, tuple[Any, Any] | None]:
    """The samples of padded plants, cut to n states and m inputs, as NumPy's arrays: no slice is compiled."""
    count = len(linear.dt)  # type: ignore[arg-type]
    size = max(_LEAST, 1 << max(count - 1, 0).bit_length()) if count <= _ROUNDED else -(-count // _ROUNDED) * _ROUNDED
    full, linear, cross = jax.tree.map(lambda a: np.resize(a, (size, *a.shape[1:])), (units, linear, cross))
    A, B, Q, R = (full.scale(name, getattr(linear, name)) for name in "ABQR")
    found = control.discretize(A, B, Q, R, linear.dt, full.scale("N", cross))
    scaled: Any = {name: np.asarray(a) for name, a in found._asdict().items()}
    scaled |= {name: full.zero_padding(scaled[name], *SHAPES[name]) for name in "ABQN"}
    if design:
        scaled |= dict(zip("KP", optimum(control.Sampled(**scaled))))
    back: dict[str, Any] = {name: units.unscale(name, np.asarray(a)[:count], n, m) for name, a in scaled.items()}
    best = (back.pop("K"), back.pop("P")) if design else None
    return control.Sampled(**back), best


def _in_si_units(part: Part, n: int, m: int) -> tuple[Coordinates, Linear, np.ndarray]:
    """Units, plants padded to n states and m inputs, and their cross weights, on the host: no size is compiled for."""
    plant, coordinates, dt = part
    batch, count = dt.shape, int(np.prod(dt.shape))

    def flat(a: Array | np.ndarray, core: int) -> np.ndarray:
        full = np.broadcast_to(np.asarray(a), (*batch, *a.shape[a.ndim - core :]))
        return full.reshape(count, *full.shape[len(batch) :])

    arrays: Any = {name: flat(getattr(plant, name), 2) for name in "ABQR"}
    arrays["dt"] = flat(dt, 0)
    N = np.zeros_like(arrays["B"]) if plant.N is None else flat(plant.N, 2)
    units = jax.tree.map(lambda a: flat(a, 1), coordinates).widened(n, m)
    return units, pad(Linear(**arrays), n, m), pad_matrix(N, n, m)


@functools.partial(jit_by_function, jit=quick_jit)
def models(plants: Sequence[Plant]) -> list[tuple[Pair, Pair]]:
    """A, B and the equilibrium of plants of several families, by one program instead of two for each."""
    return [(plant.matrices(), plant.equilibrium()) for plant in plants]


def linearised(
    plant: Plant,
    dt: ArrayLike | None,
    weights: tuple[ArrayLike, ArrayLike] | None = None,
    N: ArrayLike | None = None,
    model: tuple[Pair, Pair] | None = None,
) -> tuple[tuple[Plant, Part], Pair]:
    """A plant with a sample time for each member of its batch, what it is sampled from, and its equilibrium.

    ``model`` is what :func:`models` found of it, if it did.
    """
    (A, B), at_rest = model or (plant.matrices(), plant.equilibrium())
    Q, R = plant.weights() if weights is None else weights
    step = control.matrix_checks.sample_time(plant.dt if dt is None else dt, A.dtype)
    batch = _batch(plant.batch_shape, step.shape)
    if weights is not None or N is not None:
        A, B, Q, R, given = control.matrix_checks.arguments(A, B, Q, R, N)
        N = None if N is None else given

    inside = checks.traced(A, B, Q, R, N, step, at_rest, jnp.zeros(()))
    if not checks.traced(A, B, at_rest) and all(np.isfinite(a).all() for a in at_rest):
        check_slopes(f"plant: {plant.name}", np.concatenate([A, B], axis=-1), plant.states)

    def full(a: ArrayLike, core: int) -> Array:
        """With all axes of the batch: the plants' own lead, an axis of sample times follows them."""
        shape = np.shape(a)
        lead, inner = shape[: len(shape) - core], shape[len(shape) - core :]
        if lead == batch:
            return as_jax(a)
        if inside:
            return jnp.broadcast_to(expand_batch(jnp.asarray(a), len(batch) + core, core), batch + inner)
        return as_jax(np.broadcast_to(expand_batch(np.asarray(a), len(batch) + core, core), batch + inner))

    cross = None if N is None else full(N, 2)
    matrices = Continuous(full(A, 2), full(B, 2), full(Q, 2), full(R, 2), cross)
    equilibrium = tuple(full(a, 1) for a in at_rest)
    coordinates = jax.tree.map(lambda a: full(a, 1), Coordinates.of(plant, larger=True))
    whole = plant if plant.batch_shape == batch else plant.broadcast_to(batch)
    return (whole, Part(matrices, coordinates, full(step, 0))), equilibrium  # type: ignore[return-value]


def _batch(plants: tuple[int, ...], times: tuple[int, ...]) -> tuple[int, ...]:
    """Leading axes of plants with sample times: one for all, one each, or several for each."""
    lead = plants + (1,) * (len(times) - len(plants))
    try:
        batch = np.broadcast_shapes(lead, times)
    except ValueError:
        batch = ()
    if batch[: len(plants)] != plants:
        raise ValueError(
            f"dt: expected one sample time, or one for each plant of the batch {plants}, but found shape {times}"
        )
    return batch


def substeps_of(plant: Plant, A: Array, dt: ArrayLike, given: int | None, linear: bool) -> int:
    """Runge-Kutta steps in a sample time: those given, or so many that the fastest mode turns or decays by at most a
    quarter radian in each, and that after a million samples no mode is off by a hundredth of what is left of it."""
    given = given if given is None else checks.whole("substeps", given, 1, MOST_SUBSTEPS)
    if linear or given is not None:
        return 1 if linear or given is None else given
    if checks.traced(A) and not checks.traced(plant):  # a known plant in the trace of something else
        with jax.ensure_compile_time_eval():
            A = plant.matrices()[0]
    if checks.traced(A, dt):  # of what is differentiated, and no more, the numbers are known
        A, dt = jax.lax.stop_gradient((A, dt))
    if checks.traced(A, dt):
        raise ValueError(
            "substeps: inside jit or vmap over the plant's parameters or dt its fastest mode is not known, and with "
            "it how many Runge-Kutta steps a sample time needs; pass substeps=, such as Problem.of(plant).substeps "
            "of the fastest plant outside, or give a batch of plants as it is instead of vmap"
        )
    if not np.all(np.isfinite(A)):
        raise ValueError(f"plant: expected a finite linearisation, but found A = {np.asarray(A)}")
    modes = np.linalg.eigvals(np.asarray(A)) * np.asarray(dt)[..., None]
    turns, lasts = abs(modes), 1 / np.maximum(abs(modes.real), 1 / _LONG)  # a sample, and in samples
    steps = float(np.max(turns / np.minimum(_ANGLE, (_ERROR / np.maximum(turns * lasts, 1.0)) ** 0.25)))
    if steps > MOST_SUBSTEPS:
        raise ValueError(
            f"dt: the fastest mode of the plant turns or decays by {turns.max():.3g} rad in a sample time, and Runge-"
            f"Kutta would need more than {MOST_SUBSTEPS} steps for that; take a shorter dt, or linear=True, which is "
            "exact"
        )
    return max(2, math.ceil(steps))
