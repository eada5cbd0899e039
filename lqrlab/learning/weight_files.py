"""Trained weights that come with the package: safetensors, with a card in each file that says what they are."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from lqrlab.learning import models
from lqrlab.learning.adaptive import Prior
from lqrlab.learning.train_config import ModelConfig

_FOLDER = "trained"
_MOST_BYTES = 1 << 26


def names() -> list[str]:
    """Weights that come with the package."""
    files = resources.files("lqrlab.learning").joinpath(_FOLDER).iterdir()
    return sorted(f.name.removesuffix(".safetensors") for f in files if f.name.endswith(".safetensors"))


def pretrained(name: str) -> Any:
    """Trained weights that come with the package.

    Args:
        name: ``"adaptive"``: a :class:`Prior` for :func:`lqrlab.learning.adaptive`, which regulates plants that
            nobody has described to it. ``"regulator"``: a matrix network for :func:`lqrlab.learning.policy`, which is
            told A and B.

    >>> plant = systems.make("cart_pole")
    >>> policy = learning.adaptive(plant, learning.pretrained("adaptive"))
    >>> simulation.rollout(plant, policy, 0.01 * jnp.ones(4), num_steps=2).us.shape
    (2, 1)
    """
    return read(_file(name))


def card(name: str) -> dict[str, Any]:
    """Of weights that come with the package: data, command, seeds, scores and limits."""
    return _opened(_file(name))[1]


def _file(name: str) -> Path:
    if name not in names():
        raise ValueError(f"name: expected one of {', '.join(names())}, but found {name!r}")
    return Path(str(resources.files("lqrlab.learning").joinpath(_FOLDER, f"{name}.safetensors")))


def read(file: str | Path) -> Any:
    """The model or prior in a file of :func:`write`, which may be a stranger's: nothing in it runs."""
    arrays, card = _opened(Path(file))
    kind = card.get("kind")
    if kind == "prior":
        return Prior.of_arrays({k: jnp.asarray(a) for k, a in arrays.items()})
    if kind == "network":
        model = models.build(models.used(ModelConfig.from_dict(card["model"])))
        graph, params = models.split(model)
        wanted = {k: a.shape for k, a in params.items()}
        if {k: a.shape for k, a in arrays.items()} != wanted:
            raise ValueError(f"file: the arrays in {file} are not those of the model that its card describes")
        return models.merge(graph, {k: jnp.asarray(a) for k, a in arrays.items()})
    raise ValueError(f"file: expected weights of kind 'prior' or 'network', but {file} says {kind!r}")


def _opened(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        raise ValueError(
            f"file: expected a file of weights of at most {_MOST_BYTES >> 20} MiB, but found {file}"
        )
    try:
        with safe_open(file, "np") as opened:
            card = json.loads((opened.metadata() or {}).get("card", "{}"))
            arrays = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"file: {file} holds no weights that can be read: {error}") from error
    if not isinstance(card, dict):
        raise ValueError(
            f"file: expected a card with names and values in {file}, but found {type(card).__name__}"
        )
    return arrays, card


def write(file: str | Path, weights: Any, card: Mapping[str, Any]) -> None:
    """Write a prior or a network with its card.

    Args:
        file: ends in ``.safetensors``.
        weights: a :class:`Prior`, or a network with its ``config``.
        card: what it was made from, how it scores, and where it must not be used.
    """
    if isinstance(weights, Prior):
        arrays: Mapping[str, Any] = weights.to_arrays()
        told: dict[str, Any] = {"kind": "prior"}
    else:
        _, arrays = models.split(weights)
        told = {"kind": "network", "model": json.loads(weights.config.to_json())}
    save_file(
        {k: np.asarray(a, order="C") for k, a in arrays.items()}, file, {"card": json.dumps({**card, **told})}
    )
