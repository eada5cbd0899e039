"""Limits of inputs, states, outputs and changes of inputs, as one value: checked, and said in words where wrong."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab.compute import as_jax, checks, pytree
from lqrlab.systems.coordinates import widened

Pair = tuple[ArrayLike, ArrayLike]
_Ends = tuple[Any, ...]  # a Pair as it is given, arrays once it is checked


@pytree
@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of inputs u, states x, outputs y = Cx + Du, and of changes of inputs du = u[t] − u[t−1].

    Each is ``(low, high)``, or None for none. An end is a number, ``[signals]``, or ``[..., T, signals]`` where steps
    differ (``[..., 1, signals]`` of a batch); infinite where there is none.

    Attributes:
        u, x, y, du: the limits; states are limited after each step, x[1] … x[T].
        C, D: outputs ``[..., p, n]``, ``[..., p, m]``; without D those of x[1] … x[T], as the states.
    """

    u: _Ends | None = None
    x: _Ends | None = None
    y: _Ends | None = None
    du: _Ends | None = None
    C: Any = None
    D: Any = None

    def checked(
        self, n: int, m: int, dtype: np.dtype, num_steps: int | None = None, *, batch: tuple[int, ...] | None = None
    ) -> Self:
        """With ends as arrays ``[..., T or 1, signals]``; refused where they are no such pairs, or leave no value.

        With a ``batch``, u is what its actuators can do, ``[m]`` or ``[*batch, m]``, the same at each step.
        """
        if self.y is not None and self.C is None:
            raise ValueError("limits.C: expected the outputs that limits.y are of")
        p = (np.shape(self.C)[-2] if np.ndim(self.C) > 1 else 1) if self.C is not None else 0
        sizes = {"u": m, "x": n, "y": p, "du": m}
        found: dict[str, Any] = {}
        for name, pair in self.signals().items():
            ends = _ends(name, pair, sizes[name], num_steps, dtype, batch if name == "u" else None)
            found[name] = tuple(map(as_jax, ends))
        return dataclasses.replace(self, **found)

    def signals(self) -> dict[str, tuple]:
        """Those limits that there are, by name."""
        pairs = {"u": self.u, "x": self.x, "y": self.y, "du": self.du}
        return {name: pair for name, pair in pairs.items() if pair is not None}

    def check_equilibrium(self) -> None:
        """Raise ValueError unless checked limits contain zero, where the regulator is to stay."""
        for name, (low, high) in self.signals().items():
            if not checks.traced(low, high) and (np.any(np.asarray(low) > 0) or np.any(np.asarray(high) < 0)):
                held = ": the actuators could not even hold the operating point" if name == "u" else ""
                raise ValueError(
                    f"limits.{name}: expected limits around zero, the equilibrium, but found "
                    f"{np.asarray(low).tolist()} … {np.asarray(high).tolist()}, deviations from it{held}"
                )

    def scaled(self, scale_x: Array, scale_u: Array, n: int, m: int) -> Self:
        """Of a problem that counts in these units, padded to n states and m inputs."""
        units = {"x": scale_x[..., None, :], "u": scale_u[..., None, :], "du": scale_u[..., None, :]}
        sizes = {"x": n, "u": m, "du": m}
        found: dict[str, Any] = {
            name: tuple(widened(a / units[name], sizes[name], end) for a, end in zip(pair, (-jnp.inf, jnp.inf)))
            for name, pair in self.signals().items()
            if name != "y"
        }
        for name, letter in (("C", "x"), ("D", "u")):
            if (a := getattr(self, name)) is not None:
                found[name] = widened(jnp.asarray(a) * units[letter], sizes[letter], 0.0)
        return dataclasses.replace(self, **found)


def carried(limits: Limits | Pair, problem: Any) -> Limits:
    """Absolute limits as a problem carries them: deviations from its equilibrium, with the axes of its batch.

    A bare pair is of the inputs, what the actuators can do: ends ``[m]`` or ``[*batch, m]``, none where a padded
    input does not exist.
    """
    limits = limits if isinstance(limits, Limits) else Limits(u=limits)
    n, m, batch, dtype = problem.n, problem.m, problem.batch_shape, problem.A.dtype
    mask, at_rest = problem.coordinates.input_mask, ((problem.x_eq, n), (problem.u_eq, m))
    library: Any = jnp if checks.traced(limits, at_rest, mask) else np  # on the host no size is compiled for
    x_eq, u_eq = (library.zeros((*batch, k), dtype) if a is None else library.asarray(a) for a, k in at_rest)
    given = limits.checked(n, m, dtype, batch=batch)
    if given.signals().keys() - {"u"} and problem.x_eq is None and problem.u_eq is not None:
        raise ValueError("limits: of a list of plants expected those of the inputs alone")
    found: dict[str, Any] = {}
    rest = {"u": u_eq, "x": x_eq, "du": library.zeros_like(u_eq)}
    if given.y is not None:
        outputs = ("C", limits.C, x_eq), ("D", limits.D, u_eq)
        made = {name: jnp.asarray(checks.real(name, a, finite=True), dtype) for name, a, _ in outputs if a is not None}
        found = {name: jnp.broadcast_to(a, (*batch, *a.shape[-2:])) for name, a in made.items()}
        at = sum(jnp.einsum("...pk,...k->...p", found[name], eq) for name, _, eq in outputs if name in found)
        rest["y"] = library.asarray(at)
    for name, pair in given.signals().items():
        full = (library.broadcast_to(end, (*batch, *end.shape[-2:])) for end in pair)
        found[name] = tuple(end - rest[name][..., None, :] for end in full)
    if "u" in found:
        exists = library.asarray(mask)[..., None, :m] > 0
        found["u"] = tuple(library.where(exists, end, none) for end, none in zip(found["u"], (-np.inf, np.inf)))
    deviations: Limits = jax.tree.map(as_jax, Limits(**found))
    deviations.check_equilibrium()
    return deviations


def _ends(
    name: str, limits: Any, size: int, T: int | None, dtype: np.dtype, batch: tuple[int, ...] | None
) -> tuple[Any, Any]:
    """Low and high ``[..., T or 1, size]``, checked; NumPy's outside a trace."""
    if not isinstance(limits, tuple | list) or len(limits) != 2:
        raise ValueError(f"limits.{name}: expected (low, high), but found {limits!r:.80}")
    ends, library = [], (jnp if checks.traced(*limits) else np)
    for what, value in zip(("low", "high"), limits):
        a = library.asarray(checks.real(f"limits.{name}", value), dtype)
        if a.ndim and a.shape[-1] not in (1, size):
            raise ValueError(f"limits.{name}: expected a number or {size} for {what}, but found shape {a.shape}")
        if batch is not None and a.ndim:
            if a.ndim > len(batch) + 1 or any(k not in (1, own) for k, own in zip(a.shape[-2::-1], batch[::-1])):
                raise ValueError(
                    f"limits.{name}: expected those of actuators, {(*batch, size)} or less, the same at each step, but "
                    f"found shape {a.shape}; predictive.constrained_lqr takes limits for each step"
                )
            a = a[..., None, :]
        if T is not None and a.ndim > 1 and a.shape[-2] not in (1, T):
            raise ValueError(
                f"limits.{name}: expected one row or {T}, one for each step, for {what}, but found shape {a.shape}; "
                "limits of a batch are [..., 1, signals]"
            )
        ends.append(library.broadcast_to(a, (*a.shape[:-2], a.shape[-2] if a.ndim > 1 else 1, size)))
    low, high = ends
    if library is jnp:
        return low, high
    if np.isnan(low).any() or np.isnan(high).any():
        raise ValueError(f"limits.{name}: found NaN; a limit that is not there is infinite")
    if (bad := low > high).any():
        at = tuple(np.argwhere(bad)[0])
        lowest, highest = (np.broadcast_to(a, bad.shape)[at] for a in (low, high))
        raise ValueError(
            f"limits.{name}: the limits of signal {int(at[-1])} contradict each other: low {lowest:g} is above high "
            f"{highest:g}"
        )
    if (low == np.inf).any() or (high == -np.inf).any():
        raise ValueError(f"limits.{name}: leaves no value: a low limit of +inf or a high one of −inf")
    return low, high
