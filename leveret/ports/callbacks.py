"""Helpers for callbacks: call several so that none affects the others, and a no-op callback."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["call_each", "do_nothing"]


def call_each(
    callbacks: Iterable[Callable[[], object]], report: Callable[[object, Exception], None]
) -> None:
    """Call all callbacks in order; each that raises is reported with `report(callback, error)`."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001  # one caller's fault is not another's
            report(callback, error)


def do_nothing() -> None:
    """Do nothing: replaces the callback of a closed or deleted object, so that it can be freed."""
