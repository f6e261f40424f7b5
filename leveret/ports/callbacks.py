"""Callbacks: several of which none affects the others, and one after several ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = ["AfterAll", "call_each", "do_nothing", "has_failed"]


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


class Then(Protocol):
    """Function to be called at an end."""

    def __call__(self, *, failed: bool) -> object:
        """Go on. `failed`: something was lost, or refused."""
        ...


class AfterAll:
    """Waiter for `pending` ends: calls `then` after the last, failed if one of them was.

    It may be awaited instead, also without a loop of asyncio: it resumes in the next pass.
    """

    __slots__ = ("_then", "failed", "pending")

    def __init__(self, pending: int, then: Then | None = None) -> None:
        self.pending = pending
        self.failed = False
        self._then = then

    def done(self, *, failed: bool) -> None:
        """Note one of the ends."""
        self.failed |= failed
        self.pending -= 1
        if not self.pending and self._then is not None:
            self._then(failed=self.failed)

    def __await__(self) -> Generator[None, None, bool]:
        while self.pending:
            yield
        return self.failed


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
