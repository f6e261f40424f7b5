"""Columns of rows, and the sort order of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["cell", "rank"]


def cell(row: Mapping[str, Any], column: str) -> Any:
    """Return a column of a row (`queue.name`: a part of one); an empty text if there is none."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value


def rank(value: object, *, reverse: bool) -> tuple[int, Any]:
    """Return a sort key: numbers first, then texts, then all else, in either direction."""
    kind, known = 0, value
    if isinstance(value, str):
        kind = 1 if value else 2
    elif not isinstance(value, bool | int | float):
        kind, known = 2, ""
    return -kind if reverse else kind, known
