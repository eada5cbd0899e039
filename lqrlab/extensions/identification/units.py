"""Units of measured signals: how they are written, and what they are in SI units."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from lqrlab.compute import checks

_TABLE: dict[str, tuple] = {
    "1 -": (1, "1"), "% percent": (0.01, "1"),
    "m metre metres meter meters": (1, "m"), "in inch inches": (0.0254, "m"), "ft foot feet": (0.3048, "m"),
    "L l litre litres liter liters": (1e-3, "m³"), "mol/L mol/l": (1, "mol/L"), "mmol/L mmol/l": (1e-3, "mol/L"),
    "mol/m³ mol/m3 mol/m^3": (1e-3, "mol/L"), "mol": (1, "mol"),
    "g gram grams": (1e-3, "kg"), "t": (1e3, "kg"), "lb": (0.45359237, "kg"),
    "s sec second seconds": (1, "s"), "min minute minutes": (60, "s"), "h hr hour hours": (3600, "s"),
    "rad radian radians": (1, "rad"), "deg ° º degree degrees": (math.pi / 180, "rad"),
    "rev revolution revolutions turn turns": (2 * math.pi, "rad"), "rpm": (math.pi / 30, "rad/s"),
    "kph": (1 / 3.6, "m/s"), "mph": (0.44704, "m/s"), "Hz hz hertz": (1, "Hz"),
    "N newton newtons": (1, "N"), "lbf": (4.4482216152605, "N"), "Nm": (1, "N·m"), "J joule joules": (1, "J"),
    "Wh": (3600, "J"), "W watt watts": (1, "W"), "Pa pascal": (1, "Pa"), "bar": (1e5, "Pa"),
    "psi": (6894.757293168361, "Pa"), "d day days": (86400, "s"),
    "A amp amps ampere amperes": (1, "A"), "V volt volts": (1, "V"), "Ω Ω ohm ohms": (1, "Ω"), "C coulomb": (1, "C"),
    "Ah": (3600, "C"), "F farad": (1, "F"), "H henry": (1, "H"), "T tesla": (1, "T"), "Wb weber": (1, "Wb"),
    "K kelvin degK": (1, "K"), "°C degC celsius": (1, "K", 273.15),
    "°F degF fahrenheit": (5 / 9, "K", 459.67 * 5 / 9),
}  # fmt: skip
"""Spellings → what one of them is, and where its scale begins. Concentrations are our plants', moles in a litre."""
_ALSO_WORDS = ("", "1", "-", "d", "in", "min", "t", "h", "g", "l", "L", "bar", "cg", "turn", "turns")
"""Units that names end in without meaning them: inlet, minimum, mean, centre of gravity."""
_PREFIXES = {"n": 1e-9, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "m": 1e-3, "c": 1e-2, "k": 1e3, "M": 1e6, "G": 1e9}
_PREFIXED = re.compile("(?!Grad)[nµμumckMG](m|g|s|L|l|rad|rpm|Hz|N|Nm|J|W|Wh|Pa|bar|A|Ah|V|Ω|F|H|T|Wb|K|mol|C)")
_MADE_OF = {
    "N": "kg·m/s²", "Pa": "kg/m/s²", "J": "kg·m²/s²", "W": "kg·m²/s³", "C": "A·s", "V": "kg·m²/s³/A", "rad": "1",
    "Ω": "kg·m²/s³/A²", "F": "A²·s⁴/kg/m²", "Wb": "kg·m²/s²/A", "T": "kg/s²/A", "H": "kg·m²/s²/A²",
}  # fmt: skip
"""SI units by others: so N·m and J are the same."""
_SPELLED = {word: (*entry, 0.0)[:3] for words, entry in _TABLE.items() for word in words.split()}
_LOWER = {word.lower(): word for word in _SPELLED if len(word) > 2 and word.isalpha()}
_DEGREES = re.compile(r"^(?:[°º]|deg(?:\.|rees?)?)\s*([CFK])(?:elsius|ahrenheit|elvin)?(?![a-z])", re.IGNORECASE)
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_FACTOR = re.compile(
    r"\s*(?P<by>[/·⋅×*]?)\s*(?P<word>(?<!/)mol/L|[^\W\d_]+|[°º%][^\W\d_]*|1)\s*(\^|\*\*)?(?P<power>-?\d)?"
)


class Unit(NamedTuple):
    """A unit: a value v in it is ``zero + factor · v`` in the SI unit ``si``, which is made of ``base`` units."""

    factor: float
    si: str
    base: Counter[str]
    zero: float = 0.0


@functools.cache
def unit(text: str) -> Unit | None:
    """A unit by its spelling, such as ``"deg/s"`` or ``"N m"``; None for one that is not known.

    >>> unit = identification.units.unit
    >>> unit("rev/min").si, unit("kN m").factor, unit("Degrees").si, unit("counts")
    ('rad/s', 1000.0, 'rad', None)
    """
    text = _DEGREES.sub(r"deg\1", text.strip())
    whole = _word(text)
    parts = [(whole, 1)] if whole else [(_word(word), power) for word, power in _factors(text)]
    known = [(one, power) for one, power in parts if one]
    if not known or len(known) < len(parts):
        return None
    powers = _product((si, power) for (_, si, _), power in known)
    base = _product((_MADE_OF.get(symbol, symbol), power) for symbol, power in powers.items())
    factor = math.prod(one[0] ** power for one, power in known)
    return Unit(factor, _written(powers), base, whole[2] if whole else 0.0)


def conversion(text: str, other: str) -> tuple[float, float] | None:
    """Factor and zero by which values in one unit become those in another; None if they are of different kinds."""
    if text == other:
        return 1.0, 0.0
    a, b = unit(text), unit(other)
    if a is None or b is None or a.base != b.base:
        return None
    return a.factor / b.factor, (a.zero - b.zero) / b.factor


def same(text: str, other: str) -> bool:
    """True if two spellings are of one unit."""
    found = conversion(text, other)
    return found is not None and abs(found[0] - 1) < 1e-9 and abs(found[1]) < 1e-9


def require(name: str, text: str) -> Unit:
    """The unit of this spelling; refuses one that is not known."""
    if (known := unit(text)) is None:
        hint = checks.did_you_mean(text, _SPELLED) or "; such as deg, mm, rpm, km/h, N m"
        raise ValueError(f"{name}: expected a unit, but found {text!r}, which is not known{hint}")
    return known


def ending(name: str) -> str:
    """The unit that a name seems to end in, as of ``angle_deg`` or ``angle / deg``; empty if none.

    >>> [identification.units.ending(name) for name in ("angle_deg", "v_km/h", "flow_in", "angle")]
    ['deg', 'km/h', '', '']
    """
    *before, last = re.split(r"[\s_,;:{|]+", name.rstrip("} "))
    for word in (last, last.partition("/")[2]):
        if (before or word != last) and word not in _ALSO_WORDS and unit(word) is not None:
            return word
    return ""


def _word(word: str) -> tuple[float, str, float] | None:
    """Factor, SI unit and zero of a single word, with or without a prefix, in either case if it is long."""
    if word not in _SPELLED and _PREFIXED.fullmatch(word):
        return _PREFIXES[word[0]] * _SPELLED[word[1:]][0], _SPELLED[word[1:]][1], 0.0
    return _SPELLED.get(word) or _SPELLED.get(_LOWER.get(word.lower(), ""))


def _factors(text: str) -> list[tuple[str, int]]:
    """``"N m/s^2"`` → N, m, s with powers 1, 1, −2; nothing where something else is written."""
    text, at, found = text.translate(_RAISED).replace(" per ", "/"), 0, []
    while at < len(text):
        part = _FACTOR.match(text, at)
        if part is None:
            return []
        found.append((part["word"], int(part["power"] or 1) * (-1 if part["by"] == "/" else 1)))
        at = part.end()
    return found


def _product(parts: Iterable[tuple[str, int]]) -> Counter[str]:
    """Powers of the units in a product of powers of ``"rad/s"`` and others."""
    powers = Counter[str]()
    for text, power in parts:
        for symbol, own in _factors(text):
            powers[symbol] += own * power
    del powers["1"]
    return powers


def _written(powers: Counter[str]) -> str:
    def raised(power: int) -> str:
        return "" if power == 1 else str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))

    over = "·".join(symbol + raised(power) for symbol, power in powers.items() if power > 0) or "1"
    return over + "".join(f"/{symbol}{raised(-power)}" for symbol, power in powers.items() if power < 0)
