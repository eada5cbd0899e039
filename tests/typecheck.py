"""The type checker of the tests: beartype, with an int for a float, and lists of numbers for arrays."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Union, get_args, get_origin

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException
from jaxtyping import ArrayLike

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))
_NUMBERS = set(get_args(ArrayLike))


def checked(fn: Callable) -> Callable:
    """``fn`` with its arguments and its result checked, where beartype understands the hints.

    Constructors are not: JAX, and preparation on the host, put other things than JAX's arrays into a pytree's fields.
    """
    if fn.__name__ == "__init__":
        return fn
    try:
        fn.__annotations__ = {name: _widened(hint) for name, hint in fn.__annotations__.items()}
        return _beartype(fn)
    except BeartypeDecorHintException:  # typing.Self, which means nothing to it outside of a class
        return fn


def _widened(hint: Any) -> Any:
    """``ArrayLike``, alone or within a union or tuple, takes lists too: functions make arrays of their arguments."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        more = (Sequence,) if set(args) >= _NUMBERS else ()
        return Union[(*map(_widened, args), *more)]
    return tuple[tuple(map(_widened, args))] if origin is tuple and args else hint
