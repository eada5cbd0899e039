"""Limits of inputs, states and outputs, and the price of exceeding them: checked, and said in words where wrong."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab.compute import checks

Limits = tuple[ArrayLike, ArrayLike]
"""Low and high, each a scalar, one for each signal, or ``[..., T, signals]``; ∓inf for none."""


def boxes(T: int, dtype: np.dtype, **given: tuple[Limits | None, int]) -> dict[str, tuple[Array, Array]]:
    """Those limits that there are, checked: name → low and high ``[..., T or 1, size]``."""
    return {name: _box(name, limits, size, T, dtype) for name, (limits, size) in given.items() if limits is not None}


def _box(name: str, limits: Limits, size: int, T: int, dtype: np.dtype) -> tuple[Array, Array]:
    """Low and high ``[..., T or 1, size]``, checked."""
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise ValueError(f"{name}: expected (low, high), but found {limits!r:.80}")
    ends = []
    for what, value in zip(("low", "high"), limits):
        a = jnp.asarray(checks.real(name, value), dtype)
        if a.ndim and a.shape[-1] not in (1, size):
            raise ValueError(f"{name}: expected a number or {size} of them for {what}, but found shape {a.shape}")
        if a.ndim > 1 and a.shape[-2] not in (1, T):
            raise ValueError(
                f"{name}: expected one row or {T}, one for each step, for {what}, but found shape {a.shape}; "
                "limits of a batch are [..., 1, signals]"
            )
        ends.append(jnp.broadcast_to(a, (*a.shape[:-2], a.shape[-2] if a.ndim > 1 else 1, size)))
    low, high = ends
    if checks.traced(low, high):
        return low, high
    low_, high_ = np.asarray(low), np.asarray(high)
    if np.isnan(low_).any() or np.isnan(high_).any():
        raise ValueError(f"{name}: found NaN; a limit that is not there is infinite")
    if (bad := np.broadcast_to(low_ > high_, np.broadcast_shapes(low_.shape, high_.shape))).any():
        signal = int(np.argwhere(bad)[0][-1])
        at = tuple(np.argwhere(bad)[0])
        lowest, highest = (np.broadcast_to(a, bad.shape)[at] for a in (low_, high_))
        raise ValueError(
            f"{name}: the limits of signal {signal} contradict each other: low {lowest:g} is above high {highest:g}"
        )
    if (low_ == np.inf).any() or (high_ == -np.inf).any():
        raise ValueError(f"{name}: leaves no value: a low limit of +inf or a high one of −inf")
    return low, high


def check_equilibrium(box: dict[str, tuple[Array, Array]]) -> None:
    """Refuse limits that the equilibrium does not keep: the regulator would be driven away from where it is to stay."""
    for name, (low, high) in box.items():
        if not checks.traced(low, high) and (np.any(np.asarray(low) > 0) or np.any(np.asarray(high) < 0)):
            raise ValueError(
                f"{name}: expected limits around zero, the equilibrium, but found {np.asarray(low).tolist()} … "
                f"{np.asarray(high).tolist()}; they are of deviations from it"
            )


def prices(soft: tuple[ArrayLike, ArrayLike], dtype: np.dtype) -> tuple[Array, Array]:
    """The checked costs of an excess."""
    if not isinstance(soft, tuple | list) or len(soft) != 2:
        raise ValueError(f"soft: expected (linear, quadratic), the cost of an excess, but found {soft!r:.80}")
    linear, quadratic = (jnp.asarray(checks.real("soft", a), dtype) for a in soft)
    if not checks.traced(linear, quadratic):
        both = np.asarray(linear), np.asarray(quadratic)
        if not min(a.min() for a in both) >= 0 or np.min(both[0] + both[1]) <= 0:
            raise ValueError("soft: expected costs ≥ 0 of an excess, one of them > 0, or it would be no limit at all")
    return linear, quadratic
