"""A plant: its parameters, its equations of motion, and what follows from them.

A family of plants is one class. Its fields are its physical parameters, each with a unit, a range and a word
on what it is; ``dynamics`` is written for one plant, one state and one input. Everything else follows: the
operating point is solved for, A and B come from exact differentiation, weights and initial states from the
scales of the signals. A batch of plants is a plant whose fields carry leading axes; it is indexed like an array.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from lqrlab.compute import as_jax, jit_by_function, linalg, pytrees, quick_jit
from lqrlab.compute.checks import did_you_mean, floating, random_key, real, traced, whole
from lqrlab.compute.configuration import snake_case
from lqrlab.compute.jaxprs import degrees
from lqrlab.systems.declaration import Signal, complete, documented, param
from lqrlab.systems.drawing import Drawing, gauges

State = Float[Array, "n"]  # a state, or its rate, of one plant
Input = Float[Array, "m"]  # an input of one plant
Output = Float[Array, "p"]  # the measurements of one plant
Numbers = ArrayLike | Sequence  # what NumPy makes an array of: numbers, arrays, lists of them
Path = tuple[jax.tree_util.GetAttrKey, ...]  # where a plant's array is in it
if TYPE_CHECKING:
    Arrays = Array
else:  # on the host, plants and coordinates hold NumPy arrays
    Arrays = Array | np.ndarray


# Methods that a class writes for one plant and that callers use with any leading axes; all their arguments
# are vectors. The first two run again and again, the others once a plant.
_BROADCAST = (*("dynamics", "output"), *("operating_point", "equilibrium", "matrices", "output_matrix", "weights"))


def _over_batch(method: Callable) -> Callable:
    """Let ``method(plant, *vectors)``, written for one plant, map over the leading axes of both, compiled.

    The plant's batch axes lead; further axes of the vectors follow them.
    """

    @functools.wraps(method)
    def call(self: "Plant", *vectors: Numbers) -> object:
        batch = self.batch_shape
        aligned = [_align(floating(name, v), len(batch)) for name, v in zip(names, vectors)]
        extra = jnp.broadcast_shapes(*(v.shape[len(batch) : -1] for v in aligned))
        lead = batch + extra
        full = [jnp.broadcast_to(_align(v, len(batch), len(extra)), lead + v.shape[-1:]) for v in aligned]
        fn: Callable = method
        for _ in extra:
            fn = jax.vmap(fn, in_axes=(None,) + (0,) * len(vectors))
        for _ in batch:
            fn = jax.vmap(fn)
        return jax.tree.map(functools.partial(floating, method.__name__), fn(self._broadcast(batch), *full))

    names = list(inspect.signature(method).parameters)[1:]
    often = method.__name__ in _BROADCAST[:2]
    return jit_by_function(call, jax.jit if often else quick_jit)


def _align(v: Array, batch: int, extra: int = 0) -> Array:
    """View v [..., k] with ``batch`` leading axes, then at least ``extra`` more, before its last."""
    if v.ndim - 1 < batch:  # one vector for all: lead with axes of length one
        v = v.reshape((1,) * (batch - v.ndim + 1) + v.shape)
    missing = batch + extra + 1 - v.ndim
    return v.reshape(v.shape[:batch] + (1,) * max(missing, 0) + v.shape[batch:])


def typical(
    key: PRNGKeyArray,
    scale: Array,
    exists: Array | np.ndarray,
    batch: tuple[int, ...],
    num: int | None,
    dtype: Any = float,
) -> Array:
    """Normal deviations ``[*batch, n]`` or ``[*batch, num, n]``, one scale each; zero where no state ``exists``."""
    random_key(key)
    return _normal(key, scale, exists, (*batch, *(() if num is None else (whole("num", num),))), dtype)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _normal(key: PRNGKeyArray, scale: Array, exists: Array | np.ndarray, lead: tuple[int, ...], dtype: Any) -> Array:
    normal = jax.random.normal(key, (*lead, scale.shape[-1]), dtype)
    there = scale * jnp.broadcast_to(exists[..., : scale.shape[-1]], scale.shape)
    return normal * linalg.expand_batch(there, normal.ndim)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(param,))
class Plant:
    """A dynamical system ẋ = f(x, u) with an operating point, weights and a sample time.

    Subclasses declare parameters with :func:`param`, list ``states`` and ``inputs`` (tuples of :class:`Signal`, as
    :func:`signals` makes them), set ``dt`` [s], and write :meth:`dynamics` and :meth:`draw`. Their docstring's first
    line is the title; its paragraphs "Source: …" and "Limits: …" (or class attributes ``source``, ``limits``) say
    where the model comes from and what wide variants cannot do, and why. All states are measured unless ``outputs``
    names some of them (or lists further signals, which :meth:`output` then computes); ``drawn_in`` is the unit of a
    drawing that is to scale.

    Instances are frozen pytrees of arrays; ``systems.make`` checks their values, the bare constructor does not.
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
    smaller: ClassVar[str] = "robust.balred makes a model of fewer states; designs and a matrix network take any size"
    _declared_outputs: ClassVar[tuple[Any, ...]] = ()
    field_axes: ClassVar[Mapping[str, int]] = {}
    """How many axes follow those of the batch, for fields that hold vectors or matrices."""
    dt: Any = 0.0

    def __init_subclass__(cls, static: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls.name = snake_case(cls.__name__)
        for key, text in documented(cls.__doc__ or cls.name).items():
            if key == "title" or "states" in vars(cls):  # a base class may have a source that is no model's
                setattr(cls, key, text)
        if isinstance(cls.states, tuple):  # else each instance says, or it is a mistake that check() finds
            known = {s.name: s for s in cls.states if isinstance(s, Signal)}
            if "outputs" in vars(cls):
                cls._declared_outputs = cls.outputs
            listed = cls._declared_outputs or cls._measured()
            cls.outputs = tuple(s if isinstance(s, Signal) else known.get(s, s) for s in listed)
        for name, value in list(vars(cls).items()):
            if name in _BROADCAST and inspect.isfunction(value):  # written for one plant, called with any
                setattr(cls, name, _over_batch(value))
            elif isinstance(value, dataclasses.Field) and "about" in value.metadata:
                if name not in inspect.get_annotations(cls):
                    raise ValueError(f"{cls.__name__}: write {name}: Array = param(...), with the type before =")
                inherited = getattr(cls, "__dataclass_fields__", {}).get(name)
                setattr(cls, name, complete(value, inherited))
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
        pytrees.register(cls, static)

    def dynamics(self, x: State, u: Input) -> State:
        """ẋ [n] at state x [n] and input u [m], both absolute (not deviations), in SI units."""
        raise NotImplementedError(f"{type(self).__name__} declares no dynamics(x, u)")

    def operating_point(self) -> tuple[State, Input]:
        """The point (x [n], u [m]) to control around: exact, or the guess that ``solve_for`` starts from."""
        return self.point()

    def output(self, x: State) -> Output:
        """The measurements [p] at the absolute state x [n]: the states listed in ``outputs``."""
        names = [s.name for s in self.states]
        return x[jnp.array([names.index(s.name) for s in self.outputs])]

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The plant at the absolute state x [n] and input u [m] as shapes; fields are plain numbers here."""
        return gauges(self.states, x)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes: ``()`` for one plant, ``(1000,)`` for a thousand of one family."""
        leaves = jax.tree_util.tree_leaves_with_path(self)
        return jnp.broadcast_shapes(*(np.shape(a)[: np.ndim(a) - self._axes(path)] for path, a in leaves))

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError(f"{self.name}: one plant has no length; a batch has one")
        return self.batch_shape[0]

    def __bool__(self) -> bool:  # else one plant, which has no length, would be neither true nor false
        return True

    def __iter__(self) -> Iterator["Plant"]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> "Plant":
        """The plants at ``index`` of the batch axes: a whole number, a slice, a mask, an array, as NumPy takes them."""
        batch = self.batch_shape
        if not batch:
            raise TypeError(f"{self.name}: one plant cannot be indexed; a batch of plants can")
        whole = self._broadcast(batch)
        if traced(index):
            return jax.tree.map(lambda a: a[index], whole)
        index = np.asarray(index) if isinstance(index, list) else index
        rows = np.arange(math.prod(batch)).reshape(batch)[index]
        xp = jnp if traced(self) else np  # on the host nothing is compiled for each size

        def chosen(a: Array) -> Array:
            return jnp.asarray(xp.asarray(a).reshape(-1, *a.shape[len(batch) :])[rows])

        return jax.tree.map(chosen, whole)

    def broadcast_to(self, batch: tuple[int, ...]) -> "Plant":
        """The same plants with further axes behind those of the batch, along which all are alike."""

        def full(path: Path, a: Array) -> Array:
            core = self._axes(path)
            wide = linalg.expand_batch(jnp.asarray(a), len(batch) + core, core)
            return jnp.broadcast_to(wide, batch + wide.shape[wide.ndim - core :])

        return jax.tree_util.tree_map_with_path(full, self._broadcast(self.batch_shape))

    def _broadcast(self, batch: tuple[int, ...]) -> "Plant":
        """The plant with all batch axes in each field, also in one that its members share."""

        def full(path: Path, a: ArrayLike) -> Array:
            return jnp.broadcast_to(a, batch + jnp.shape(a)[jnp.ndim(a) - self._axes(path) :])

        return jax.tree_util.tree_map_with_path(full, self)

    def _axes(self, path: Path) -> int:
        return self.field_axes.get(path[0].name, 0)

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
    def parameters(self) -> dict[str, Array]:
        """Parameter name → value."""
        return {name: getattr(self, name) for name in parameter_fields(type(self))}

    def point(self, **values: ArrayLike) -> tuple[State, Input]:
        """``(x [n], u [m])`` with the signals named in ``values`` there, all others at their declared ``at``."""
        names = [s.name for s in (*self.states, *self.inputs)]
        for name in values:
            if name not in names:
                raise ValueError(f"{name}: {self.name} has no such signal{did_you_mean(name, names)}")

        def vector(kind: tuple[Signal, ...]) -> Array:
            if not any(s.name in values for s in kind):
                return jnp.array([s.at for s in kind])
            return jnp.stack([floating(s.name, values.get(s.name, s.at)) for s in kind])

        return vector(self.states), vector(self.inputs)

    def balance(self, x: State, u: Input) -> Array:
        """The residual that vanishes at an equilibrium; ẋ unless a family has a simpler one."""
        return self.dynamics(x, u)

    def equilibrium(self) -> tuple[State, Input]:
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

    def matrices(self) -> tuple[Float[Array, "n n"], Float[Array, "n m"]]:
        """Continuous-time ``(A [n, n], B [n, m])`` at the equilibrium, by exact differentiation."""
        return jax.jacfwd(self.dynamics, argnums=(0, 1))(*self.equilibrium())

    def output_matrix(self) -> Float[Array, "p n"]:
        """``C [p, n]`` of the outputs at the equilibrium, by exact differentiation."""
        return jax.jacfwd(self.output)(self.equilibrium()[0])

    def weights(self) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch m m"]]:
        """``(Q [n, n], R [m, m])`` of the cost ∫ xᵀQx + uᵀRu dt: Bryson's rule unless a family says so."""

        def bryson(signals: tuple[Signal, ...]) -> Array:
            w = np.diag(np.array([s.scale for s in signals]) ** -2.0)
            return as_jax(np.broadcast_to(w, self.batch_shape + w.shape))

        return bryson(self.states), bryson(self.inputs)

    def initial_state(self, *, key: PRNGKeyArray, num: int | None = None) -> Float[Array, "*batch n"]:
        """Typical initial states as deviations from the equilibrium: independent normal, one scale each.

        Args:
            key: JAX random key.
            num: how many per plant; None for one, without an axis.

        Returns:
            ``[*batch, n]`` or ``[*batch, num, n]``.
        """
        return typical(key, self.scales[0], np.ones(self.n), self.batch_shape, num)

    @property
    def scales(self) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch m"]]:
        """Deviations that count as large: of the states [n] and of the inputs [m]."""
        states, inputs = (as_jax(np.array([s.scale for s in kind], float)) for kind in (self.states, self.inputs))
        return states, inputs

    def drawing(self, x: Numbers | None = None, u: Numbers | None = None) -> Drawing:
        """The plant as shapes (see :mod:`lqrlab.systems.drawing`) at the absolute x, u or its equilibrium."""
        if self.batch_shape:
            raise ValueError(f"drawing: expected one plant, but found a batch of shape {self.batch_shape}")
        if x is None or u is None:
            x_eq, u_eq = self.equilibrium()
            x, u = x_eq if x is None else x, u_eq if u is None else u
        plain = jax.tree.map(lambda a: float(a) if np.ndim(a) == 0 else a, self)
        return plain.draw(*(np.asarray(real(name, a), float) for name, a in (("x", x), ("u", u))))

    def describe(self) -> str:
        """Name, dimensions and sample time in one line."""
        return f"{self.name}: {self.n} state{'s'[: self.n - 1]}, {self.m} input{'s'[: self.m - 1]}, dt = {self.dt:g} s"


for _method in ("operating_point", "equilibrium", "matrices", "output", "output_matrix"):
    setattr(Plant, _method, _over_batch(getattr(Plant, _method)))


def check_plant(plant: object, *, one: bool = False) -> None:
    """Raise ValueError unless a plant is passed; if ``one``, also for a batch of plants."""
    if not isinstance(plant, Plant):
        raise TypeError(
            f"plant: expected a plant, but found {plant!r}; systems.make makes one of a name, such as "
            "systems.make('cart_pole')"
        )
    if one and plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")


def is_linear(plant: Plant) -> bool:
    """True if ẋ is a sum of multiples of states, inputs and one, by its equations: nothing is tried out."""
    one = plant[(0,) * len(plant.batch_shape)] if plant.batch_shape else plant
    fields, structure = jax.tree.flatten(one)
    return _is_linear(structure, tuple(map(jax.typeof, fields)), plant.n, plant.m)


@functools.lru_cache(64)
def _is_linear(structure: PyTreeDef, fields: tuple[Any, ...], n: int, m: int) -> bool:
    def rates(fields: Sequence[Array], x: Array, u: Array) -> Array:
        return jax.tree.unflatten(structure, fields).dynamics(x, u)

    of_fields = {a.dtype for a in fields if not a.weak_type and jnp.issubdtype(a.dtype, jnp.floating)}
    dtype = np.result_type(*of_fields or {float})
    closed = jax.make_jaxpr(rates)(fields, np.zeros(n, dtype), np.zeros(m, dtype))
    return max(degrees(closed, [0] * len(fields) + [1, 1])) <= 1


def parameter_fields(cls: type[Plant]) -> dict[str, dataclasses.Field]:
    """The declared parameters of a plant class, in order: name → field with unit, range, about."""
    if not (isinstance(cls, type) and issubclass(cls, Plant)):
        raise ValueError(f"cls: expected a subclass of Plant, but found {cls!r}")
    return {f.name: f for f in dataclasses.fields(cls) if "about" in f.metadata}  # type: ignore[arg-type]
