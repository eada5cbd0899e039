"""Networks that map what has been seen of a plant, and what is known of it, to its input.

Every model here writes a *gain* and applies it to the present state, ũ = −K x̃. An optimal linear regulator
is homogeneous: twice the state, twice the input. A network that outputs the input itself has to learn that,
and near the origin never quite does; one that outputs a gain has it built in.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lqrlab.compute import pytree
from lqrlab.dataset import Description
from lqrlab.learning.config import ModelConfig
from lqrlab.systems import M_MAX, N_MAX

_MODELS: dict[str, Callable[..., nnx.Module]] = {}


def register(name: str) -> Callable[[type], type]:
    """Enter a model class under a name (a decorator); it is built as ``cls(config, rngs=rngs)``."""

    def enter(cls: type) -> type:
        _MODELS[name] = cls
        return cls

    return enter


def build(config: ModelConfig) -> nnx.Module:
    """A freshly initialised model; the same config and seed give the same parameters."""
    if config.kind not in _MODELS:
        raise ValueError(
            f"kind: expected a registered model ({', '.join(_MODELS)}), but found {config.kind!r}"
        )
    return _MODELS[config.kind](config, rngs=nnx.Rngs(config.seed))


def features(d: Description) -> Array:
    """A description as one vector ``[*batch, 234]``: what a step changes, twice, small entries also seen.

    A − I and B are of order one for some plants and of order 0.01 for others; the arcsinh shows both.
    """
    lead = d.A.shape[:-2]
    eye = jnp.broadcast_to(jnp.eye(N_MAX, dtype=d.A.dtype), d.A.shape)
    change = d.A - eye * d.live_x[..., None]
    entries = jnp.concatenate([change.reshape(*lead, -1), d.B.reshape(*lead, -1)], axis=-1)
    return jnp.concatenate([3 * entries, jnp.arcsinh(30 * entries), d.live_x, d.live_u], axis=-1)


@pytree
@dataclasses.dataclass(frozen=True)
class Context:
    """What a model has made of a description, once for all steps; each field ``[b, …]``.

    ``prefix`` is the transformer's first token, ``gain`` (flat, 72 entries) what the description alone says,
    ``live_x`` and ``live_u`` are the masks.
    """

    prefix: Array
    gain: Array
    live_x: Array
    live_u: Array


class Model(Protocol):
    """What a registered class must offer."""

    config: ModelConfig

    def encode(self, d: Description) -> Any:
        """A pytree with leading axis b from descriptions ``[b, …]``: what need not be done at each step."""

    def __call__(self, x: Array, u: Array, live_t: Array, context: Any, *, last: bool = False) -> Array:
        """Inputs for every step of a window.

        Args:
            x: scaled states ``[b, W, 12]``, oldest first.
            u: scaled inputs that led to them ``[b, W, 6]``.
            live_t: ``[b, W]``, 0 before the episode began.
            context: from :meth:`encode`.
            last: answer for the last step alone.

        Returns:
            ũ ``[b, W, 6]`` (``[b, 1, 6]`` if ``last``), zero where an input or a step does not exist.
        """


def apply_gain(gain: Array, x: Array, live_t: Array, context: Context) -> Array:
    """−K x for flat gains ``[b, W or 1, 72]``, masked."""
    b, w, _ = x.shape
    gain = jnp.broadcast_to(gain, (b, w, M_MAX * N_MAX)).reshape(b, w, M_MAX, N_MAX)
    return -jnp.einsum("bwij,bwj->bwi", gain, x) * context.live_u[:, None] * live_t[..., None]


class Encoder(nnx.Module):
    """Description to an embedding: two hidden layers."""

    def __init__(self, hidden: int, *, rngs: nnx.Rngs):
        size = 2 * N_MAX * (N_MAX + M_MAX) + N_MAX + M_MAX
        self.first = nnx.Linear(size, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, hidden, rngs=rngs)

    def __call__(self, d: Description) -> Array:
        """``[*batch, hidden]``."""
        return jax.nn.gelu(self.second(jax.nn.gelu(self.first(features(d)))))


class Block(nnx.Module):
    """Pre-norm transformer block: attention among the tokens that are allowed, then a feed-forward layer."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.query = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.key_value = nnx.Linear(width, 2 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h: Array, allowed: Array, rows: int) -> Array:
        """The last ``rows`` tokens of h ``[b, T, width]``, after attending where allowed ``[b, rows, T]``."""
        b, _, width = h.shape
        seen = self.norm1(h)
        h = h[:, -rows:]
        queries = self.query(seen[:, -rows:])
        q, k, v = (
            z.reshape(b, -1, self.heads, width // self.heads)
            for z in (queries, *jnp.split(self.key_value(seen), 2, axis=-1))
        )
        mixed = jax.nn.dot_product_attention(q, k, v, mask=allowed[:, None])
        h = h + self.out(mixed.reshape(b, rows, width))
        return h + self.down(jax.nn.gelu(self.up(self.norm2(h))))


@register("transformer")
class Transformer(nnx.Module):
    """Causal transformer over state and input history, with the plant's description as its first token.

    Tokens are scaled by the largest state seen so far, so that the gain does not depend on the amplitude.
    With the description off, a constant takes the first token's place and the plant must be inferred.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, window = config.width, config.window
        self.config = config
        self.token = nnx.Linear(2 * (N_MAX + M_MAX), width, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (window + 1, width), jnp.float32))
        self.blocks = nnx.List([Block(width, config.heads, rngs=rngs) for _ in range(config.depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        # zero at first: what the history adds to the gain starts from nothing
        self.head = nnx.Linear(width, M_MAX * N_MAX, kernel_init=nnx.initializers.zeros, rngs=rngs)
        if config.description:
            self.encoder = Encoder(config.hidden, rngs=rngs)
            self.prefix = nnx.Linear(config.hidden, width, rngs=rngs)
            self.gain = nnx.Linear(config.hidden, M_MAX * N_MAX, rngs=rngs)

    def encode(self, d: Description) -> Context:
        """What is known before the first step."""
        if not self.config.description:
            lead, dtype = d.live_x.shape[:-1], d.live_x.dtype
            prefix, gain = (jnp.zeros((*lead, size), dtype) for size in (self.config.width, M_MAX * N_MAX))
            return Context(prefix, gain, d.live_x, d.live_u)
        known = self.encoder(d)
        return Context(self.prefix(known), self.gain(known), d.live_x, d.live_u)

    def __call__(self, x: Array, u: Array, live_t: Array, context: Context, *, last: bool = False) -> Array:
        """See :class:`Model`."""
        b, w, _ = x.shape
        rows = 1 if last else w
        size = jax.lax.cummax(jnp.max(jnp.abs(x), axis=-1) * live_t, axis=1)[..., None]
        inverse = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1.0), 0.0)
        masks = jnp.concatenate([context.live_x, context.live_u], axis=-1)
        masks = jnp.broadcast_to(masks[:, None], (b, w, N_MAX + M_MAX))
        tokens = self.token(jnp.concatenate([x * inverse, u * inverse, masks], axis=-1))
        h = jnp.concatenate([context.prefix[:, None], tokens], axis=1) + self.position[None, : w + 1]
        there = jnp.concatenate([jnp.ones((b, 1), bool), live_t > 0], axis=1)
        # a step before the episode attends to the prefix alone
        allowed = jnp.tril(jnp.ones((w + 1, w + 1), bool))[None] & there[:, None, :]
        for i, block in enumerate(self.blocks):
            kept = rows if i == len(self.blocks) - 1 else w + 1
            h = block(h, allowed[:, -kept:], kept)
        gain = self.head(self.norm(h[:, -rows:])) + context.gain[:, None]
        return apply_gain(gain, x[:, -rows:], live_t[:, -rows:], context)


@register("gain")
class GainNetwork(nnx.Module):
    """Description to gain, no history: ũ = −K(A, B) x̃."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        if not config.description:
            raise ValueError("description: a gain network sees nothing but the description; leave it on")
        self.config = config
        self.encoder = Encoder(config.hidden, rngs=rngs)
        self.gain = nnx.Linear(config.hidden, M_MAX * N_MAX, rngs=rngs)

    def encode(self, d: Description) -> Context:
        """The gain itself."""
        return Context(d.live_x[..., :0], self.gain(self.encoder(d)), d.live_x, d.live_u)

    def __call__(self, x: Array, u: Array, live_t: Array, context: Context, *, last: bool = False) -> Array:
        """See :class:`Model`; u is not looked at."""
        if last:
            x, live_t = x[:, -1:], live_t[:, -1:]
        return apply_gain(context.gain[:, None], x, live_t, context)


def split(model: nnx.Module) -> tuple[nnx.GraphDef, dict[str, Array]]:
    """A model as its structure and its parameters, a flat dict ``"blocks/0/qkv/kernel" → array``."""
    graph, state = nnx.split(model)
    return graph, {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(state)}


def merge(graph: nnx.GraphDef, params: dict[str, Array]) -> Any:
    """The model that :func:`split` took apart, with these parameters."""
    paths: Any = {
        tuple(int(t) if t.isdigit() else t for t in path.split("/")): a for path, a in params.items()
    }
    return nnx.merge(graph, nnx.from_flat_state(paths))


def count(model: nnx.Module) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
