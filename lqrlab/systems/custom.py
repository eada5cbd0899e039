"""The user's own plants: from matrices or from a function, and families stacked into one batch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.systems.plant import Plant

N_MAX, M_MAX = 12, 6
"""States and inputs that plants of different families are padded to."""


class _Given(Plant):
    """A plant whose weights and sample time are given rather than declared."""

    def weights(self) -> tuple[Array, Array]:
        """Q, R as they were given."""
        return self.Q, self.R  # type: ignore[attr-defined]

    @property
    def scales(self) -> tuple[Array, Array]:
        """Bryson's rule read backwards: 1/√ of the weights' diagonals, 1 where a weight is zero."""

        def scale(w: Array) -> Array:
            d = jnp.diagonal(w, axis1=-2, axis2=-1)
            return jnp.where(d > 0, jnp.where(d > 0, d, 1.0) ** -0.5, 1.0)

        return scale(self.Q), scale(self.R)  # type: ignore[attr-defined]

    @property
    def n(self) -> int:
        """Number of states."""
        return jnp.shape(self.Q)[-1]  # type: ignore[attr-defined]

    @property
    def m(self) -> int:
        """Number of inputs."""
        return jnp.shape(self.R)[-1]  # type: ignore[attr-defined]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of the weights."""
        return jnp.shape(self.Q)[:-2]  # type: ignore[attr-defined]

    def initial_state(self, *, key: Array, num: int | None = None) -> Array:
        """Independent normal deviations, one :attr:`scales` each; see :meth:`Plant.initial_state`."""
        shape = self.batch_shape + (() if num is None else (num,)) + (self.n,)
        scale = self.scales[0] if num is None else self.scales[0][..., None, :]
        return jax.random.normal(key, shape) * jnp.broadcast_to(scale, shape)


class Linear(_Given):
    """Linear plant ẋ = A x + B u; what every plant becomes when families are stacked."""

    A: Array
    B: Array
    Q: Array
    R: Array
    dt: Any

    source = "matrices given by the caller"

    def dynamics(self, x: Array, u: Array) -> Array:
        """A x + B u."""
        return self.A @ x + self.B @ u

    def operating_point(self) -> tuple[Array, Array]:
        """The origin."""
        return jnp.zeros(self.n), jnp.zeros(self.m)

    def matrices(self) -> tuple[Array, Array]:
        """A, B as they were given."""
        return self.A, self.B


class Function(_Given, static=("f",)):
    """A plant given as a plain function ẋ = f(x, u)."""

    f: Callable[[Array, Array], Array]
    x_eq: Array
    u_eq: Array
    Q: Array
    R: Array
    dt: Any

    source = "function given by the caller"

    def dynamics(self, x: Array, u: Array) -> Array:
        """f(x, u)."""
        return self.f(x, u)

    def operating_point(self) -> tuple[Array, Array]:
        """The point that the caller gave."""
        return self.x_eq, self.u_eq


def _finite(name: str, value: ArrayLike, ndim: int, why: str) -> Array:
    array = np.asarray(value, dtype=float)
    if array.ndim < ndim:
        raise ValueError(f"{name}: expected {why}, but found shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite numbers, but found {array[~np.isfinite(array)][0]}")
    return jnp.asarray(array)


def _weight(name: str, value: ArrayLike | None, size: int, definite: bool) -> Array:
    """A checked weight; None is the identity."""
    w = np.eye(size) if value is None else np.asarray(_finite(name, value, 2, f"({size}, {size})"))
    if w.shape[-2:] != (size, size):
        raise ValueError(f"{name}: expected shape ({size}, {size}), but found {w.shape[-2:]}")
    if not np.allclose(w, np.swapaxes(w, -1, -2), rtol=1e-8, atol=1e-12 * np.abs(w).max()):
        raise ValueError(
            f"{name}: expected a symmetric matrix; a cost xᵀ{name}x only sees the symmetric part"
        )
    low = np.linalg.eigvalsh(w).min()
    if definite and low <= 0:
        raise ValueError(
            f"{name}: expected positive definite (every input must cost), but "
            f"its lowest eigenvalue is {low:.3g}"
        )
    if low < -1e-10 * np.abs(w).max():
        raise ValueError(
            f"{name}: expected positive semidefinite, but its lowest eigenvalue is {low:.3g}: "
            "some motion would earn instead of cost, and no optimum need exist"
        )
    return jnp.asarray(w)


def _sample_time(dt: ArrayLike) -> Array:
    array = np.asarray(dt, dtype=float)
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError(f"dt: expected a sample time above 0 s, but found {dt!r}")
    return jnp.asarray(array)


def from_matrices(
    A: ArrayLike,
    B: ArrayLike,
    *,
    Q: ArrayLike | None = None,
    R: ArrayLike | None = None,
    dt: ArrayLike = 0.01,
) -> Linear:
    """A linear plant ẋ = A x + B u.

    Args:
        A: ``[..., n, n]`` in 1/s.
        B: ``[..., n, m]``.
        Q, R: weights ``[..., n, n]``, ``[..., m, m]``; identity if left out.
        dt: sample time [s].

    Raises:
        ValueError: a wrong shape, a number that is not finite, an indefinite weight.
    """
    A, B = _finite("A", A, 2, "a matrix [n, n]"), _finite("B", B, 2, "a matrix [n, m]")
    n, m = B.shape[-2:]
    if A.shape[-2:] != (n, n):
        raise ValueError(
            f"A: expected shape ({n}, {n}) to go with B of shape ({n}, {m}), but found {A.shape[-2:]}"
        )
    Q, R = _weight("Q", Q, n, False), _weight("R", R, m, True)
    step = _sample_time(dt)
    lead = jnp.broadcast_shapes(*(a.shape[:-2] for a in (A, B, Q, R)), step.shape)
    full = (jnp.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(**dict(zip("ABQR", full)), dt=jnp.broadcast_to(step, lead))


def from_dynamics(
    f: Callable[[Array, Array], Array],
    *,
    x_eq: ArrayLike,
    u_eq: ArrayLike,
    Q: ArrayLike | None = None,
    R: ArrayLike | None = None,
    dt: float = 0.01,
) -> Function:
    """A plant from a plain function.

    Args:
        f: ``(x [n], u [m]) -> ẋ [n]``, written with ``jax.numpy`` so that it can be differentiated.
        x_eq, u_eq: the equilibrium to control around, ``[n]`` and ``[m]``.
        Q, R: weights; identity if left out.
        dt: sample time [s].

    Raises:
        ValueError: f has the wrong shape or x_eq, u_eq is no equilibrium.
    """
    x, u = _finite("x_eq", x_eq, 1, "a vector [n]"), _finite("u_eq", u_eq, 1, "a vector [m]")
    dx = jnp.asarray(f(x, u))
    if dx.shape != x.shape:
        raise ValueError(f"f: expected ẋ of shape {x.shape}, the state's, but found {dx.shape}")
    if not float(jnp.max(jnp.abs(dx))) < 1e-6:
        raise ValueError(
            f"x_eq, u_eq: expected an equilibrium, but f(x_eq, u_eq) = {np.asarray(dx)}: "
            "the plant would drift away from the point it is to be held at"
        )
    return Function(
        f=f,
        x_eq=x,
        u_eq=u,
        Q=_weight("Q", Q, len(x), False),
        R=_weight("R", R, len(u), True),
        dt=_sample_time(dt),
    )


def linearise(plant: Plant) -> Linear:
    """The linear plant that describes deviations from ``plant``'s equilibrium; batch axes stay."""
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    lead = plant.batch_shape
    full = (jnp.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(**dict(zip("ABQR", full)), dt=jnp.broadcast_to(jnp.asarray(plant.dt, A.dtype), lead))


def pad(plant: Linear, n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Widen a linear plant to n states and m inputs without changing what it does or costs.

    Added states decay on their own (A = −I), cost nothing and feel no input; added inputs do nothing and
    cost one. The gain is the old one with zeros around it.

    Raises:
        ValueError: the plant is larger than that.
    """
    _must_fit(plant, n, m)

    def widen(a: Array, rows: int, cols: int, diagonal: float) -> Array:
        old_rows, old_cols = a.shape[-2:]
        wide = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, rows - old_rows), (0, cols - old_cols)])
        fill = jnp.zeros(rows).at[old_rows:].set(diagonal)
        return wide + jnp.broadcast_to(
            jnp.diag(fill) if rows == cols else jnp.zeros((rows, cols)), wide.shape
        )

    return Linear(
        A=widen(plant.A, n, n, -1.0),
        B=widen(plant.B, n, m, 0.0),
        Q=widen(plant.Q, n, n, 0.0),
        R=widen(plant.R, m, m, 1.0),
        dt=plant.dt,
    )


def stack(plants: Sequence[Plant], n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Plants of any families as one batch: linearised, padded to (n, m), joined along the first axis.

    Args:
        plants: each one plant or a batch with one leading axis.
        n, m: dimensions to pad to.
    """
    linear = [linearise(p) for p in plants]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(linear)):
        wide = [pad(p, n, m) for p in linear]
        flat = [jax.tree.map(lambda a, p=p: a.reshape(-1, *a.shape[len(p.batch_shape) :]), p) for p in wide]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *flat)
    for p in linear:
        _must_fit(p, n, m)
    counts = [int(np.prod(p.batch_shape)) for p in linear]
    ends = np.cumsum(counts)

    def place(name: str, rows: int, cols: int, diagonal: float) -> Array:
        # on the host, in place: sixty thousand padded plants are 200 MB
        whole = np.zeros((ends[-1], rows, cols), np.result_type(*(getattr(p, name) for p in linear)))
        for p, end, count in zip(linear, ends, counts):
            part = np.asarray(getattr(p, name))
            k, l = part.shape[-2:]
            whole[end - count : end, :k, :l] = part.reshape(-1, k, l)
            rest = np.arange(max(k, l), min(rows, cols))
            whole[end - count : end, rest, rest] = diagonal
        return jnp.asarray(whole)

    return Linear(
        A=place("A", n, n, -1.0),
        B=place("B", n, m, 0.0),
        Q=place("Q", n, n, 0.0),
        R=place("R", m, m, 1.0),
        dt=jnp.asarray(np.concatenate([np.ravel(p.dt) for p in linear])),
    )


def _must_fit(plant: Plant, n: int, m: int) -> None:
    if plant.n > n or plant.m > m:
        raise ValueError(
            f"pad: a plant with {plant.n} states and {plant.m} inputs does not fit into {n} and {m}"
        )
