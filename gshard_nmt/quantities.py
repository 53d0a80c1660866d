"""Sizes, counts and times as text that reads well."""

from collections.abc import Mapping

GIB = 2**30
"""Bytes of a GiB."""
DAY = 24 * 60 * 60
"""Seconds of a day."""
YEAR_DAYS = 365.25
"""Days of a year."""


def size_text(size: float) -> str:
    """Returns a size in the unit that reads best: "1.50 GiB"."""
    return _scaled(size, {" GiB": GIB, " MiB": 2**20, " KiB": 2**10}) or f"{size:,.0f} B"


def flops_text(flops: float) -> str:
    """Returns a number of floating-point operations in the unit that reads best: "1.50 TFLOP"."""
    units = {" TFLOP": 1e12, " GFLOP": 1e9, " MFLOP": 1e6}
    return _scaled(flops, units) or f"{flops:,.0f} FLOP"


def count_text(count: float) -> str:
    """Returns a large number in words: "619.4 billion"."""
    return _scaled(count, {" billion": 1e9, " million": 1e6}, 1) or f"{count:,.0f}"


def short_count(count: float) -> str:
    """Returns a number for a narrow column: 1.25M and 1.25B are 1,250,000 and 1,250,000,000."""
    return _scaled(count, {"T": 1e12, "B": 1e9, "M": 1e6}) or f"{count:,.0f}"


def _scaled(number: float, units: Mapping[str, float], digits: int = 2) -> str:
    """Returns a number in the first unit that is not larger; "" if all are larger."""
    scaled = (f"{number / unit:,.{digits}f}{n}" for n, unit in units.items() if abs(number) >= unit)
    return next(scaled, "")


def seconds_text(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.2f} ms"


def duration_text(seconds: float) -> str:
    """Returns a time in the unit that suits it: "45 s", "12 min", "3 h 20 min", "2 days 3 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} days {hours} h"
