"""Sizes and durations with units: `64MiB`, `1GB`, `30s`, `2h`.

A setting's name says its unit, and a bare number counts in it. Size units are RabbitMQ's: `k`, `M`,
`G` and `KiB`, `MiB`, `GiB` are powers of 1024, `kB`, `MB`, `GB` powers of 1000, in any case.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["parse_quantity", "unit_of"]

QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
BYTES: Final = {
    "": 1,
    "b": 1,
    **{
        name: 1024**power
        for power, prefix in enumerate("kmgt", 1)
        for name in (prefix, f"{prefix}ib")
    },
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
}
MICROSECONDS: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
# Words of settings' names → what the unit is called, and its microseconds.
DURATION_UNITS: Final = {
    "microseconds": ("microseconds", 1),
    "ms": ("milliseconds", 1_000),
    "seconds": ("seconds", 1_000_000),
    "days": ("days", 86_400_000_000),
}
OWN_MICROSECONDS: Final = dict(DURATION_UNITS.values())


def unit_of(setting: str) -> str:
    """Return the unit of a setting's bare numbers, from its name; empty for a count or none."""
    words = setting.split("_")
    if "bytes" in words:
        return "bytes"
    for word in words:
        if word in DURATION_UNITS:
            return DURATION_UNITS[word][0]
    return ""


def parse_quantity(text: str, unit: str) -> int | float | None:
    """Return the number of `unit` (see `unit_of`) in `text`; None if it is no such quantity."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return None
    factor = _factor(found[2].lower(), unit)
    if factor is None:
        return None
    # Whole numbers stay exact: a size beyond 2**53 would lose its last digits as a float.
    amount = (int(found[1]) if found[1].isdigit() else float(found[1])) * factor
    return int(amount) if amount == int(amount) else amount


def _factor(suffix: str, unit: str) -> int | float | None:
    """Return the number of `unit` in one `suffix`; None if it is no unit of that kind."""
    if unit == "bytes":
        return BYTES.get(suffix)
    if not suffix:
        return 1
    own, other = OWN_MICROSECONDS[unit], MICROSECONDS.get(suffix)
    if other is None:
        return None
    return other // own if other % own == 0 else other / own
