"""Conversion of decoded field tables into the form the core uses: `str` instead of `bytes`."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """Return `value` with each UTF-8 long string as `str`, nested tables and arrays included."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def plain_table(table: dict[str, Any] | None) -> dict[str, Any]:
    """Convert a whole table as `plain` does; return an empty one for None."""
    return plain(table) if table else {}
