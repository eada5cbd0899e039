"""A network whose activations are matrices, and whose layers multiply and invert them."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.compute.linalg import batch_last
from lqrlab.learning.models import sample_times
from lqrlab.learning.models.gain import FixedGain, check_described
from lqrlab.learning.models.network import Context, activation, register
from lqrlab.learning.models.normal_form import NormalForm
from lqrlab.learning.train_config import ModelConfig
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX

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


def _resolvent_forward(V: Array) -> tuple[Array, tuple[Array, Array]]:
    R = _resolvent(V)
    return R, (V, R)


def _resolvent_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array]:
    V, R = kept
    change = R @ (slope @ R)
    return (-jax.lax.optimization_barrier(change + change.mT) @ V,)


_resolvent.defvjp(_resolvent_forward, _resolvent_backward)


@jax.custom_vjp
def _inverted(a: Array) -> Array:
    """:func:`_inverse` with its gradient, for few matrices."""
    return _inverse(a)


def _inverted_forward(a: Array) -> tuple[Array, Array]:
    inverse = _inverse(a)
    return inverse, inverse


_inverted.defvjp(_inverted_forward, lambda inverse, slope: (-inverse @ slope @ inverse,))


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
        self.activate = activation[config.activation]

    def __call__(self, X: Array, size: Array, n: Array) -> Array:
        """From matrices ``[c, b, N, N]``, their sizes ``[c, b]`` and the numbers of states ``[1, b]``."""
        trace = jnp.trace(X, axis1=-2, axis2=-1) / n
        seen = jnp.concatenate([jnp.arcsinh(10 * trace), jnp.log(size + 1e-3)]).T
        return self.second(self.activate(self.first(seen))).T[..., None, None]


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
    state's cost without control is the identity (see :mod:`lqrlab.learning.models.normal_form`). What is left open is
    a rotation of the state, and a rotation T turns the optimal cost with it, P(TFTᵀ, TG Tᵀ, THTᵀ) = T P Tᵀ. A
    multilayer perceptron has to learn that from examples of each rotation. Here it holds for any parameters: the
    activations are ``width`` matrices made from F − I, its transpose, G = BBᵀ and H; a layer mixes them, multiplies
    and inverts them, and scales them by functions of their traces and norms. That is what solvers of Riccati equations
    do too, but which products, and how many, is learned. Plants of all sizes share all parameters, so what is learned
    from some holds for others.
    """

    any_weights = True
    options = ("width", "depth", "activation")

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
        if config.stochastic:
            self.log_std = nnx.Param(jnp.zeros(M_MAX))

    def encode(self, d: Told) -> Context:
        """The gain itself, asked at the plant's own sample time."""
        # formed before it is rounded: in bfloat16 little of F − I would be left
        problem = NormalForm.of(d)
        eye = jnp.eye(N_MAX, dtype=d.A.dtype)[None] * d.state_mask[:, None, :]
        F, PB = eye + problem.D, self._cost(problem, d.state_mask) @ problem.B
        S = jnp.eye(M_MAX, dtype=d.A.dtype)[None] + problem.B.mT @ PB
        return self._context(d, problem.gain(_inverted(S) @ (PB.mT @ F)))

    def decide(self, d: Told, exact: Told) -> Context:
        """The best of the gains that it has at several sample times, see :mod:`lqrlab.learning.models.sample_times`."""

        def cost_of(d: Told) -> Array:
            problem = NormalForm.of(d)
            return problem.into.mT @ self._cost(problem, d.state_mask) @ problem.into

        return self._context(d, sample_times.best_gain(cost_of, d, exact))

    def _context(self, d: Told, gain: Array) -> Context:
        log_std = jnp.zeros_like(d.input_mask)
        if self.config.stochastic:
            log_std = log_std + self.log_std[...][None]
        return Context(d.state_mask[..., :0], gain.reshape(-1, M_MAX * N_MAX), log_std, d.state_mask, d.input_mask)

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
