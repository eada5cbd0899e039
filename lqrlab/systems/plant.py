"""What a plant is: its parameters, its equations of motion, and what follows from them.

A family of plants is one class. Its fields are its physical parameters, each with a unit, a range and a word
on what it is; ``dynamics`` is written for one plant, one state and one input. Everything else follows: the
operating point is solved for, A and B come from exact differentiation, weights and initial states from the
scales of the signals. A batch of plants is a plant whose fields carry leading axes.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import linalg, pytrees, quick_jit
from lqrlab.systems.drawing import Drawing, gauges


@dataclasses.dataclass(frozen=True)
class Signal:
    """A state or an input: what it is called, its unit, and the deviation that counts as large.

    ``scale`` is at once Bryson's rule (the default weight is 1/scale²), the spread of typical initial states,
    and the unit in which a network sees the signal. ``at`` is its value at the operating point.
    """

    name: str
    unit: str = ""
    scale: float = 0.0
    at: float = 0.0

    @property
    def label(self) -> str:
        """Name and unit, as an axis shows it."""
        return f"{self.name.replace('_', ' ')} [{self.unit}]"


def with_rates(*coordinates: Signal, time: float = 0.5) -> tuple[Signal, ...]:
    """Coordinates, then their rates (``…_rate``), at rest, large when a scale is crossed in ``time`` [s]."""
    return coordinates + tuple(Signal(f"{s.name}_rate", f"{s.unit}/s", s.scale / time) for s in coordinates)


def param(
    default: float,
    unit: str = "",
    about: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    vary: bool = True,
) -> Any:
    """Declare a physical parameter of a plant class.

    Args:
        default: its nominal value, in ``unit``.
        unit: SI unit, ``"1"`` for a pure number.
        about: what it is, in a few words.
        low, high: the range in which the model means anything; ``make`` refuses values outside.
        vary: whether variants differ in it (gravity does not).

    What is left out here is asked for at registration, where it can be said which parameter lacks it.
    """
    return dataclasses.field(
        default=default, metadata={"unit": unit, "about": about, "low": low, "high": high, "vary": vary}
    )


def gravity(value: float = 9.81) -> Array:
    """Gravity as a parameter: the same for all variants, but another planet may be asked for."""
    return param(value, "m/s²", "gravitational acceleration", 0.1, 30.0, vary=False)


# Methods that a class writes for one plant and that callers use with any leading axes; all their arguments
# are vectors. Those in the first line run again and again, the others once a plant.
_BROADCAST = (
    *("dynamics", "energy", "output"),
    *("operating_point", "equilibrium", "matrices", "output_matrix", "weights"),
)


def _over_batch(method: Callable) -> Callable:
    """Let ``method(plant, *vectors)``, written for one plant, map over the leading axes of both, compiled.

    The plant's own axes lead; further axes of the vectors follow them.
    """

    @functools.wraps(method)
    def call(self: "Plant", *vectors: Array) -> Any:
        batch = self.batch_shape
        aligned = [_align(v, len(batch)) for v in vectors]
        extra = jnp.broadcast_shapes(*(v.shape[len(batch) : -1] for v in aligned))
        full = [
            jnp.broadcast_to(_align(v, len(batch), len(extra)), batch + extra + v.shape[-1:]) for v in aligned
        ]
        fn: Callable = method
        for _ in extra:
            fn = jax.vmap(fn, in_axes=(None,) + (0,) * len(vectors))
        for _ in batch:
            fn = jax.vmap(fn)
        return fn(self, *full)

    often = method.__name__ in _BROADCAST[:3]
    return functools.wraps(method)((jax.jit if often else quick_jit)(call))


def _align(v: Array, batch: int, extra: int = 0) -> Array:
    """View v [..., k] with ``batch`` leading axes, then at least ``extra`` more, before its last."""
    v = jnp.asarray(v)
    if not jnp.issubdtype(v.dtype, jnp.inexact):  # whole numbers have no derivative
        v = v.astype(float)
    if v.ndim - 1 < batch:  # one vector for all: lead with axes of length one
        v = v.reshape((1,) * (batch - v.ndim + 1) + v.shape)
    missing = batch + extra + 1 - v.ndim
    return v.reshape(v.shape[:batch] + (1,) * max(missing, 0) + v.shape[batch:])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(param,))
class Plant:
    """A dynamical system ẋ = f(x, u) with an operating point, weights and a sample time.

    Subclasses declare parameters with :func:`param`, list ``states`` and ``inputs``, set ``dt`` [s] and
    ``source``, and write :meth:`dynamics` and :meth:`draw`. What is measured is all states unless ``outputs``
    names some of them (or lists signals of its own, which :meth:`output` then computes). ``limits`` says what
    wide variants cannot do, and why; ``drawn_in`` is the unit of a drawing that is to scale.

    Instances are frozen pytrees of arrays; ``systems.make`` checks them, the bare constructor does not (so
    that JAX may put anything into the fields).
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    source: ClassVar[str] = ""
    states: ClassVar[tuple[Signal, ...]] = ()
    inputs: ClassVar[tuple[Signal, ...]] = ()
    outputs: ClassVar[tuple[Any, ...]] = ()
    limits: ClassVar[str] = ""
    solve_for: ClassVar[tuple[str, ...]] = ()
    drawn_in: ClassVar[str] = ""
    dt: Any = 0.0

    def __init_subclass__(cls, static: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        cls.title = (cls.__doc__ or cls.name).strip().splitlines()[0].rstrip(".")
        if isinstance(cls.states, tuple):  # else each instance says, or it is a mistake that check() finds
            known = {s.name: s for s in cls.states if isinstance(s, Signal)}
            listed = cls.outputs or cls._measured()
            cls.outputs = tuple(s if isinstance(s, Signal) else known.get(s, s) for s in listed)
        for method in _BROADCAST:
            if inspect.isfunction(vars(cls).get(method)):  # written for one plant, called with any
                setattr(cls, method, _over_batch(vars(cls)[method]))
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
        pytrees.register(cls, static)

    # What a family declares ------------------------------------------------------------------------------

    def dynamics(self, x: Array, u: Array) -> Array:
        """ẋ [n] at state x [n] and input u [m], both absolute (not deviations), in SI units."""
        raise NotImplementedError(f"{type(self).__name__} declares no dynamics(x, u)")

    def operating_point(self) -> tuple[Array, Array]:
        """The point (x [n], u [m]) to control around: exact, or the guess that ``solve_for`` starts from."""
        return jnp.array([s.at for s in self.states]), jnp.array([s.at for s in self.inputs])

    def output(self, x: Array) -> Array:
        """What is measured, [p], at the absolute state x [n]: the states listed in ``outputs``."""
        names = [s.name for s in self.states]
        return x[jnp.array([names.index(s.name) for s in self.outputs])]

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The plant at the absolute state x [n] and input u [m] as shapes; fields are plain numbers here."""
        return gauges(self.states, x)

    # What follows ----------------------------------------------------------------------------------------

    @classmethod
    def _measured(cls) -> tuple[Signal, ...]:
        return cls.states

    @property
    def n(self) -> int:
        """Number of states."""
        return len(self.states)

    @property
    def m(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes: ``()`` for one plant, ``(1000,)`` for a thousand of one family."""
        return jnp.broadcast_shapes(*(jnp.shape(leaf) for leaf in jax.tree.leaves(self)))

    @property
    def parameters(self) -> dict[str, Array]:
        """Parameter name → value."""
        return {name: getattr(self, name) for name in parameter_fields(type(self))}

    def balance(self, x: Array, u: Array) -> Array:
        """What vanishes at an equilibrium; ẋ unless there is something simpler."""
        return self.dynamics(x, u)

    def equilibrium(self) -> tuple[Array, Array]:
        """``(x_eq [n], u_eq [m])`` with f(x_eq, u_eq) = 0.

        The signals named in ``solve_for`` are moved from :meth:`operating_point` by Newton's method (least
        squares, scaled by the signals' scales) until :meth:`balance` vanishes; the others stay.
        Twice differentiable in the parameters.
        """
        x, u = self.operating_point()
        if not self.solve_for:
            return x, u
        signals = (*self.states, *self.inputs)
        chosen = np.array([i for i, s in enumerate(signals) if s.name in self.solve_for])
        # one column a free signal, as long as its scale: no gather or scatter for XLA to chew on
        free = jnp.asarray(np.eye(len(signals))[:, chosen] * np.array([s.scale for s in signals])[chosen])
        z0 = jnp.concatenate([x, u])

        def residual(v: Array) -> Array:
            z = z0 + free @ v
            return self.balance(z[: self.n], z[self.n :])

        def newton(i: Array, v: Array) -> Array:
            # two steps from the solution give exact first and second derivatives (implicit function theorem)
            v = jnp.where(i < 18, jax.lax.stop_gradient(v), v)
            value, push = jax.linearize(residual, v)
            jac = jax.vmap(push, out_axes=1)(jnp.eye(len(chosen), dtype=v.dtype))
            if jac.shape[0] == jac.shape[1]:
                return v - linalg.solve(jac, value)
            return v - linalg.solve(jac.T @ jac, jac.T @ value)

        v = jax.lax.fori_loop(0, 20, newton, jnp.zeros(len(chosen), z0.dtype))
        z = z0 + free @ v
        return z[: self.n], z[self.n :]

    def matrices(self) -> tuple[Array, Array]:
        """Continuous-time ``(A [n, n], B [n, m])`` at the equilibrium, by exact differentiation."""
        return jax.jacfwd(self.dynamics, argnums=(0, 1))(*self.equilibrium())

    def output_matrix(self) -> Array:
        """``C [p, n]`` of the outputs at the equilibrium, by exact differentiation."""
        return jax.jacfwd(self.output)(self.equilibrium()[0])

    def weights(self) -> tuple[Array, Array]:
        """``(Q [n, n], R [m, m])`` of the cost ∫ xᵀQx + uᵀRu dt: Bryson's rule unless a family says so."""
        q, r = (
            np.diag(np.array([s.scale for s in signals]) ** -2.0) for signals in (self.states, self.inputs)
        )
        q, r = (np.broadcast_to(w, self.batch_shape + w.shape) for w in (q, r))
        return jnp.asarray(q, float), jnp.asarray(r, float)

    def initial_state(self, *, key: Array, num: int | None = None) -> Array:
        """Typical initial states as deviations from the equilibrium: independent normal, one scale each.

        Args:
            key: JAX random key.
            num: how many per plant; None for one without an axis of its own.

        Returns:
            ``[*batch, n]`` or ``[*batch, num, n]``.
        """
        shape = self.batch_shape + (() if num is None else (num,)) + (self.n,)
        return jax.random.normal(key, shape) * jnp.broadcast_to(self.scales[0], shape)

    @property
    def scales(self) -> tuple[Array, Array]:
        """Deviations that count as large: of the states [n] and of the inputs [m]."""
        return jnp.array([s.scale for s in self.states]), jnp.array([s.scale for s in self.inputs])

    def drawing(self, x: Any = None, u: Any = None) -> Drawing:
        """The plant as shapes (see :mod:`lqrlab.systems.drawing`) at the absolute x, u or its equilibrium."""
        if self.batch_shape:
            raise ValueError(f"drawing: expected one plant, but found a batch of shape {self.batch_shape}")
        if x is None or u is None:
            at = self.equilibrium()
            x, u = (given if given is not None else there for given, there in zip((x, u), at))
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        fields |= {key: float(value) for key, value in self.parameters.items()}
        return type(self)(**fields).draw(np.asarray(x, float), np.asarray(u, float))

    def describe(self) -> str:
        """Name, dimensions and sample time in one line."""
        return f"{self.name}: {self.n} states, {self.m} inputs, dt = {self.dt:g} s"


for _method in ("operating_point", "equilibrium", "matrices", "output", "output_matrix"):
    setattr(Plant, _method, _over_batch(getattr(Plant, _method)))


def parameter_fields(cls: type[Plant]) -> dict[str, dataclasses.Field]:
    """The declared parameters of a plant class, in order: name → field with unit, range, about."""
    return {f.name: f for f in dataclasses.fields(cls) if "about" in f.metadata}  # type: ignore[arg-type]
