"""Arguments refused in words: which one, what was expected, what came."""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jax import Array

T = TypeVar("T")


def traced(*args: object) -> bool:
    """Whether any leaf of ``args`` is abstract: inside ``jit``, ``vmap`` or ``grad`` no value can be looked at."""
    import jax  # here, so that the command line checks its arguments without waiting for JAX

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))


def whole(name: str, value: object, low: int | None = 1, high: int | None = None) -> int:
    """``value`` as an int, or a ``ValueError``: expected a whole number ≥ low (in [low, high])."""
    count = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if count is not None and (low is None or low <= count) and (high is None or count <= high):
        return count
    wanted = "" if low is None else f" ≥ {low}" if high is None else f" in [{low}, {high}]"
    raise ValueError(f"{name}: expected a whole number{wanted}, but found {value!r}")


def number(
    name: str,
    value: object,
    expected: str = "a finite number",
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    finite: bool = True,
) -> float:
    """``value`` as a float within ``low ≤ value ≤ high`` and ``above < value < below``, or a ``ValueError``.

    Args:
        name: of the argument.
        value: what was given.
        expected: the range in words, for the message.
        low, high, above, below: the range.
        finite: refuse inf as well (NaN always is).
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    found = float(value) if real else math.nan  # type: ignore[arg-type]
    good = (
        low <= found <= high
        and (above < found or above == -math.inf)
        and (found < below or below == math.inf)
    )
    if not good or (finite and math.isinf(found)):
        raise ValueError(f"{name}: expected {expected}, but found {value!r}")
    return found


def real(name: str, value: Any) -> "Array":
    """``value`` as an array of JAX, or a ``ValueError``: text, complex numbers, rows of different lengths."""
    import jax.numpy as jnp
    import numpy as np

    try:
        listed = isinstance(value, str | bytes | list | tuple) and not traced(value)
        if listed and np.asarray(value).dtype.kind not in "biufc":  # JAX takes some texts for names of types
            raise TypeError
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected real numbers, but found {value!r}") from None
    if jnp.iscomplexobj(array):
        raise ValueError(
            f"{name}: expected real numbers, but found {array.dtype}: make states of the real and imaginary parts"
        )
    return array


def choice(name: str, value: T, allowed: Iterable[object], what: str = "one of") -> T:
    """``value``, or a ``ValueError`` that lists what is allowed and the near names."""
    allowed = list(allowed)
    if not any(value == option and type(value) is type(option) for option in allowed):
        options = ", ".join(map(str, allowed))
        raise ValueError(
            f"{name}: expected {what} {options}, but found {value!r}{did_you_mean(value, allowed)}"
        )
    return value


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """``"; did you mean cart_pole?"``, or nothing where no known name is near."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
