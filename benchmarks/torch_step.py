"""Train steps of the transformer next to PyTorch's, of the same network with the same weights and data.

    python -m benchmarks.torch_step

needs PyTorch, and a C++ compiler for what ``torch.compile`` makes. Loss and gradient are compared before any timing.
"""

import argparse
from functools import partial

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import training
from benchmarks.measurement import measure
from lqrlab import compute, learning


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h, allowed):
        """Attention, then a perceptron."""
        b, w, width = h.shape
        q, k, v = (z.reshape(b, w, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(h)).chunk(3, dim=-1))
        h = h + self.out(
            F.scaled_dot_product_attention(q, k, v, attn_mask=allowed).transpose(1, 2).reshape(b, w, width)
        )
        return h + self.down(F.gelu(self.up(self.norm2(h)), approximate="tanh"))


class Network(nn.Module):
    """Tokens of 36 channels to gains of 6 × 12."""

    def __init__(self, config):
        super().__init__()
        self.token = nn.Linear(36, config.width)
        self.position = nn.Parameter(torch.zeros(config.window, config.width))
        self.blocks = nn.ModuleList([Block(config.width, config.heads) for _ in range(config.depth)])
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, 72)

    def forward(self, x, u, time_mask, masks, target, weight):
        """The loss of windows."""
        size = torch.cummax(x.abs().amax(-1) * time_mask, dim=1).values[..., None]
        inverse = torch.where(size > 0, 1 / torch.where(size > 0, size, 1.0), 0.0) * time_mask[..., None]
        h = self.token(torch.cat([x * inverse, u * inverse, masks], dim=-1)) + self.position
        allowed = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)) & (time_mask > 0)[:, None, None, :]
        for block in self.blocks:
            h = block(h, allowed)
        gain = self.head(self.norm(h)).reshape(*x.shape[:2], 6, 12)
        asked = -torch.einsum("bwij,bwj->bwi", gain, x) * masks[..., 12:]
        error = torch.where(weight > 0, asked, 0.0) - torch.where(weight > 0, target, 0.0)
        return (weight * error**2).sum() / (weight > 0).sum()


def network(config, params):
    """The network with our weights."""
    made = Network(config)
    own = dict(made.named_parameters())
    for path, a in params.items():
        name = path.replace("/", ".").replace(".kernel", ".weight").replace(".scale", ".weight")
        value = torch.from_numpy(np.array(a))
        own.pop(name).data.copy_(value.T if path.endswith("kernel") else value)
    assert not own, f"without a weight of ours: {sorted(own)}"
    return made


def inputs(given):
    """Arrays of our batch that PyTorch's loss takes."""
    batch = given.batch
    weight = batch.time_mask[..., None] * batch.input_mask[:, None] * given.weight[:, None, None]
    masks = jax.numpy.concatenate([batch.state_mask, batch.input_mask], axis=-1)
    masks = jax.numpy.broadcast_to(masks[:, None], (*batch.x.shape[:2], 18)) * batch.time_mask[..., None]
    arrays = (batch.x, batch.u, batch.time_mask, masks, batch.target, weight)
    return [torch.from_numpy(np.array(a, np.float32)) for a in arrays]


def step(loss, optimizer, parameters, clip, args):
    """One step of AdamW under a clipped gradient."""
    optimizer.zero_grad(set_to_none=True)
    value = loss(*args)
    value.backward()
    nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    return float(value.detach())


def compared(data, model, batch, repeats):
    """Milliseconds a step of each contender."""
    task, config = training.StepTask.of(data, model, batch), training._train(batch)
    theirs, args = network(model, task.state.params), inputs(task.train_batch)
    objective = learning.objective(learning.models.split(learning.models.build(model))[0], config)
    (ours, _), slopes = jax.value_and_grad(objective, has_aux=True)(task.state.params, task.train_batch)
    value = theirs(*args)
    value.backward()
    size = float(torch.sqrt(sum(p.grad.pow(2).sum() for p in theirs.parameters())))
    expected = float(jax.numpy.sqrt(sum((g**2).sum() for g in slopes.values())))
    np.testing.assert_allclose([float(value.detach()), size], [float(ours), expected], rtol=1e-4)
    calls = {"ours": task.compiled()}
    several = learning.TrainConfig().steps_per_dispatch
    if batch * model.width < training._LARGE:
        calls[f"ours, {several} a dispatch"] = task.compiled(several)
    for name, loss in (("torch.compile", torch.compile(theirs)), ("PyTorch, eager", theirs)):
        parameters = list(theirs.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=config.weight_decay, fused=True)
        calls[name] = partial(step, loss, optimizer, parameters, config.clip, args)
    steps = {name: several if "dispatch" in name else 1 for name in calls}
    return {name: 1e3 * time / steps[name] for name, time in measure(calls, repeats).items()}


def main():
    """Both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    compute.setup()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    with training._data() as data:
        for name, model, batch, times in (("d = 128", training.LARGE, 256, 1), ("d = 32", training.SMALL, 32, 20)):
            found = compared(data, model, batch, repeats * times)
            for who, ms in found.items():
                print(f"{name}: {who}: {ms:.2f} ms, torch.compile's {found['torch.compile'] / ms:.2f} times")


if __name__ == "__main__":
    main()
