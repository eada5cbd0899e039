"""Settings as one frozen, hashable value of plain numbers and strings; registries of choices that a user adds to."""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from lqrlab.compute import checks
from lqrlab.compute.checks import did_you_mean
from lqrlab.compute.files import distinct


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a number, for ``Annotated[int, Range(1)]``: low ≤ value ≤ high, above < value < below.

    ``words`` say it in the field's terms, "a standard deviation ≥ 0", where the bounds alone would say less.
    """

    low: float = -float("inf")
    high: float = float("inf")
    above: float = -float("inf")
    below: float = float("inf")
    words: str = ""

    def __str__(self) -> str:
        if self.words:
            return self.words
        parts = [
            f"{sign} {bound:g}"
            for sign, bound in (("≥", self.low), (">", self.above), ("≤", self.high), ("<", self.below))
            if abs(bound) != float("inf")
        ]
        return "a number " + " and ".join(parts) if parts else "a finite number"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Choice of values, for ``Annotated[str, OneOf("cpu", "gpu")]``."""

    options: tuple[object, ...]

    def __init__(self, *options: object):
        object.__setattr__(self, "options", options)


Count = Annotated[int, Range(1)]  # a whole number ≥ 1
Natural = Annotated[int, Range(0)]  # a whole number ≥ 0
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, below=1, words="a share in [0, 1)")]
Seed = Annotated[int, Range(0, 2**32 - 1)]


C = TypeVar("C", bound="Config")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen set of plain values; subclasses list the fields with their types, ranges and defaults.

    Types are ``int``, ``float``, ``bool``, ``str``, ``None``, unions of these and ``tuple[str, ...]``; a range is
    said by ``Annotated`` (see :class:`Range`, :class:`OneOf`). What depends on two fields, or is of ``Any`` type, a
    subclass checks in ``__post_init__``, after calling this one.
    """

    gone: ClassVar[Mapping[str, object]] = {}
    """Settings of earlier versions, with the values at which they did nothing: with these alone they are read."""

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, checked(field.name, getattr(self, field.name), kinds[field.name]))

    def to_json(self) -> str:
        """The fields as a JSON object."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls: type[C], text: str) -> C:
        """The config that :meth:`to_json` wrote; keys that are left out take their defaults.

        Raises:
            ValueError: no JSON object, an unknown key (with the near names), a value that does not fit.
        """
        try:
            values = json.loads(text, object_pairs_hook=distinct)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{cls.__name__}: expected JSON, but found {error}") from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls: type[C], values: object) -> C:
        """As :meth:`from_json`, of what JSON has been read to."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.__name__}: expected a JSON object, but found {type(values).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        for key, value in values.items():
            if key in cls.gone and value != cls.gone[key]:
                raise ValueError(f"{key}: expected {cls.gone[key]!r}, as this setting is gone, but found {value!r}")
            if key not in (*known, *cls.gone):
                hint = checks.did_you_mean(key, known) or f"; there are {', '.join(known)}"
                raise ValueError(f"{key}: {cls.__name__} has no such setting{hint}")
        return cls(**{key: value for key, value in values.items() if key not in cls.gone})

    def differences(self: C, other: C) -> list[str]:
        """The fields in which another config differs, each with both values."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return [f"{name} ({mine!r} against {theirs!r})" for name, mine, theirs in pairs if mine != theirs]

    def require(self, name: str, good: bool, expected: str) -> None:
        """Refuse the value of a field that does not go with the others."""
        if not good:
            raise ValueError(f"{name}: expected {expected}, but found {getattr(self, name)!r}")


def checked(name: str, value: object, kind: Any) -> Any:
    """``value`` as one of the annotated type ``kind``; whole numbers do for real ones, lists for tuples and back."""
    limits: tuple[object, ...] = ()
    if typing.get_origin(kind) is Annotated:
        kind, *limits = typing.get_args(kind)  # type: ignore[assignment]
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return checked(name, value, next(option for option in args if option is not type(None)))
    if origin in (tuple, list):
        if not isinstance(value, tuple | list):
            raise ValueError(f"{name}: expected a list, but found {value!r}")
        return origin(checked(name, item, args[0]) if args else item for item in value)
    if origin is dict and isinstance(value, Mapping) and args:
        return {checked(name, k, args[0]): checked(f"{name}.{k}", v, args[1]) for k, v in value.items()}
    for limit in limits:
        if isinstance(limit, OneOf):
            checks.choice(name, value, limit.options)
    bounds = next((limit for limit in limits if isinstance(limit, Range)), Range())
    if kind is Any:  # which the subclass checks
        return value
    if kind is int:
        low, high = (int(b) if abs(b) < float("inf") else None for b in (bounds.low, bounds.high))
        return checks.whole(name, value, low, high)
    if kind is float:
        ends = {end: getattr(bounds, end) for end in ("low", "high", "above", "below")}
        return checks.number(name, value, str(bounds), **ends)
    if type(value) is not origin:
        words = {bool: "True or False", str: "a text", dict: "a table of names and values"}
        raise ValueError(f"{name}: expected {words.get(origin, origin.__name__)}, but found {value!r}")
    return value


def snake_case(name: str) -> str:
    """The name in a register of a class: ``CartPole`` is ``cart_pole``, ``PMSM`` is ``pmsm``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Registry(dict[str, Any]):  # classes and functions of any signature
    """Names and what they stand for; calling it gives a decorator that enters one more.

    ``@models.register("mine")`` above a class in a notebook's cell, and ``ModelConfig(kind="mine")`` builds it.
    A name that is entered again is replaced, so that a cell may be run twice.
    """

    def __init__(self, setting: str, what: str):
        super().__init__()
        self.setting, self.what = setting, what

    def __call__(self, name: str) -> Callable[[T], T]:
        """A decorator that enters what it decorates, and returns it unchanged."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{self.setting}: expected a name such as 'mine', but found {name!r}")

        def enter(value: T) -> T:
            self[name] = value
            return value

        return enter

    def __missing__(self, name: str) -> Any:
        hint = did_you_mean(name, self) or "; a new one is registered by running the cell that decorates it"
        raise ValueError(
            f"{self.setting}: expected a registered {self.what} ({', '.join(self)}), but found {name!r}{hint}"
        )
