"""A network whose activations are matrices, and whose layers multiply them."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.dataset import Description
from lqrlab.learning.config import ModelConfig
from lqrlab.learning.models.base import Context, activation, register
from lqrlab.learning.models.gain import FixedGain, check_described
from lqrlab.systems import M_MAX, N_MAX

_INPUTS = 8


def _t(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)


def _mixed(weight: Array, X: Array) -> Array:
    """Channels ``[c, b, N, N]`` mixed by ``[c, d]``: one product of matrices."""
    return (weight.T @ X.reshape(X.shape[0], -1)).reshape(weight.shape[1], *X.shape[1:])


@jax.custom_vjp
def _product(X: Array, Y: Array) -> Array:
    """X Y; XLA on a CPU takes ten times as long for a product with a transpose on its left, unless it is made."""
    return X @ Y


def _product_backward(kept: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    X, Y = kept
    return slope @ _t(Y), jax.lax.optimization_barrier(_t(X)) @ slope


_product.defvjp(lambda X, Y: (X @ Y, (X, Y)), _product_backward)


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


class Product(nnx.Module):
    """X + mix(left(X) right(X)): one product of matrices for each channel, kept from growing."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.width

        def square(size: float) -> nnx.Param:
            start = jax.random.normal(rngs.params(), (width, width), jnp.float32)
            return nnx.Param(size * start / width**0.5)

        self.left, self.right, self.back = square(1.0), square(1.0), square(0.3)
        self.factors = Invariants(config, 3 * width, rngs=rngs)

    def __call__(self, X: Array, n: Array) -> Array:
        """``[c, b, N, N]``."""
        size = _size(X, n)
        left, right, back = jnp.split(1 + self.factors(X, size, n), 3)
        small = X / (1 + size)[..., None, None]
        Y = back * _product(_mixed(self.left[...], left * small), _mixed(self.right[...], right * small))
        return X + _mixed(self.back[...], Y / (1 + _size(Y, n))[..., None, None])


@register("matrix")
class MatrixNetwork(FixedGain):
    """Description to gain by products of matrices: ũ = −Bᵀ M(A, BBᵀ) x̃.

    In scaled coordinates, where Q and R are the identity, a rotation T of the state turns the optimal gain with
    it, K(TATᵀ, TB) = K(A, B) Tᵀ, and so does one of the inputs. A multilayer perceptron has to learn that from
    examples of each rotation. Here it holds for any parameters: the activations are ``width`` matrices made from
    A − I, its transpose and BBᵀ; a layer mixes them, multiplies them in pairs, and scales them by functions of
    their traces and norms. That is what solvers of Riccati equations do too, but which products, and how many,
    is learned. Plants of all sizes share all parameters, so what is learned from some holds for others.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check_described(config)
        self.config = config
        width = config.width
        start = jax.random.normal(rngs.params(), (_INPUTS, width), jnp.float32)
        self.enter = nnx.Param(start / _INPUTS**0.5)
        self.layers = nnx.List([Product(config, rngs=rngs) for _ in range(config.depth)])
        self.factors = Invariants(config, width, rngs=rngs)
        start = jax.random.normal(rngs.params(), (width, 1), jnp.float32)
        self.leave = nnx.Param(0.1 * start / width**0.5)
        if config.stochastic:
            self.log_std = nnx.Param(jnp.zeros(M_MAX))

    def encode(self, d: Description) -> Context:
        """The gain itself."""
        live, dtype = d.state_mask, self.enter[...].dtype
        eye = jnp.eye(N_MAX, dtype=d.A.dtype)[None] * live[:, None, :]
        n = jnp.sum(live, axis=-1).astype(dtype)[None]
        F, G = d.A - eye, d.B @ _t(d.B)
        # per unit of size too: plants differ by orders of magnitude in both
        f, g, b = (jnp.sqrt(jnp.sum(a * a, axis=(-1, -2)))[:, None, None] for a in (F, G, d.B))
        near, far = F / (f + 1e-3), 3 * F
        forces = (G / (g + 1e-4) ** 0.5, G / (g + 1e-4), G / (0.1 + g))
        X = _mixed(self.enter[...], jnp.stack([eye, far, _t(far), near, _t(near), *forces]).astype(dtype))
        for layer in self.layers:
            X = layer(X, n)
        M = _mixed(self.leave[...], X * jnp.exp(self.factors(X, _size(X, n), n)))[0]
        gain = _t((d.B / (b + 1e-3)).astype(dtype)) @ M
        log_std = jnp.zeros_like(d.input_mask)
        if self.config.stochastic:
            log_std = log_std + self.log_std[...][None]
        return Context(live[..., :0], gain.reshape(-1, M_MAX * N_MAX), log_std, live, d.input_mask)
