"""The type checker of the tests: an int will do for a float, as in Python's own numeric tower."""

from collections.abc import Callable
from typing import TypeVar

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException

F = TypeVar("F", bound=Callable)
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(fn: F) -> F:
    """``fn`` with its arguments and its result checked, where beartype understands the hints.

    Constructors are not: JAX, and preparation on the host, put other things than JAX's arrays into a pytree's fields.
    """
    if fn.__name__ == "__init__":
        return fn
    try:
        return _beartype(fn)
    except BeartypeDecorHintException:  # typing.Self, which means nothing to it outside of a class
        return fn
