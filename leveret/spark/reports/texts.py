"""Texts of a report: numbers and sizes as people read them, names without what cannot be seen."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

__all__ = ["Unit", "cell", "printable", "quantity", "visible"]

Unit: TypeAlias = Literal["count", "bytes"]

NAME_CHARACTERS_MAX: Final = 200  # a routing key has up to 255 bytes; a page stays legible
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
REPLACEMENT: Final = "\ufffd"


def printable(text: str) -> str:
    """Return a text on one line, without control and invisible characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else REPLACEMENT for each in text)


def visible(text: object) -> str:
    """Return a text as `printable` does, and shortened."""
    shown = printable(str(text))
    if len(shown) > NAME_CHARACTERS_MAX:
        return shown[: NAME_CHARACTERS_MAX - 1] + "…"
    return shown


def quantity(value: float, unit: Unit) -> str:
    """Return a number with its unit: `12,345`, `1.5 MiB`."""
    if unit == "count":
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
    size, power = float(value), 0
    while abs(size) >= 1024 and power < len(UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:,.1f} {UNITS[power]}" if power else f"{size:,.0f} B"


def cell(value: object) -> str:
    """Return a value of a table as text: numbers grouped, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return quantity(value, "count") if isinstance(value, (int, float)) else visible(value)
