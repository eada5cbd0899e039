"""Networks: history and description in, a gain out, and the gain applied.

Every model here writes a *gain* and applies it to the present state, ũ = −K x̃. An optimal linear regulator
is homogeneous: twice the state, twice the input. A network that outputs the input itself has to learn that,
and near the origin never quite does; one that outputs a gain has it built in.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import pytree
from lqrlab.compute.configuration import Registry
from lqrlab.learning.train_config import ModelConfig
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX

register = Registry("kind", "model")
"""Decorator that enters a model class, an ``nnx.Module`` built as ``cls(config, rngs=rngs)``. It has

- ``config``; ``linear``: its answer is −K x̃ with the context's gain, so that a closed loop's cost is exact;
  ``any_weights``: it reads the weights of a description, else only such are taken as the scaled coordinates absorb;
  ``any_size``: it takes any numbers of states and inputs, else those that data sets are padded to;
  ``options``: settings of a config that it has beside :data:`COMMON`, all where a class does not say;
- ``encode(told) -> Context``: from descriptions ``[b, …]``, what need not be done at each step;
- ``__call__(x, u, time_mask, context, *, last=False)``: inputs for every step of a window ``[b, W, 6]``, or the last
  ``[b, 1, 6]``, zero where there is none, of scaled states, oldest first, and the inputs that led to them
  ``[b, W, 12]``, ``[b, W, 6]`` and of a mask ``[b, W]`` that is 0 before the episode began.
"""

COMMON = ("kind", "window", "description", "seed")  # settings that every kind of model has


def build(config: ModelConfig) -> Any:
    """A freshly initialised model; the same config and seed give the same parameters."""
    if idle := config.differences(used(config)):
        there = ", ".join(_options(config))
        raise ValueError(f"{idle[0].split()[0]}: a model of kind {config.kind} has no such setting; there are {there}")
    return register[config.kind](config, rngs=nnx.Rngs(config.seed))


def used(config: ModelConfig) -> ModelConfig:
    """The settings that a config's kind has, the others at their defaults."""
    own = {name: getattr(config, name) for name in _options(config)}
    return ModelConfig(**own)


def _options(config: ModelConfig) -> tuple[str, ...]:
    """Names of the settings that a config's kind has; all of them where its class does not say."""
    every = tuple(f.name for f in dataclasses.fields(config))
    return (*COMMON, *getattr(register[config.kind], "options", every[len(COMMON) :]))


def features(d: Told) -> Array:
    """A description as one vector ``[*batch, 450]``: A − I and B, once through an arcsinh that shows small entries."""
    lead = d.A.shape[:-2]
    eye = jnp.broadcast_to(jnp.eye(N_MAX, dtype=d.A.dtype), d.A.shape)
    change = d.A - eye * d.state_mask[..., None]
    entries = jnp.concatenate([change.reshape(*lead, -1), d.B.reshape(*lead, -1)], axis=-1)
    return jnp.concatenate([3 * entries, jnp.arcsinh(30 * entries), d.state_mask, d.input_mask], axis=-1)


@pytree
@dataclasses.dataclass(frozen=True)
class Context:
    """A model's encoding of a description, once for all steps.

    The prefix ``[b, width]`` is what the history's reader is told of the plant (none for a gain network), the gain
    ``[b, m n]`` what the description alone says.
    """

    prefix: Array
    gain: Array
    state_mask: Array
    input_mask: Array


def answer(model: Any, d: Told) -> Context:
    """A model's best answer to descriptions ``[b, …]``; networks see float32."""
    return model.decide(d) if hasattr(model, "decide") else model.encode(d.astype(jnp.dtype(jnp.float32)))


def check_shapes(x: Array, u: Array, time_mask: Array, context: Context, window: int) -> None:
    """Raise ValueError unless these are windows of the context's plants."""
    (plants, n), m = context.state_mask.shape, context.input_mask.shape[-1]
    steps = x.shape[1] if x.ndim == 3 else 0
    wanted = (plants, steps, n), (plants, steps, m), (plants, steps)
    if steps > window or (x.shape, u.shape, time_mask.shape) != wanted:
        raise ValueError(
            f"x, u, time_mask: expected windows of {plants} plants and at most {window} steps (more: build the model "
            f"with ModelConfig(window=…)), [plants, steps, {n}], [plants, steps, {m}] (states, inputs; padded) "
            f"and [plants, steps], but found {x.shape}, {u.shape}, {time_mask.shape}"
        )


def apply_gain(gain: Array, x: Array, time_mask: Array, context: Context) -> Array:
    """−K x for flat gains ``[b, W or 1, m n]``, masked."""
    b, w, _ = x.shape
    n, m = context.state_mask.shape[-1], context.input_mask.shape[-1]
    gain = jnp.broadcast_to(gain.astype(x.dtype), (b, w, m * n)).reshape(b, w, m, n)
    return -jnp.einsum("bwij,bwj->bwi", gain, x) * context.input_mask.astype(x.dtype)[:, None] * time_mask[..., None]


def _flat(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


# with more axes than two XLA's product takes 2.3 to 3.1 times as long on a CPU: the gradient at [512, 8, 32] and
# [256, 32, 128] with jax 0.10.2, on two cores
FlatLinear = partial(nnx.Linear, dot_general=_flat)


class Encoder(nnx.Module):
    """Description to an embedding: two hidden layers."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        size = 2 * N_MAX * (N_MAX + M_MAX) + N_MAX + M_MAX
        self.first = FlatLinear(size, config.hidden, rngs=rngs)
        self.second = FlatLinear(config.hidden, config.hidden, rngs=rngs)

    def __call__(self, d: Told) -> Array:
        """``[*batch, hidden]``, in the type of the parameters."""
        # A − I is formed before it is rounded: in bfloat16 nothing of it would be left
        seen = features(d).astype(self.first.kernel.dtype)
        return jax.nn.gelu(self.second(jax.nn.gelu(self.first(seen))))


class Described(nnx.Module):
    """The part that all models share: from the description a gain and an embedding."""

    linear = False
    any_weights = False
    options: tuple[str, ...] = ("hidden",)

    def __init__(self, config: ModelConfig, width: int, *, rngs: nnx.Rngs):
        self.config, self.width = config, width
        if config.description:
            self.encoder = Encoder(config, rngs=rngs)
            self.gain = FlatLinear(config.hidden, M_MAX * N_MAX, rngs=rngs)
            if width:
                self.prefix = FlatLinear(config.hidden, width, rngs=rngs)

    def encode(self, d: Told) -> Context:
        """Memory before the first step."""
        lead, dtype = d.state_mask.shape[:-1], d.state_mask.dtype
        prefix, gain = (jnp.zeros((*lead, k), dtype) for k in (self.width, M_MAX * N_MAX))
        if self.config.description:
            known = self.encoder(d)
            gain = self.gain(known)
            prefix = self.prefix(known) if self.width else prefix
        return Context(prefix, gain, d.state_mask, d.input_mask)


class FixedGain(nnx.Module):
    """A model that answers −K x̃ with its context's gain, whatever the history; its closed loops are judged exactly."""

    linear = True

    def __call__(self, x: Array, u: Array, time_mask: Array, context: Context, *, last: bool = False) -> Array:
        """See :data:`register`; u is not looked at."""
        check_shapes(x, u, time_mask, context, x.shape[1])
        if last:
            x, time_mask = x[:, -1:], time_mask[:, -1:]
        return apply_gain(context.gain[:, None], x, time_mask, context)


def check_described(config: ModelConfig) -> None:
    """Refuse a model with a fixed gain that is not given the description."""
    if not config.description:
        raise ValueError(f"description: a {config.kind} network sees nothing but the description; leave it on")


@register("gain")
class GainNetwork(FixedGain, Described):
    """ũ = −K(A, B) x̃, by a multilayer perceptron."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check_described(config)
        super().__init__(config, 0, rngs=rngs)


def split(model: nnx.Module) -> tuple[nnx.GraphDef, dict[str, Any]]:
    """A model as its structure and its parameters, a flat dict ``"blocks/0/qkv/kernel" → array``, or shape of one."""
    graph, state = nnx.split(model)
    return graph, {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(state)}


def merge(graph: nnx.GraphDef, params: Mapping[str, ArrayLike]) -> Any:
    """The model that :func:`split` took apart, with these parameters."""
    paths: Any = {tuple(int(t) if t.isdigit() else t for t in path.split("/")): a for path, a in params.items()}
    return nnx.merge(graph, nnx.from_flat_state(paths))


def fits(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """True if these are the shapes of the parameters of a config's model; nothing is made, it may be a stranger's."""
    config = used(config)

    def of(depth: int) -> dict[str, tuple[int, ...]]:
        model = used(dataclasses.replace(config, depth=depth))
        return {k: a.shape for k, a in jax.eval_shape(lambda: split(build(model))[1]).items()}

    # blocks are alike, so two depths tell the least entries of any: a depth of 10⁹ is not gone through
    one, two, held = (sum(map(math.prod, found.values())) for found in (of(1), of(2), shapes))
    return one + (config.depth - 1) * (two - one) <= held and of(config.depth) == dict(shapes)


def restored(config: ModelConfig, params: Mapping[str, ArrayLike]) -> Any:
    """The model of a config, in which settings of other kinds do nothing, with parameters that may be a stranger's."""
    config = used(config)
    if not fits(config, {k: np.shape(a) for k, a in params.items()}):
        raise ValueError("the arrays do not fit the model: their names or shapes are not those that its settings make")
    graph, own = split(nnx.eval_shape(lambda: build(config)))  # nothing is drawn
    return merge(graph, {k: jnp.asarray(params[k], a.dtype) for k, a in own.items()})


def count(model: nnx.Module) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
