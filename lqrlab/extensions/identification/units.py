"""Units of measured signals: how they are written, and what they are in SI units."""

import functools
import math
import re
from typing import NamedTuple

from lqrlab.compute import checks

_TABLE: dict[str, tuple[float, str]] = {
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
    "psi": (6894.757293168361, "Pa"),
    "A amp amps ampere amperes": (1, "A"), "V volt volts": (1, "V"), "Ω Ω ohm ohms": (1, "Ω"), "C coulomb": (1, "C"),
    "Ah": (3600, "C"), "F farad": (1, "F"), "H henry": (1, "H"), "T tesla": (1, "T"), "Wb weber": (1, "Wb"),
    "K kelvin": (1, "K"), "°C degC celsius": (1, "K"), "°F degF fahrenheit": (5 / 9, "K"),
}  # fmt: skip
"""Spellings → what one of them is. Concentrations are those of our plants, moles in a litre."""
_ZERO = {"°C": 273.15, "°F": 459.67 * 5 / 9}  # of scales that do not begin at nothing [K]
_ALSO_WORDS = ("", "1", "-", "in", "min", "t", "h", "g", "l", "L", "bar", "cg", "turn", "turns")
"""Units that names end in without meaning them: inlet, minimum, mean, centre of gravity."""
_PREFIXES = {"n": 1e-9, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "m": 1e-3, "c": 1e-2, "k": 1e3, "M": 1e6, "G": 1e9}
_PREFIXED = re.compile("m|g|s|L|l|rad|rpm|Hz|N|Nm|J|W|Wh|Pa|bar|A|Ah|V|Ω|F|H|T|Wb|K|mol|C")
_MADE_OF = {
    "N": "kg·m/s²", "Pa": "N/m²", "J": "N·m", "W": "J/s", "C": "A·s", "V": "W/A", "Ω": "V/A", "F": "C/V",
    "Wb": "V·s", "T": "Wb/m²", "H": "Wb/A", "rad": "1",
}  # fmt: skip
"""SI units by others: so N·m and J are the same."""
_SPELLED = {word: (words.split()[0], *entry) for words, entry in _TABLE.items() for word in words.split()}
_LOWER = {word.lower(): word for word in _SPELLED if len(word) > 2 and word.isalpha()}
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_FACTOR = re.compile(r"\s*(?P<by>[/·⋅×*]?)\s*(?P<word>[^\W\d_]+|[°º%][^\W\d_]*|1)\s*(\^|\*\*)?(?P<power>-?\d)?")
Powers = tuple[tuple[str, int], ...]


class Unit(NamedTuple):
    """A unit: a value v in it is ``zero + factor · v`` in the SI unit ``si``, which is made of ``base`` units."""

    factor: float
    si: str
    base: Powers
    zero: float = 0.0


@functools.cache
def unit(text: str) -> Unit | None:
    """A unit by its spelling, such as ``"deg/s"`` or ``"N m"``; None for one that is not known.

    >>> unit = identification.units.unit
    >>> unit("rev/min").si, unit("kN m").factor, unit("Degrees").si, unit("counts")
    ('rad/s', 1000.0, 'rad', None)
    """
    text = text.strip()
    if (whole := _word(text)) is not None:
        name, factor, si = whole
        return Unit(factor, si, _base(_powers(si)), _ZERO.get(name, 0.0))
    factor, found = 1.0, dict[str, int]()
    for word, power in _factors(text) or ():
        if (known := _word(word)) is None:
            return None
        factor *= known[1] ** power
        for symbol, own in _powers(known[2]):
            found[symbol] = found.get(symbol, 0) + own * power
    powers = tuple((symbol, power) for symbol, power in found.items() if power and symbol != "1")
    return Unit(factor, _written(powers), _base(powers)) if found else None


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


def _word(word: str) -> tuple[str, float, str] | None:
    """First spelling, factor and SI unit of a single word, with or without a prefix, in either case if it is long."""
    if word in _SPELLED:
        return _SPELLED[word]
    if word[:1] in _PREFIXES and _PREFIXED.fullmatch(word[1:]):
        _, factor, si = _SPELLED[word[1:]]
        return word, _PREFIXES[word[0]] * factor, si
    return _SPELLED[_LOWER[word.lower()]] if word.lower() in _LOWER else None


def _factors(text: str) -> list[tuple[str, int]] | None:
    """``"N m/s^2"`` → N, m, s with powers 1, 1, −2; None where something else is written."""
    text, at, found = text.translate(_RAISED).replace(" per ", "/"), 0, []
    while at < len(text):
        part = _FACTOR.match(text, at)
        if part is None:
            return None
        sign = -1 if part["by"] == "/" else 1
        found.append((part["word"], sign * int(part["power"] or 1)))
        at = part.end()
    return found


def _powers(text: str) -> Powers:
    return tuple(part for part in _factors(text) or () if part[0] != "1") if text != "mol/L" else ((text, 1),)


def _base(powers: Powers) -> Powers:
    """The units that all others are made of, sorted."""
    total = dict[str, int]()
    for symbol, power in powers:
        made = _base(_powers(_MADE_OF[symbol])) if symbol in _MADE_OF else ((symbol, 1),)
        for part, own in made:
            total[part] = total.get(part, 0) + own * power
    return tuple(sorted((symbol, power) for symbol, power in total.items() if power))


def _written(powers: Powers) -> str:
    def raised(power: int) -> str:
        return "" if power == 1 else str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))

    over = "·".join(symbol + raised(power) for symbol, power in powers if power > 0) or "1"
    return over + "".join(f"/{symbol}{raised(-power)}" for symbol, power in powers if power < 0)
