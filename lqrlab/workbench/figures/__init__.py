"""Plots, tables, drawings that move, cards."""

import math

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def digits(value: complex, count: int = 3) -> str:
    """A number in at most ``count`` digits: 0.052, −350, 12,300, 1.2·10⁻⁷, −0.5 + 2j, ∞; – for none."""
    if isinstance(value, complex) and value.imag:  # also NumPy's
        return f"{digits(value.real, count)} {'−' if value.imag < 0 else '+'} {digits(abs(value.imag), count)}j"
    number = float(f"{float(value.real):.{count}g}") + 0.0  # no −0
    if not math.isfinite(number):
        return "–" if math.isnan(number) else f"{number:g}".replace("-", "−").replace("inf", "∞")
    if number and not 1e-4 <= abs(number) < 1e7:
        mantissa, _, power = f"{number:.{count - 1}e}".partition("e")
        return f"{float(mantissa):g}·10".replace("-", "−") + str(int(power)).translate(_RAISED)
    return f"{number:,.12f}".rstrip("0").rstrip(".").replace("-", "−")
