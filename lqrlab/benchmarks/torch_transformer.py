"""The transformer of :mod:`lqrlab.learning.models` in PyTorch, with its weights, for :mod:`.training`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lqrlab.learning import ModelConfig, TrainConfig
from lqrlab.systems import M_MAX, N_MAX


class _Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor, allowed: Tensor) -> Tensor:
        b, t, width = h.shape
        qkv = self.qkv(self.norm1(h)).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(), attn_mask=allowed)
        h = h + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        return h + self.down(F.gelu(self.up(self.norm2(h)), approximate="tanh"))


class Transformer(nn.Module):
    """``models.Transformer`` without a description."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.width
        self.token, self.head = nn.Linear(2 * (N_MAX + M_MAX), width), nn.Linear(width, M_MAX * N_MAX)
        self.position = nn.Parameter(torch.zeros(config.window, width))
        self.blocks = nn.ModuleList(_Block(width, config.heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def take(self, params: dict[str, Any]) -> None:
        """Copy the parameters that ``models.split`` gives, all of them."""
        ours = dict(self.named_parameters())
        for path, value in params.items():
            *owner, name = path.split("/")
            name = {"kernel": "weight", "scale": "weight"}.get(name, name)
            array = np.array(value)
            with torch.no_grad():
                turned = torch.from_numpy(array.T.copy() if path.endswith("kernel") else array)
                ours.pop(".".join((*owner, name))).copy_(turned)
        assert not ours, f"no value for {', '.join(ours)}"

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Inputs ``[b, W, 6]``."""
        x, u, time_mask = batch["x"], batch["u"], batch["time_mask"]
        b, w, _ = x.shape
        size = torch.cummax(x.abs().amax(-1) * time_mask, dim=1).values[..., None]
        inverse = torch.where(size > 0, 1 / torch.where(size > 0, size, 1.0), 0.0) * time_mask[..., None]
        masks = torch.cat([batch["state_mask"], batch["input_mask"]], -1)[:, None] * time_mask[..., None]
        h = self.token(torch.cat([x * inverse, u * inverse, masks], -1)) + self.position
        causal = torch.ones(w, w, dtype=torch.bool, device=x.device).tril()
        allowed = causal[None] & ((time_mask > 0)[:, None, :] | (time_mask == 0)[:, :, None])
        for block in self.blocks:
            h = block(h, allowed[:, None])
        gain = self.head(self.norm(h)).view(b, w, M_MAX, N_MAX)
        return -(gain @ x[..., None])[..., 0] * batch["input_mask"][:, None] * time_mask[..., None]


def contender(
    config: ModelConfig, train: TrainConfig, params: dict[str, Any], batch: dict[str, np.ndarray]
) -> tuple[np.ndarray, Callable[[], Any], Callable[[], Any]]:
    """Its predictions to ``batch``, and a train step of the same loss and optimizer, eager and compiled."""
    given = {name: torch.from_numpy(np.array(a)) for name, a in batch.items()}
    live = given["time_mask"][..., None] * given["input_mask"][:, None] * given["weight"][:, None, None]

    def step_of(compiled: bool) -> tuple[nn.Module, Callable[[], Any]]:
        model = Transformer(config)
        model.take(params)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay, fused=True
        )

        def loss() -> Tensor:
            return (live * (model(given) - given["target"]) ** 2).sum() / (live > 0).sum()

        value = torch.compile(loss) if compiled else loss

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            value().backward()
            nn.utils.clip_grad_norm_(model.parameters(), train.clip)
            optimizer.step()

        return model, step

    model, eager = step_of(False)
    with torch.no_grad():
        predictions = model(given).numpy().copy()
    return predictions, eager, step_of(True)[1]
