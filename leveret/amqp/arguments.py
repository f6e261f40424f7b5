"""Field tables as the core wants them: text where the wire has bytes."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """The same value with every long string that is UTF-8 as `str`, nested ones included."""
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
    """A whole table; an absent one is empty."""
    return plain(table) if table else {}
