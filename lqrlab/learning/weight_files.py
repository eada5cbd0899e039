"""Named arrays as safetensors, with a card in each file that says what they are; some weights come with the package."""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from safetensors import safe_open

from lqrlab.compute.files import distinct, write_atomic
from lqrlab.learning import models
from lqrlab.learning.train_config import ModelConfig

_TRAINED = Path(__file__).with_name("trained")
_MOST_BYTES = 1 << 26

_HOMES = {"prior": "lqrlab.extensions.unknown.prior"}
"""Module of each kind of weights that is no network; it registers them when it is imported."""
_KINDS: dict[str, "WeightKind"] = {}


class WeightKind(NamedTuple):
    """A kind of weights: its class, and both ways between it and named arrays, which may be a stranger's."""

    of: type
    read: Callable[[Mapping[str, np.ndarray]], Any]
    arrays: Callable[[Any], Mapping[str, Any]]


def register(name: str, kind: WeightKind) -> None:
    """Let weights of a kind, which the cards of their files name, be read and written."""
    _KINDS[name] = kind


def names() -> list[str]:
    """Weights that come with the package."""
    return sorted(file.stem for file in _TRAINED.glob("*.safetensors"))


def pretrained(name: str) -> Any:
    """Trained weights that come with the package.

    Args:
        name: ``"adaptive"``: a prior for the adaptive regulator, which regulates plants with unknown
            A and B. ``"student"``: another, which knows no families; a network guesses the plant. ``"regulator"``: a
            matrix network for :func:`lqrlab.learning.policy`, which takes A and B.

    >>> plant = systems.make("cart_pole")
    >>> policy = learning.policy(learning.pretrained("regulator"), plant)
    >>> simulation.rollout(plant, policy, 0.01 * jnp.ones(4), num_steps=2).us.shape
    (2, 1)
    """
    return read(_file(name))


def card(name: str) -> dict[str, Any]:
    """The card of the package's weights: data, command, seeds, scores and limits."""
    return load_arrays(_file(name))[1]


def _file(name: str) -> Path:
    if name not in names():
        raise ValueError(f"name: expected one of {', '.join(names())}, but found {name!r}")
    return _TRAINED / f"{name}.safetensors"


def read(file: str | Path) -> Any:
    """The weights in a file of :func:`write`, which may be a stranger's: nothing in it runs.

    Refused are arrays without a card that says what they are, of other names, shapes or types than the card's model
    has, with entries that are not finite, changed since.
    """
    arrays, card = load_arrays(file)
    try:
        for name, array in arrays.items():
            if array.dtype.kind != "f" or not (np.abs(array) < np.finfo(np.float32).max).all():
                raise ValueError(f"{name}: expected finite real numbers, but found an array of {array.dtype}")
        said = str(card.get("kind"))
        if said in _HOMES.keys() - _KINDS.keys():
            importlib.import_module(_HOMES[said])
        kind = _KINDS.get(said)
        return kind.read(arrays) if kind else _network(arrays, card)
    except ValueError as error:
        raise ValueError(f"file: {file} holds no weights that can be used: {error}") from None


def _network(arrays: Mapping[str, np.ndarray], card: Mapping[str, Any]) -> Any:
    if card.get("kind") != "network":
        raise ValueError(
            f"expected a card that says kind 'prior' or 'network', but found {card.get('kind')!r:.100}; "
            "learning.weight_files.write puts one into the file"
        )
    if "model" not in card:
        raise ValueError("expected a card with the settings of its model, but found none under 'model'")
    return models.restored(ModelConfig.from_dict(card["model"]), arrays)


def write(file: str | Path, weights: Any, card: Mapping[str, Any]) -> None:
    """Write a network with its ``config``, or weights of a registered kind, as ``.safetensors`` with their card.

    The card says what it was made from, how it scores, and where it must not be used.
    """
    for name, kind in _KINDS.items():
        if isinstance(weights, kind.of):
            arrays, told = kind.arrays(weights), dict[str, Any](kind=name)
            break
    else:
        arrays = models.split(weights)[1]
        told = {"kind": "network", "model": json.loads(weights.config.to_json())}
    save_arrays(file, arrays, {**card, **told})


def save_arrays(file: str | Path, arrays: Mapping[str, Any], card: Mapping[str, Any]) -> None:
    """Write named arrays and a card, whole or not at all, with a checksum of both.

    Raises:
        OSError: says which file could not be written and why.
    """
    held, text = {name: np.asarray(a, order="C") for name, a in arrays.items()}, json.dumps(card)
    write_atomic(file, safetensors.numpy.save(held, {"card": text, "sha256": _digest(held, text)}))


def load_arrays(file: str | Path, most: int = _MOST_BYTES) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the card in a file of at most so many bytes; weights of earlier versions have no checksum.

    Raises:
        ValueError: no regular file, or too large a one; no safetensors; changed since it was written.
        OSError: it may not be opened.
    """
    file = Path(file)
    if not file.is_file() or file.stat().st_size > most:
        raise ValueError(f"file: expected a file of weights of at most {most >> 20} MiB, but found {file}")
    file.open("rb").close()  # else an OSError: it may be whole
    try:
        with safe_open(file, "np") as opened:
            told = opened.metadata() or {}
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
        card = json.loads(told.get("card", "{}"), object_pairs_hook=distinct)
    except Exception as error:  # its author may be anyone: of what it is made there is no end
        raise ValueError(f"file: {file} holds no weights that can be read: {error!s:.300}") from error
    if not isinstance(card, dict):
        raise ValueError(f"file: expected a card with names and values in {file}, but found {type(card).__name__}")
    if told.get("sha256", "") not in ("", _digest(arrays, told.get("card", "{}"))):
        raise ValueError(f"file: {file} has changed since it was written: its checksum differs")
    return arrays, card


def _digest(arrays: Mapping[str, np.ndarray], card: str) -> str:
    """SHA-256 of a card and of the names, types, shapes and values of arrays."""
    found = hashlib.sha256(card.encode())
    for name, array in sorted(arrays.items()):
        found.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        found.update(array.tobytes())
    return found.hexdigest()
