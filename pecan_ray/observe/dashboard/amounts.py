"""Numbers as people read them."""

from __future__ import annotations

import math


def amount(value: float | None, unit: str = "") -> str:
    """Return a number with three significant digits, thousands apart; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        text = "0"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:.{min(digits, 6)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}".rstrip()


def share(value: float | None) -> str:
    """Return a share in percent."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def dollars(value: float | None) -> str:
    """Return an amount of money."""
    return "-" if value is None else f"${value:,.4f}" if abs(value) < 100 else f"${value:,.2f}"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    if not math.isfinite(seconds):
        return "-"
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {left:02d} s"


def size(count: float | None) -> str:
    """Return a number of bytes."""
    if count is None or not math.isfinite(count):
        return "-"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.5 and more would be spelled 1e+03.
        if abs(count) < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
