"""Fields that somebody gives and nobody declares: refused with a word on what may be meant.

A field that is ignored is worse than an error wherever fields say what is deleted or moved: a
criterion with a slip of the pen would mean everything.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["suggestion", "undeclared"]

COMPARED_CHARACTERS_MAX = 64  # of a name: comparing takes the product of both lengths


def undeclared(given: Iterable[str], declared: Collection[str]) -> str | None:
    """What to say of the first given field that is not declared; None where all are."""
    unknown = min((name for name in given if name not in declared), default=None)
    if unknown is None:
        return None
    known = f"there are {', '.join(sorted(declared))}" if declared else "there are none"
    shown = unknown[:COMPARED_CHARACTERS_MAX]
    return f"unknown field {shown!r}{suggestion(unknown, declared)}; {known}"


def suggestion(name: str, declared: Iterable[str]) -> str:
    """`; did you mean 'headers'?` for `header`; empty where nothing is like it."""
    close = difflib.get_close_matches(name[:COMPARED_CHARACTERS_MAX], list(declared), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
