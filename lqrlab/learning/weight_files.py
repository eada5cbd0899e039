"""Trained weights that come with the package: safetensors, with a card in each file that says what they are."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from lqrlab.extensions.unknown.guess import SAID, SEEN
from lqrlab.extensions.unknown.prior import Prior
from lqrlab.learning import models
from lqrlab.learning.train_config import ModelConfig
from lqrlab.systems import M_MAX, N_MAX

_FOLDER = "trained"
_MOST_BYTES = 1 << 26

_PRIOR = {
    "dense": ("k", 3),
    "kinematic": ("l", 4),
    "half": (),
    "caution": (),
    "probe": (3,),
    "start": (),
    "inflate": (),
}
_FAMILIES = {
    "families/mean": ("F", N_MAX + M_MAX, N_MAX),
    "families/directions": ("F", "r", N_MAX + M_MAX, N_MAX),
    "families/variance": ("F", "r"),
    "families/rest": ("F",),
    "families/sizes": ("F", 2),
    "families/cost": ("F", N_MAX, N_MAX),
}
_GUESS = {"guess/first": (SEEN + 1, "w"), "guess/second": ("h", "w"), "guess/last": ("h", SAID)}
"""Shapes of the arrays of a prior, of one that knows families of plants, and of its network; a letter is one number
throughout."""


def names() -> list[str]:
    """Weights that come with the package."""
    files = resources.files("lqrlab.learning").joinpath(_FOLDER).iterdir()
    return sorted(f.name.removesuffix(".safetensors") for f in files if f.name.endswith(".safetensors"))


def pretrained(name: str) -> Any:
    """Trained weights that come with the package.

    Args:
        name: ``"adaptive"``: a :class:`Prior` for :func:`lqrlab.unknown.adaptive`, which regulates plants that
            nobody has described to it. ``"student"``: another, which knows no families; a network guesses the plant.
            ``"regulator"``: a matrix network for :func:`lqrlab.learning.policy`, which is told A and B.

    >>> plant = systems.make("cart_pole")
    >>> policy = unknown.adaptive(plant, learning.pretrained("adaptive"))
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
    """The model or prior in a file of :func:`write`, which may be a stranger's: nothing in it runs.

    Raises:
        ValueError: no such file, or no weights in it: without a card that says what they are, with arrays of other
            names, shapes or types than the card's model has, with entries that are not finite.
    """
    arrays, card = _opened(Path(file))
    try:
        for name, array in arrays.items():
            if array.dtype.kind != "f" or not (np.abs(array) < np.finfo(np.float32).max).all():
                raise ValueError(f"{name}: expected finite real numbers, but found an array of {array.dtype}")
        return _prior(arrays) if card.get("kind") == "prior" else _network(arrays, card)
    except ValueError as error:
        raise ValueError(f"file: {file} holds no weights that can be used: {error}") from None


def _prior(arrays: Mapping[str, np.ndarray]) -> Prior:
    parts = {name.partition("/")[0] for name in arrays if "/" in name}
    expected = _PRIOR | (_FAMILIES if "families" in parts else {}) | (_GUESS if "guess" in parts else {})
    sizes: dict[str, int] = {}
    for name in sorted(expected.keys() | arrays.keys()):
        wanted, found = expected.get(name), arrays[name].shape if name in arrays else None
        if wanted is not None and found is not None and len(wanted) == len(found):
            known = (sizes.setdefault(a, size) if isinstance(a, str) else a for a, size in zip(wanted, found))
            if tuple(known) == found and 0 not in found:
                continue
        raise ValueError(
            f"{name}: expected {'no such array' if wanted is None else f'shape {wanted}'} in a prior, but found "
            f"{'none' if found is None else f'shape {found}'}"
        )
    if "guess" in parts and sizes["h"] != sizes["w"] + 1:
        raise ValueError(f"guess/second: expected {sizes['w'] + 1} rows, the last of biases, but found {sizes['h']}")
    return Prior.of_arrays({k: jnp.asarray(a) for k, a in arrays.items()})


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
    save_file({k: np.asarray(a, order="C") for k, a in arrays.items()}, file, {"card": json.dumps({**card, **told})})
