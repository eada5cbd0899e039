"""Problems in scaled coordinates, and problems side by side: in units, and at sizes, that all plants share."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from lqrlab.simulation.limits import Limits
from lqrlab.simulation.noise import Correlated, Noise
from lqrlab.systems import M_MAX, N_MAX, Coordinates, check_size, pad_matrix
from lqrlab.systems.coordinates import SHAPES, widened

_BARE: Any = dict.fromkeys(("plant", "continuous", "x_eq", "u_eq")) | {"linear": True, "substeps": 1}
_SIZES = {"x": N_MAX, "u": M_MAX}
_NOISY = (N_MAX, N_MAX, M_MAX)  # signals that noise is added to


def scaled(problem: Any) -> Any:
    """A problem in units of its signals' scales, padded: what is added stands still and costs nothing."""
    check_size(problem.n, problem.m)
    units, changed = problem.coordinates, {}
    for name, axes in SHAPES.items():
        if (a := getattr(problem, name)) is not None:
            changed[name] = units.zero_padding(units.scale(name, a), *axes)
    changed["R"] += _missing_inputs(problem)
    if problem.limits is not None:
        changed["limits"] = problem.limits.scaled(problem.scale_x, problem.scale_u)
    scales = (problem.scale_x, problem.scale_x, problem.scale_u)
    noise = Noise(*(jax.tree.map(lambda s, u=unit: s / _core(u, s), a) for a, unit in zip(problem.noise, scales)))
    return dataclasses.replace(problem, **changed, **_BARE, noise=_padded_noise(noise), in_scales=True)


def in_a_row(problems: Sequence[Any]) -> list[Any]:
    """Problems as batches with one axis: linear, padded, with all noise and limits that one of them has."""
    for what, has in (("scaled()", lambda p: p.in_scales), ("solved()", lambda p: p.P is not None)):
        found = [has(p) for p in problems]
        if any(found) and not all(found):
            raise ValueError(
                f"problems: expected all alike, but {sum(found)} of {len(found)} are {what} and the others are not: "
                f"their {'signals have other units' if what == 'scaled()' else 'K and P do not exist'}; "
                f"call {what} on each first"
            )
    noises = [_padded_noise(problem.noise) for problem in problems]
    kinds = [{type(noise[k]) for noise in noises} for k in range(3)]
    return [_in_a_row(*each, kinds) for each in zip(problems, noises, strict=True)]


def _in_a_row(problem: Any, noise: Noise, kinds: list[set[type]]) -> Any:
    check_size(problem.n, problem.m)
    batch, dtype = problem.batch_shape, problem.A.dtype
    changed: dict[str, Any] = {}
    for name in SHAPES:
        if (a := getattr(problem, name)) is not None:
            changed[name] = _padded(name, a)
    changed["R"] = problem.coordinates.zero_padding(changed["R"], "u", "u") + _missing_inputs(problem)
    if problem.limits is not None and (others := set(problem.limits.signals()) - {"u"}):
        raise ValueError(f"limits: problems in a row are limited in their inputs alone, but found {sorted(others)} too")
    given = (problem.low, -jnp.inf), (problem.high, jnp.inf)
    none = jnp.zeros((*batch, 0), dtype)
    ends = (widened(none if a is None else a, M_MAX, end)[..., None, :] for a, end in given)
    changed["limits"] = Limits(u=(next(ends), next(ends)))
    alike = (_as_one_of(kind, a, jnp.zeros((*batch, size), dtype)) for kind, a, size in zip(kinds, noise, _NOISY))
    wide = dataclasses.replace(problem, **changed, **_BARE, noise=Noise(*alike))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[len(batch) :]), wide)


def _as_one_of(kinds: set[type], spread: Array | Correlated | None, none: Array) -> Array | Correlated | None:
    """Noise in the most general form that one of several problems needs: none, independent or correlated."""
    if kinds == {type(None)} or isinstance(spread, Correlated):
        return spread
    sizes = none if spread is None else spread
    return Correlated(sizes[..., None] * jnp.eye(sizes.shape[-1], dtype=sizes.dtype)) if Correlated in kinds else sizes


def _padded(name: str, a: Array) -> Array:
    rows, columns = (_SIZES[letter] for letter in SHAPES[name])
    return pad_matrix(a, rows, columns)


def _missing_inputs(problem: Any) -> Array:
    """Weight R of a step for inputs that do not exist: dt times 1, as sampling the padded plant gives."""
    weights = problem.dt[..., None] * (1 - problem.coordinates.input_mask)
    return (weights[..., None] * jnp.expand_dims(jnp.eye(M_MAX, dtype=weights.dtype), range(weights.ndim - 1))).astype(
        problem.R.dtype
    )


def _core(unit: Array, spread: Array) -> Array:
    """The units of the rows of a standard deviation ``[*batch, k]`` or of a covariance's root ``[*batch, k, k]``."""
    return unit if spread.ndim == unit.ndim else unit[..., :, None]


def _padded_noise(noise: Noise) -> Noise:
    def wide(a: Array | Correlated | None, size: int) -> Array | Correlated | None:
        if isinstance(a, Correlated):
            return Correlated(pad_matrix(a.root, size, size))
        return None if a is None else widened(a, size, 0.0)

    return Noise(*(wide(a, size) for a, size in zip(noise, _NOISY)))


def without_padding(noise: Noise, coordinates: Coordinates) -> Noise:
    """Noise of the signals that exist."""
    masks = coordinates.state_mask, coordinates.state_mask, coordinates.input_mask
    return Noise(
        *(
            a if a is None or isinstance(a, Correlated) else a * mask[..., : a.shape[-1]].astype(a.dtype)
            for a, mask in zip(noise, masks)
        )
    )
