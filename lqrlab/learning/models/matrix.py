"""A network whose activations are matrices, and whose layers multiply and invert them.

It is asked about a problem in *normal form*, coordinates of the state that its own costs choose, so that all problems
look alike, at several *sample times*, because a plant that is slow at one of them is quick at another.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.linalg import batch_last, symmetric
from lqrlab.compute.linalg.batch_last import mul, t
from lqrlab.control.lyapunov import smith, stage_weight
from lqrlab.learning.models.network import Context, FixedGain, check_described, register
from lqrlab.learning.train_config import ModelConfig
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX

# The normal form --------------------------------------------------------------------------------------------

_AHEAD = 6
# of W, relative to its mean eigenvalue and to what inputs cost: a state without cost has no size of its own
_FLOOR = 1e-3
_FAINT = 1e-6  # a squared input matrix, below which inputs hardly matter


@pytree
@dataclasses.dataclass(frozen=True)
class NormalForm:
    """Problems x[t+1] = (I + D) x + B v with the cost Σ xᵀHx + vᵀv, zero in padding, and the way back.

    With weights Q, R, N of a step, the input v = R^½(u + R⁻¹Nᵀx) removes R and N: F = A − BR⁻¹Nᵀ, H = Q − NR⁻¹Nᵀ. The
    cost of the state in the next steps without control, W = Σ FᵏᵀHFᵏ, is made the identity. Two problems that differ by
    units, by any other coordinates of the state, or by a factor of the cost, become one up to a rotation, and the
    entries of F are of order one however stiff the plant was.

    Attributes:
        D, B, H: ``[b, 12, 12]``, ``[b, 12, 6]``, ``[b, 12, 12]``.
        into: the new state is ``into`` times the old one ``[b, 12, 12]``.
        root, cross: u = ``root`` (v − ``cross`` x), with the old state x ``[b, 6, 6]``, ``[b, 6, 12]``.
    """

    D: Array
    B: Array
    H: Array
    into: Array
    root: Array
    cross: Array

    @classmethod
    def of(cls, d: Told) -> "NormalForm":
        """Of descriptions ``[b, …]``."""
        A, B, Q, R, N, live = (jnp.moveaxis(a, 0, -1) for a in (d.A, d.B, d.Q, d.R, d.N, d.state_mask))
        return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), _normal(A, B, Q, R, N, live))

    def gain(self, K: Array) -> Array:
        """The gain of u = −Kx from that of v = −Kx here, ``[b, 6, 12]``."""
        return self.root @ (K @ self.into + self.cross)


def _normal(A: Array, B: Array, Q: Array, R: Array, N: Array, live: Array) -> NormalForm:
    """:meth:`NormalForm.of` with the batch on the last axis."""
    one = batch_last.eye(len(A), A) * live[None]
    root = t(batch_last.inverse(batch_last.cholesky(R, 0.0)))
    B, cross = mul(B, root), mul(t(root), t(N))
    D = A - one - mul(B, cross)
    H = batch_last.symmetric(Q - mul(t(cross), cross))
    W = _cost_ahead(one + D, H)
    count = jnp.sum(live, axis=0)
    cost, effect = jnp.trace(W) / count, jnp.sum(B * B, axis=(0, 1)) / count
    least = _FLOOR * (cost + 1 / (effect + _FAINT))
    W = W + least[None, None] * one + batch_last.eye(len(A), A) * (1 - live)[None]
    into = t(batch_last.cholesky(W, least[None]))
    out = batch_last.inverse(into)
    D, B, H = mul(into, mul(D, out)), mul(into, B), mul(t(out), mul(H, out))
    return NormalForm(D, B, H, into * live[:, None] * live[None], root, cross)


def _cost_ahead(F: Array, H: Array) -> Array:
    """Σ FᵏᵀHFᵏ over the first steps, of a growing F as if it did not grow."""
    size = jnp.maximum(control.spectral_radius(jnp.moveaxis(F, -1, 0), squarings=10), 1.0)
    F = F / size[None, None]
    for _ in range(_AHEAD):
        H, F = H + mul(t(F), mul(H, F)), mul(F, F)
    return batch_last.symmetric(H)


_DOUBLINGS = (0, 1, 2, 4, 6, 8, 10)
"""Of the plant's sample time: 1, 2, 4, 16, 64, 256 and 1024 times that."""
_AGAIN = tuple(b - a > 1 for a, b in zip(_DOUBLINGS, (*_DOUBLINGS[1:], 12)))


def held(d: Told) -> Told:
    """The problem ``[b, …]`` with its inputs held for two samples."""
    A, B, Q, R, N = d.A, d.B, d.Q, d.R, d.N
    cross, paid = N + A.mT @ (Q @ B + N), N.mT @ B
    R, Q = 2 * R + B.mT @ Q @ B + paid + paid.mT, symmetric(Q + A.mT @ Q @ A)
    return dataclasses.replace(d, A=A @ A, B=A @ B + B, Q=Q, R=symmetric(R), N=cross)


def best_gain(cost_of: Callable[[Told], Array], d: Told, exact: Told) -> Array:
    """The gain ``[b, 6, 12]`` of the least cost: the network is asked at sample times from 1 to 1024 of the plant's.

    The optimum of the problem whose inputs are held for 2ᵏ samples costs a little more than that of the plant, and a
    network's cost to go is a regulator's that a plant can have. From there the gain for held inputs follows, which may
    be used at each sample, and by one step of policy improvement one for the plant's own sample time. Each is asked
    what its own loop costs.

    Args:
        cost_of: what a network takes for the cost to go of a problem ``[b, 12, 12]``.
        d, exact: problems as the network sees them, and the same in the type in which its loops are judged.
    """
    still, judged = jax.lax.stop_gradient((d, exact))  # which answer is the best has no slope

    def ask(problem: Told, again: Array) -> tuple[Told, Array]:
        longer = held(problem)
        longer = jax.tree.map(lambda a, b: jnp.where(again, a, b), held(longer), longer)
        P = jax.lax.stop_gradient(cost_of(problem))
        gains = [_improved(at, P).astype(judged.A.dtype) for at in (still, problem)]
        return longer, jnp.stack([_cost(judged, K) for K in gains])

    _, costs = jax.lax.scan(ask, still, jnp.array(_AGAIN))
    best = jnp.argmin(costs.reshape(-1, costs.shape[-1]), axis=0)  # the plant's own sample time, where none is stable
    doublings = jnp.array(_DOUBLINGS)[best // 2]
    P = cost_of(_held_for(d, doublings))
    return _improved(_held_for(d, jnp.where(best % 2 == 1, doublings, 0)), P)


def _held_for(d: Told, doublings: Array) -> Told:
    """Problems ``[b, …]`` whose inputs are held for 2 ** ``doublings`` samples ``[b]``."""

    def hold(problem: Told, k: Array) -> tuple[Told, None]:
        def where(a: Array, b: Array) -> Array:
            return jnp.where((k < doublings).reshape(-1, *(1,) * (a.ndim - 1)), a, b)

        # what is not held is not looked at: powers of a growing A overflow, and so would their slopes
        return jax.tree.map(where, held(jax.tree.map(where, problem, d)), problem), None

    return jax.lax.scan(hold, d, jnp.arange(_DOUBLINGS[-1]))[0]


def _improved(d: Told, P: Array) -> Array:
    """The gain that is optimal if the next state costs P."""
    S = jnp.moveaxis(d.R + d.B.mT @ P @ d.B, 0, -1)
    return jnp.moveaxis(batch_last.inverse(S), -1, 0) @ (d.B.mT @ P @ d.A + d.N.mT)


def _cost(d: Told, K: Array) -> Array:
    """Of loops ``[b]``, from all directions alike; infinite where one is not stable."""
    weight = stage_weight(d.Q, d.R, d.N, K)
    closed, weight = (jnp.moveaxis(a, 0, -1) for a in ((d.A - d.B @ K).mT, weight))
    P, reach = smith(closed, weight, float(jnp.finfo(closed.dtype).eps) ** 0.5 / 4)
    cost = jnp.trace(batch_last.symmetric(P))
    return jnp.where((reach < jnp.inf) & jnp.isfinite(cost), cost, jnp.inf)


_STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""Costs to go, times the identity, whose optimal inputs a network is shown."""
_INPUTS = 7 + 2 * len(_STRENGTHS)


def _mixed(weight: Array, X: Array) -> Array:
    """Channels ``[c, b, N, N]`` mixed by ``[c, d]``: one product of matrices."""
    return (weight.T @ X.reshape(X.shape[0], -1)).reshape(weight.shape[1], *X.shape[1:])


@jax.custom_vjp
def _product(X: Array, Y: Array) -> Array:
    """X Y; XLA on a CPU takes ten times as long for a product with a transpose on its left, unless it is made."""
    return X @ Y


def _product_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    X, Y = kept
    return slope @ Y.mT, jax.lax.optimization_barrier(X.mT) @ slope


_product.defvjp(lambda X, Y: (X @ Y, (X, Y)), _product_backward)


def _inverse(a: Array) -> Array:
    """a⁻¹ ``[…, k, k]`` of symmetric a ≥ 1, at least in float32."""
    wide = a if a.dtype.itemsize >= 4 else a.astype(jnp.float32)
    last = jnp.moveaxis(wide.reshape(-1, *a.shape[-2:]), 0, -1)
    return jnp.moveaxis(batch_last.inverse(last), -1, 0).reshape(a.shape).astype(a.dtype)


@jax.custom_vjp
def _resolvent(V: Array) -> Array:
    """(I + V Vᵀ)⁻¹, which is symmetric and between 0 and 1 whatever V is."""
    return _inverse(jnp.broadcast_to(jnp.eye(V.shape[-1], dtype=V.dtype), V.shape) + V @ V.mT)


def _resolvent_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array]:
    V, R = kept
    change = R @ (slope @ R)
    return (-jax.lax.optimization_barrier(change + change.mT) @ V,)


_resolvent.defvjp(lambda V: (R := _resolvent(V), (V, R)), _resolvent_backward)


def _size(X: Array, n: Array) -> Array:
    """Frobenius norm over √n ``[c, b]``, n ``[1, b]``: the same for a padded plant."""
    return jnp.sqrt(jnp.sum(X * X, axis=(-1, -2)) / n + 1e-12)


class Invariants(nnx.Module):
    """Scalars that no rotation changes, to factors for ``count`` channels ``[count, b, 1, 1]``."""

    def __init__(self, config: ModelConfig, count: int, *, rngs: nnx.Rngs):
        width = config.width
        self.first = nnx.Linear(2 * width, 4 * width, rngs=rngs)
        small = nnx.initializers.normal(0.01)
        self.second = nnx.Linear(4 * width, count, kernel_init=small, rngs=rngs)

    def __call__(self, X: Array, size: Array, n: Array) -> Array:
        """From matrices ``[c, b, N, N]``, their sizes ``[c, b]`` and the numbers of states ``[1, b]``."""
        trace = jnp.trace(X, axis1=-2, axis2=-1) / n
        seen = jnp.concatenate([jnp.arcsinh(10 * trace), jnp.log(size + 1e-3)]).T
        return self.second(jax.nn.gelu(self.first(seen))).T[..., None, None]


class RationalLayer(nnx.Module):
    """X + mix(left(X) (I + V Vᵀ)⁻¹ right(X)) with V = middle(X), kept from growing.

    Sums and products of matrices alone are polynomials, and no polynomial of moderate degree is a Riccati equation's
    solution for large inputs and small ones alike; a rational function of moderate degree is, as doubling shows.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.width

        def square(size: float) -> nnx.Param:
            start = jax.random.normal(rngs.params(), (width, width), jnp.float32)
            return nnx.Param(size * start / width**0.5)

        self.left, self.right, self.middle, self.back = square(1.0), square(1.0), square(1.0), square(0.3)
        self.factors = Invariants(config, 4 * width, rngs=rngs)

    def __call__(self, X: Array, n: Array) -> Array:
        """``[c, b, N, N]``."""
        size = _size(X, n)
        left, right, middle, back = jnp.split(1 + self.factors(X, size, n), 4)
        small = X / (1 + size)[..., None, None]
        halfway = _product(_mixed(self.left[...], left * small), _resolvent(_mixed(self.middle[...], middle * small)))
        Y = back * _product(halfway, _mixed(self.right[...], right * small))
        return X + _mixed(self.back[...], Y / (1 + _size(Y, n))[..., None, None])


@register("matrix")
class MatrixNetwork(FixedGain):
    """Description to a cost to go P = H + S Sᵀ, and the gain that is optimal if P is what the next state costs.

    Any weights: the problem is first brought to coordinates in which R is the identity and N zero, and in which the
    state's cost without control is the identity, see :class:`NormalForm`. What is left open is a
    rotation of the state, and a rotation T turns the optimal cost with it, P(TFTᵀ, TG Tᵀ, THTᵀ) = T P Tᵀ. A
    multilayer perceptron has to learn that from examples of each rotation. Here it holds for any parameters: the
    activations are ``width`` matrices made from F − I, its transpose, G = BBᵀ and H; a layer mixes them, multiplies
    and inverts them, and scales them by functions of their traces and norms. That is what solvers of Riccati equations
    do too, but which products, and how many, is learned. Plants of all sizes share all parameters, so what is learned
    from some holds for others.
    """

    any_weights = True
    options = ("width", "depth")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check_described(config)
        self.config = config
        width = config.width
        start = jax.random.normal(rngs.params(), (_INPUTS, width), jnp.float32)
        self.enter = nnx.Param(start / _INPUTS**0.5)
        self.layers = nnx.List([RationalLayer(config, rngs=rngs) for _ in range(config.depth)])
        self.factors = Invariants(config, width, rngs=rngs)
        start = jax.random.normal(rngs.params(), (width, 1), jnp.float32)
        self.leave = nnx.Param(0.1 * start / width**0.5)

    def encode(self, d: Told) -> Context:
        """The gain itself, asked at the plant's own sample time."""
        # formed before it is rounded: in bfloat16 little of F − I would be left
        problem = NormalForm.of(d)
        eye = jnp.eye(N_MAX, dtype=d.A.dtype)[None] * d.state_mask[:, None, :]
        F, PB = eye + problem.D, self._cost(problem, d.state_mask) @ problem.B
        S = jnp.eye(M_MAX, dtype=d.A.dtype)[None] + problem.B.mT @ PB
        return self._context(d, problem.gain(jnp.linalg.solve(S, PB.mT @ F)))

    def decide(self, d: Told, exact: Told) -> Context:
        """The best of the gains that it has at several sample times, see :func:`best_gain`."""

        def cost_of(d: Told) -> Array:
            problem = NormalForm.of(d)
            return problem.into.mT @ self._cost(problem, d.state_mask) @ problem.into

        return self._context(d, best_gain(cost_of, d, exact))

    def _context(self, d: Told, gain: Array) -> Context:
        return Context(d.state_mask[..., :0], gain.reshape(-1, M_MAX * N_MAX), d.state_mask, d.input_mask)

    def _cost(self, problem: NormalForm, live: Array) -> Array:
        """P of problems in normal form ``[b, 12, 12]``, in the type of these."""
        eye = jnp.eye(N_MAX, dtype=live.dtype)[None] * live[:, None, :]
        dtype = self.enter[...].dtype
        n = jnp.sum(live, axis=-1)[None]
        X = _mixed(self.enter[...], _seen(problem, eye, n[0]).astype(dtype))
        n = n.astype(dtype)
        for layer in self.layers:
            X = layer(X, n)
        S = _mixed(self.leave[...], X * jnp.exp(self.factors(X, _size(X, n), n)))[0]
        S = eye + S.astype(eye.dtype) * live[:, None, :] * live[:, :, None]
        return problem.H + S @ S.mT


def _seen(problem: NormalForm, eye: Array, n: Array) -> Array:
    """Matrices that a network begins with ``[_INPUTS, b, 12, 12]``, of the states ``[b]`` in number."""

    def unit(a: Array, least: float) -> Array:
        return a / (jnp.sqrt(jnp.sum(a * a, axis=(-1, -2)) / n) + least)[:, None, None]

    D, H, G = problem.D, problem.H, problem.B @ problem.B.mT
    near, full = unit(D, 1e-3), jnp.eye(N_MAX, dtype=G.dtype)[None]
    seen = [eye, 3 * D, 3 * D.mT, near, near.mT, unit(H, 1e-6), 4 * H]
    for strength in _STRENGTHS:  # if the next state cost so much: what input leaves of it, and of the step
        left = _inverse(full + strength * G) @ eye
        seen += [left, left @ (eye + D)]
    return jnp.stack(seen)
