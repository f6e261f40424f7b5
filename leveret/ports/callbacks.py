"""Callbacks: several of which none affects the others, and one after several ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.ports.after_all import AfterAll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["call_each", "do_nothing", "has_failed"]


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


async def has_failed(*beginnings: Callable[[AfterAll], object]) -> bool:
    """Begin what takes a waiter, and wait until all has ended; return whether any has failed."""
    result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def ended(*, failed: bool) -> None:
        if not result.done():  # its waiting coroutine was cancelled
            result.set_result(failed)

    waiter = AfterAll(len(beginnings), ended)
    for begin in beginnings:
        begin(waiter)
    return await result
