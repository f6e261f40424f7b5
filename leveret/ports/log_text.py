"""Formatting of foreign names and texts for log lines: printable, one line, of bounded length."""

from __future__ import annotations

from typing import Final

__all__ = ["one_line", "quoted"]

CHARACTERS_MAX: Final = 255  # the longest AMQP name


def quoted(text: object) -> str:
    """Return a name in quotes, safe for a log line."""
    return f"'{one_line(text)}'"


def one_line(text: object, characters_max: int = CHARACTERS_MAX) -> str:
    """Return text cut to `characters_max`, with unprintable characters escaped."""
    shown = str(text)[:characters_max]
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )
