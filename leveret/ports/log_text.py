"""Names and texts of others in lines of the log: one line each, whatever they hold, and bounded."""

from __future__ import annotations

from typing import Final

__all__ = ["one_line", "quoted"]

CHARACTERS_MAX: Final = 255  # what names of AMQP have at most


def quoted(text: object) -> str:
    """A name in quotes."""
    return f"'{one_line(text)}'"


def one_line(text: object, characters_max: int = CHARACTERS_MAX) -> str:
    """Text without anything that would end the line, or colour it."""
    shown = str(text)[:characters_max]
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )
