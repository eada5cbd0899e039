"""Trained weights as safetensors, with a card in each file that says what they are; some come with the package."""

import importlib
import json
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from lqrlab.learning import models
from lqrlab.learning.train_config import ModelConfig

_FOLDER = "trained"
_MOST_BYTES = 1 << 26

_HOMES = {"prior": "lqrlab.unknown"}
"""Module of each kind of weights that is no network; it registers them when it is imported."""
_KINDS: dict[str, "Kind"] = {}


class Kind(NamedTuple):
    """A kind of weights: its class, and both ways between it and named arrays, which may be a stranger's."""

    of: type
    read: Callable[[Mapping[str, np.ndarray]], Any]
    arrays: Callable[[Any], Mapping[str, Any]]


def register(name: str, kind: Kind) -> None:
    """Let weights of a kind, which the cards of their files name, be read and written."""
    _KINDS[name] = kind


def names() -> list[str]:
    """Weights that come with the package."""
    files = resources.files("lqrlab.learning").joinpath(_FOLDER).iterdir()
    return sorted(f.name.removesuffix(".safetensors") for f in files if f.name.endswith(".safetensors"))


def pretrained(name: str) -> Any:
    """Trained weights that come with the package.

    Args:
        name: ``"adaptive"``: a prior for the adaptive regulator, which regulates plants that nobody has described to
            it. ``"student"``: another, which knows no families; a network guesses the plant. ``"regulator"``: a matrix
            network for :func:`lqrlab.learning.policy`, which is told A and B.

    >>> plant = systems.make("cart_pole")
    >>> policy = learning.policy(learning.pretrained("regulator"), plant)
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
    """The weights in a file of :func:`write`, which may be a stranger's: nothing in it runs.

    Raises:
        ValueError: no such file, or no weights in it: without a card that says what they are, with arrays of other
            names, shapes or types than the card's model has, with entries that are not finite.
    """
    arrays, card = _opened(Path(file))
    try:
        for name, array in arrays.items():
            if array.dtype.kind != "f" or not (np.abs(array) < np.finfo(np.float32).max).all():
                raise ValueError(f"{name}: expected finite real numbers, but found an array of {array.dtype}")
        kind = _registered(card.get("kind"))
        return kind.read(arrays) if kind else _network(arrays, card)
    except ValueError as error:
        raise ValueError(f"file: {file} holds no weights that can be used: {error}") from None


def _registered(kind: object) -> Kind | None:
    """The kind that a card names, its module loaded; None if there is none of that name."""
    if not isinstance(kind, str) or kind not in _HOMES.keys() | _KINDS.keys():
        return None
    if kind not in _KINDS:
        importlib.import_module(_HOMES[kind])
    return _KINDS[kind]


def _network(arrays: Mapping[str, np.ndarray], card: Mapping[str, Any]) -> Any:
    if card.get("kind") != "network":
        raise ValueError(
            f"expected a card that says kind 'prior' or 'network', but found {card.get('kind')!r:.100}; "
            "learning.weight_files.write puts one into the file"
        )
    if "model" not in card:
        raise ValueError("expected a card with the settings of its model, but found none under 'model'")
    config = models.used(ModelConfig.from_dict(card["model"]))
    if not models.fits(config, {k: a.shape for k, a in arrays.items()}):
        raise ValueError("the arrays are not those of the model that the card describes")
    graph, _ = models.split(models.build(config))
    return models.merge(graph, {k: jnp.asarray(a) for k, a in arrays.items()})


def _opened(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        raise ValueError(f"file: expected a file of weights of at most {_MOST_BYTES >> 20} MiB, but found {file}")
    try:
        with safe_open(file, "np") as opened:
            card = json.loads((opened.metadata() or {}).get("card", "{}"))
            arrays = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118 (no mapping)
    except Exception as error:  # its author may be anyone: of what it is made there is no end
        raise ValueError(f"file: {file} holds no weights that can be read: {error!s:.300}") from error
    if not isinstance(card, dict):
        raise ValueError(f"file: expected a card with names and values in {file}, but found {type(card).__name__}")
    return arrays, card


def write(file: str | Path, weights: Any, card: Mapping[str, Any]) -> None:
    """Write a network, or weights of a registered kind, with their card.

    Args:
        file: ends in ``.safetensors``.
        weights: a network with its ``config``, or of a class given to :func:`register`.
        card: what it was made from, how it scores, and where it must not be used.
    """
    for name, kind in _KINDS.items():
        if isinstance(weights, kind.of):
            arrays, told = kind.arrays(weights), dict[str, Any](kind=name)
            break
    else:
        arrays = models.split(weights)[1]
        told = {"kind": "network", "model": json.loads(weights.config.to_json())}
    save_file({k: np.asarray(a, order="C") for k, a in arrays.items()}, file, {"card": json.dumps({**card, **told})})
