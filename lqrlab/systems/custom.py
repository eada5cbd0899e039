"""Linear plants: the user's own from matrices, and any other linearised; and plants from a function."""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from lqrlab.compute.checks import real, traced
from lqrlab.systems.declaration import Signal, check_slopes
from lqrlab.systems.plant import Arrays, Input, Numbers, Output, Plant, State, check_plant

Labels = tuple[tuple[str, ...], tuple[str, ...]]


class _GivenWeights(Plant, static=("labels", "name")):
    """A plant whose weights and sample time are given rather than declared."""

    Q: Float[Arrays, "*#batch n n"]
    R: Float[Arrays, "*#batch m m"]
    dt: Float[Arrays, "*#batch"] | float
    labels: Labels = ((), ())
    name: str = "given"  # type: ignore[misc]  # each plant's

    def weights(self) -> tuple[Array, Array]:
        """Q, R as they were given."""
        return self.Q, self.R

    @property
    def scales(self) -> tuple[Float[Arrays, "*batch n"], Float[Arrays, "*batch m"]]:
        """Bryson's rule read backwards: 1/√ of the weights' diagonals, 1 where a weight is zero."""

        def scale(w: Float[Arrays, "*batch k k"]) -> Float[Arrays, "*batch k"]:
            library = np if isinstance(w, np.ndarray) else jnp
            d = library.diagonal(w, axis1=-2, axis2=-1)
            return library.where(d > 0, library.where(d > 0, d, 1.0) ** -0.5, 1.0)

        return scale(self.Q), scale(self.R)

    @property
    def n(self) -> int:
        """Number of states."""
        return self.Q.shape[-1]

    @property
    def m(self) -> int:
        """Number of inputs."""
        return self.R.shape[-1]

    @property
    def states(self) -> tuple[Signal, ...]:  # type: ignore[override]
        """The states by the names they were given, else x1, x2, …"""
        return _signals(self.labels[0], "x", self.scales[0])

    @property
    def inputs(self) -> tuple[Signal, ...]:  # type: ignore[override]
        """The inputs by the names they were given, else u1, u2, …"""
        return _signals(self.labels[1], "u", self.scales[1])

    @property
    def outputs(self) -> tuple[Signal, ...]:  # type: ignore[override]
        """All states, unless an output matrix was given."""
        C = getattr(self, "C", None)
        return self.states if C is None else _signals((), "y", jnp.ones(C.shape[-2]))


def _signals(labels: tuple[str, ...], letter: str, scales: Array) -> tuple[Signal, ...]:
    """``"angle [rad]"`` → Signal("angle", "rad"); without labels x1 [1], x2 [1], …"""
    count = scales.shape[-1]
    # one plant's scales, or those of the first of a batch
    sizes = np.ones(count) if traced(scales) else np.asarray(scales).reshape(-1, count)[0]
    texts = labels or tuple(f"{letter}{i + 1}" for i in range(count))
    parts = [re.fullmatch(r"\s*(.*?)\s*(?:\s\[(.*)\])?\s*", text) for text in texts]
    return tuple(Signal(p[1], p[2] or "1", float(size)) for p, size in zip(parts, sizes) if p)


class Linear(_GivenWeights, static=("labels", "name")):
    """Linear plant ẋ = A x + B u, y = C x; what every plant becomes when families are stacked."""

    A: Float[Arrays, "*#batch n n"]
    B: Float[Arrays, "*#batch n m"]
    C: Float[Arrays, "*#batch p n"] | None = None
    name: str = "linear"  # type: ignore[misc]

    source = "matrices given by the caller"
    field_axes: ClassVar = {"A": 2, "B": 2, "C": 2, "Q": 2, "R": 2}

    def dynamics(self, x: State, u: Input) -> State:
        """A x + B u."""
        return self.A @ x + self.B @ u

    def operating_point(self) -> tuple[State, Input]:
        """The origin."""
        return jnp.zeros(self.n), jnp.zeros(self.m)

    def output(self, x: State) -> Output:
        """C x; all states without a C."""
        return x if self.C is None else self.C @ x

    def matrices(self) -> tuple[Array, Array]:
        """A, B as they were given."""
        return self.A, self.B


class Function(_GivenWeights, static=("f", "labels", "name")):
    """A plant given as a plain function ẋ = f(x, u)."""

    f: Callable[[Array, Array], Array]
    x_eq: Float[Arrays, "*#batch n"]
    u_eq: Float[Arrays, "*#batch m"]
    name: str = "function"  # type: ignore[misc]

    source = "function given by the caller"
    field_axes: ClassVar = {"x_eq": 1, "u_eq": 1, "Q": 2, "R": 2}

    def dynamics(self, x: State, u: Input) -> State:
        """f(x, u)."""
        return jnp.asarray(self.f(x, u))  # which may return a list

    def operating_point(self) -> tuple[State, Input]:
        """The point that the caller gave."""
        return self.x_eq, self.u_eq

    def output(self, x: State) -> Output:
        """All states."""
        return x


def _require(good: object, name: str, why: str) -> None:
    if not good:
        raise ValueError(f"{name}: {why}")


def _finite(name: str, value: Numbers, ndim: int, what: str) -> Array:
    _require(not traced(value), name, "expected numbers, but found a traced array: make the plant outside jit")
    array = np.asarray(real(name, value, finite=True), dtype=float)
    _require(array.ndim >= ndim and array.size, name, f"expected {what}, but found shape {array.shape}")
    return jnp.asarray(array)


def _weights(Q: Numbers | None, R: Numbers | None, n: int, m: int) -> dict[str, Array]:
    """Checked weights by name; None is the identity."""
    weights = {}
    for name, value, size in (("Q", Q, n), ("R", R, m)):
        w = np.asarray(_finite(name, np.eye(size) if value is None else value, 2, f"({size}, {size})"))
        _require(w.shape[-2:] == (size, size), name, f"expected shape ({size}, {size}), but found {w.shape}")
        largest, lowest = np.abs(w).max(), np.linalg.eigvalsh(w).min()
        same = np.allclose(w, np.swapaxes(w, -1, -2), rtol=1e-8, atol=1e-12 * largest)
        _require(same, name, f"expected a symmetric matrix; a cost xᵀ{name}x only sees the symmetric part")
        found = f"but its lowest eigenvalue is {lowest:.3g}"
        _require(name == "Q" or lowest > 0, name, f"expected positive definite (every input must cost), {found}")
        earns = "some motion would earn instead of cost, and no optimum need exist"
        _require(lowest >= -1e-10 * largest, name, f"expected positive semidefinite, {found}: {earns}")
        weights[name] = jnp.asarray(w)
    return weights


def _declared(
    usual: str, n: int, m: int, dt: Numbers, name: str, states: Sequence[str], inputs: Sequence[str]
) -> tuple[Array, Labels, str]:
    """Sample time, labels and name of a plant, checked; its kind's name where none is given."""
    good = isinstance(name, str) and (not name or name.isidentifier())
    _require(good, "name", f"expected letters, digits and _, such as 'my_plant', but found {name!r}")
    step = _finite("dt", dt, 0, "a sample time")
    _require(jnp.all(step > 0), "dt", f"expected a sample time above 0 s, but found {dt!r}")
    for kind, given, count in (("states", states, n), ("inputs", inputs, m)):
        listed = isinstance(given, Sequence) and not isinstance(given, str)
        texts = listed and all(isinstance(label, str) and label.isprintable() for label in given)  # on one line
        _require(texts, kind, f"expected a list of {count} names, such as 'angle [rad]', but found {given!r}")
        wrong = f"expected {count} different names, but found {len(given)}: {', '.join(given)}"
        _require(len(given) in (0, count) and len({*given}) == len(given), kind, wrong)
    return step, (tuple(states), tuple(inputs)), name or usual


def from_matrices(
    A: Numbers,
    B: Numbers,
    C: Numbers | None = None,
    *,
    Q: Numbers | None = None,
    R: Numbers | None = None,
    dt: Numbers = 0.01,
    name: str = "",
    states: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> Linear:
    """A linear plant ẋ = A x + B u, y = C x.

    Args:
        A: ``[..., n, n]`` in 1/s.
        B: ``[..., n, m]``.
        C: ``[..., p, n]``; all states are measured if left out.
        Q, R: weights ``[..., n, n]``, ``[..., m, m]``; identity if left out.
        dt: sample time [s].
        name: what the plant is called in what is printed and drawn, and in the catalogue if it is registered.
        states, inputs: names with units, as ``"angle [rad]"``.

    Raises:
        ValueError: a wrong shape, a number that is not finite, an indefinite weight.

    >>> plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], states=["angle [rad]", "rate [rad/s]"])
    >>> [signal.name for signal in plant.states]
    ['angle', 'rate']
    """
    A, B = _finite("A", A, 2, "a matrix [n, n]"), _finite("B", B, 2, "a matrix [n, m]")
    n, m = B.shape[-2:]
    fits = f"expected shape ({n}, {n}) to go with B of shape ({n}, {m}), but found {A.shape[-2:]}"
    _require(A.shape[-2:] == (n, n), "A", fits)
    arrays = {"A": A, "B": B, **_weights(Q, R, n, m)}
    if C is not None:
        C = arrays["C"] = _finite("C", C, 2, "a matrix [p, n]")
        _require(C.shape[-1] == n, "C", f"expected {n} columns, one a state, but found {C.shape[-1]}")
    step, labels, called = _declared("linear", n, m, dt, name, states, inputs)
    lead = jnp.broadcast_shapes(*(a.shape[:-2] for a in arrays.values()), step.shape)
    full = {name: jnp.broadcast_to(a, lead + a.shape[-2:]) for name, a in arrays.items()}
    return Linear(**full, dt=jnp.broadcast_to(step, lead), labels=labels, name=called)


def from_dynamics(
    f: Callable[[Array, Array], Array],
    *,
    x_eq: Numbers,
    u_eq: Numbers,
    Q: Numbers | None = None,
    R: Numbers | None = None,
    dt: float = 0.01,
    name: str = "",
    states: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> Function:
    """A plant from a plain function.

    Args:
        f: ``(x [n], u [m]) -> ẋ [n]``, written with ``jax.numpy`` so that it can be differentiated.
        x_eq, u_eq: the equilibrium to control around, ``[n]`` and ``[m]``.
        Q, R, dt, name, states, inputs: as of :func:`from_matrices`.

    Raises:
        ValueError: f has the wrong shape, or no derivative at x_eq, u_eq, or these are no equilibrium.

    >>> plant = systems.from_dynamics(lambda x, u: -x + u, x_eq=[0.0], u_eq=[0.0], Q=[[1]], R=[[1]], dt=0.1)
    >>> plant.matrices()
    (Array([[-1.]], dtype=float64), Array([[1.]], dtype=float64))
    """
    x, u = _finite("x_eq", x_eq, 1, "a vector [n]"), _finite("u_eq", u_eq, 1, "a vector [m]")
    try:
        dx = jnp.asarray(f(x, u))
        jax.eval_shape(jax.jacfwd(f), x, u)
    except Exception as error:
        raise ValueError(
            f"f: f(x_eq, u_eq) or its derivative fails with {type(error).__name__}: "
            f"{str(error).splitlines()[0]}; write it with jax.numpy instead of numpy or math"
        ) from error
    shape = f"expected ẋ of shape {x.shape}, the state's, but found {dx.shape}"
    _require(dx.shape == x.shape, "f", shape)
    moves = f"expected an equilibrium, but f(x_eq, u_eq) = {np.asarray(dx)}: the plant would drift away from it"
    _require(jnp.max(jnp.abs(dx)) < 1e-6, "x_eq, u_eq", moves)
    step, labels, called = _declared("function", len(x), len(u), dt, name, states, inputs)
    plant = Function(f=f, x_eq=x, u_eq=u, dt=step, labels=labels, name=called, **_weights(Q, R, len(x), len(u)))
    check_slopes("f", np.hstack(plant.matrices()), plant.states)
    return plant


def linearise(plant: Plant) -> Linear:
    """The linear plant that describes deviations from the equilibrium of ``plant``, one or a batch.

    A linear plant of NumPy arrays stays one: nothing is compiled for its size. About any other state and input:
    ``jax.jacfwd(plant.dynamics, argnums=(0, 1))(x, u)``.

    >>> systems.linearise(systems.make("pendulum")).A.shape
    (2, 2)
    """
    check_plant(plant)
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    lead, dt = plant.batch_shape, plant.dt
    library = np if all(isinstance(a, np.ndarray) for a in (A, B, Q, R, dt)) else jnp
    A, B, Q, R = (library.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(A=A, B=B, Q=Q, R=R, dt=library.broadcast_to(library.asarray(dt, A.dtype), lead))
