"""Arguments refused in words: which one, what was expected, what came."""

import contextlib
import difflib
import math
import numbers
import os
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

T = TypeVar("T")
_ALIKE = 0.66  # at least two letters in three are the same: "nonsense" is no "noise" misspelt


def traced(*args: object) -> bool:
    """True if any leaf of ``args`` is abstract: inside ``jit``, ``vmap`` or ``grad`` no value can be looked at."""
    import jax  # here, so that the command line checks its arguments without waiting for JAX

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))


def on_host(name: str, *args: object) -> None:
    """Refuse traced arguments of a function that runs in NumPy."""
    if traced(*args):
        raise ValueError(f"{name}: runs on the host, so not inside jit, vmap or grad; call it outside")


def real(
    name: str, value: object, *, or_complex: bool = False, finite: bool = False, low: float = -math.inf
) -> "np.ndarray | Array":
    """``value`` as an array of real numbers, or a ``ValueError``: complex, truth values, text, times, masked numbers.

    The one place that says what a number is. Other byte orders, more than 64 bits become float64; masks hide nothing.

    JAX's arrays, traced or not, stay what they are, anything else becomes NumPy's. Complex numbers pass ``or_complex``;
    outside a trace ``finite`` refuses NaN and infinity, ``low`` NaN and what is below it.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    array: np.ndarray | Array = np.asarray(None)
    plain = isinstance(value, jax.Array) or type(value) is np.ndarray
    leaves = [] if plain else jax.tree.leaves(value)
    if hidden := sum(np.ma.count_masked(a) for a in leaves if isinstance(a, np.ma.MaskedArray)):
        raise ValueError(
            f"{name}: expected numbers, but found {hidden} masked: what a mask hides was not measured; leave those "
            "rows out, or give .filled(…) with what they are"
        )
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, jax.Array):
            array = value
        elif not any(isinstance(a, bool | np.bool) for a in leaves):  # a list of both would be one of numbers
            array = jnp.asarray(value) if traced(*leaves) else np.asarray(value)
    if isinstance(array, np.ndarray) and (not array.dtype.isnative or array.dtype.char in "gG"):
        array = array.astype({"g": "d", "G": "D"}.get(array.dtype.char, array.dtype.newbyteorder("=")))
    kinds = (jnp.integer, jnp.floating, *(jnp.complexfloating,) * or_complex)
    if array.dtype.kind == "m" or not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):  # m: durations
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise ValueError(
                f"{name}: expected real numbers, but found {array.dtype}: make states of the real and imaginary "
                "parts, or pass .real where the imaginary part is rounding"
            )
        wanted, lengths = "numbers" if or_complex else "real numbers", set[int]()
        with contextlib.suppress(TypeError):
            lengths = {len(row) for row in value if not isinstance(row, str | bytes)}  # type: ignore[attr-defined]
        ragged = f"rows of different lengths, {min(lengths)} to {max(lengths)}" if len(lengths) > 1 else ""
        hint = "; .astype(float) makes numbers of objects" if array.dtype.kind == "O" and array.ndim else ""
        odd = next((leaf for leaf in leaves if isinstance(leaf, str | bool)), value)  # the entry that is none
        raise ValueError(f"{name}: expected {wanted}, but found {ragged or _shown(odd)}{hint}")
    if (finite or low > -math.inf) and not traced(array):
        found = np.asarray(array)
        bad = found[~(np.isfinite(found) | (not finite)) | ~(or_complex | (found >= low))]
        if bad.size:
            wanted = "finite " * finite + "numbers" + (f" ≥ {low:g}" if low > -math.inf else "")
            raise ValueError(f"{name}: expected {wanted}, but found {bad[0]}")
    return array


def floating(name: str, value: object, *, finite: bool = False) -> "Array":
    """``value`` as JAX's array of floating numbers: in the type of whole ones what is computed with it would be cut."""
    import jax.numpy as jnp

    array = jnp.asarray(real(name, value, finite=finite))
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _shown(value: object) -> str:
    """A given value and its type, in a few words."""
    return f"{textwrap.shorten(repr(value), 60, placeholder=' …')} ({type(value).__name__})"


def _is_real(value: object) -> bool:
    """True of a real number of Python's or NumPy's; truth values and durations pass for whole numbers elsewhere."""
    duration = getattr(getattr(value, "dtype", None), "kind", "") == "m"
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not duration


def instance(name: str, value: object, kind: type[T], expected: str) -> T:
    """``value``, or a ``ValueError`` that says what was ``expected`` where it is of another type than ``kind``."""
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected {expected}, but found {_shown(value)}")
    return value


def flag(name: str, value: object) -> bool:
    """``value`` as True or False, or a ``ValueError``: 0, None, text and arrays are neither."""
    import numpy as np

    if not isinstance(value, bool | np.bool):
        raise ValueError(f"{name}: expected True or False, but found {_shown(value)}")
    return bool(value)


def text(name: str, value: object, expected: str = "a text") -> str:
    """``value``, or a ``ValueError`` where it is no text."""
    return instance(name, value, str, expected)


def path(name: str, value: object) -> Path:
    """``value`` as a path, or a ``ValueError`` where it is neither text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name}: expected a path, but found {_shown(value)}")
    return Path(value)


def function(name: str, value: object, expected: str = "a function") -> Callable:
    """``value``, or a ``ValueError`` where it cannot be called."""
    if not callable(value):
        raise ValueError(f"{name}: expected {expected}, but found {_shown(value)}")
    return value


def random_key(value: object) -> None:
    """Refuse what is no single random key."""
    import jax
    import jax.numpy as jnp

    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.ndim == 0:
            return
        if value.dtype == jnp.uint32 and value.shape in ((2,), (4,)):  # of before there were typed keys
            return
    raise ValueError(f"key: expected a random key, such as jax.random.key(0), but found {value!r}")


def whole(name: str, value: object, low: int | None = 1, high: int | None = None) -> int:
    """``value`` as an int, or a ``ValueError``: expected a whole number ≥ low (in [low, high]), of 64 bits at most."""
    count = int(value) if _is_real(value) and isinstance(value, numbers.Integral) else None
    least, most = -(2**63) if low is None else low, 2**63 - 1 if high is None else high
    if count is not None and least <= count <= most:
        return count
    wanted = "" if low is None else f" ≥ {low}" if high is None else f" in [{low}, {high}]"
    if count is not None and high is None and count > most:
        wanted += " that fits into 64 bits"
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

    ``expected`` is the range in words, for the message; ``finite`` refuses inf as well (NaN always is).
    """
    try:
        found = float(value) if _is_real(value) else math.nan  # type: ignore[arg-type]
    except OverflowError:  # a whole number beyond the floats
        found = math.nan
    good = low <= found <= high and (above < found or above == -math.inf) and (found < below or below == math.inf)
    if not good or (finite and math.isinf(found)):
        raise ValueError(f"{name}: expected {expected}, but found {value!r}")
    return found


def choice(name: str, value: T, allowed: Iterable[object], what: str = "one of") -> T:
    """``value``, or a ``ValueError`` that lists what is allowed and the near names."""
    allowed = list(allowed)
    if not any(type(value) is type(option) and value == option for option in allowed):
        options = ", ".join(map(str, allowed))
        raise ValueError(f"{name}: expected {what} {options}, but found {value!r}{did_you_mean(value, allowed)}")
    return value


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """``"; did you mean cart_pole?"``, or nothing where no known name is near."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=3, cutoff=_ALIKE)
    return f"; did you mean {' or '.join(near)}?" if near else ""
