"""Callbacks: several of whom none may hurt the others, and the one of somebody who is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["call_each", "do_nothing"]


def call_each(
    callbacks: Iterable[Callable[[], object]], report: Callable[[object, Exception], None]
) -> None:
    """Call all of them in order; `report(callback, error)` is told of each that raises."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001  # one caller's fault is not another's
            report(callback, error)


def do_nothing() -> None:
    """Stand for the callback of somebody who is closed or deleted, and is referred to no more."""
