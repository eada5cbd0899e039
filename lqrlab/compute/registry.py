"""Registries that a user adds to by a decorator: models, blocks, activations, losses."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from lqrlab.compute.checks import did_you_mean

T = TypeVar("T")


def snake_case(name: str) -> str:
    """The name in a register of a class: ``CartPole`` is ``cart_pole``, ``PMSM`` is ``pmsm``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Registry(Mapping[str, Any]):  # classes and functions of any signature
    """Names and what they stand for; calling it gives a decorator that enters one more.

    ``@models.register("mine")`` above a class in a notebook's cell, and ``ModelConfig(kind="mine")`` builds it.
    A name that is entered again is replaced, so that a cell may be run twice.
    """

    def __init__(self, setting: str, what: str):
        self.setting, self.what = setting, what
        self._entries: dict[str, Any] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """A decorator that enters what it decorates, and returns it unchanged."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{self.setting}: expected a name such as 'mine', but found {name!r}")

        def enter(value: T) -> T:
            self._entries[name] = value
            return value

        return enter

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            hint = did_you_mean(name, self) or "; a new one is registered by running the cell that decorates it"
            raise ValueError(
                f"{self.setting}: expected a registered {self.what} ({', '.join(self)}), but found {name!r}{hint}"
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
