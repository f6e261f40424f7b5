"""Error messages for unknown fields of a request, with a suggestion of what may be meant.

Ignoring an unknown field would be worse than an error wherever fields select what is deleted or
moved: a misspelt filter would match everything.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["suggestion", "undeclared"]

COMPARED_CHARACTERS_MAX = 64  # of a name: comparing takes time proportional to both lengths


def undeclared(given: Iterable[str], declared: Collection[str]) -> str | None:
    """Return an error text for the first undeclared field by name, or None if all are declared."""
    unknown = min((name for name in given if name not in declared), default=None)
    if unknown is None:
        return None
    known = f"there are {', '.join(sorted(declared))}" if declared else "there are none"
    shown = unknown[:COMPARED_CHARACTERS_MAX]
    return f"unknown field {shown!r}{suggestion(unknown, declared)}; {known}"


def suggestion(name: str, declared: Iterable[str]) -> str:
    """Return `; did you mean 'headers'?` for `header`; empty if no declared name is similar."""
    close = difflib.get_close_matches(name[:COMPARED_CHARACTERS_MAX], list(declared), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
