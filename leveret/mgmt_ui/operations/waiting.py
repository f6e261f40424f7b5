"""Coroutines that wait for the broker's waiters (see core.logs.appender)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import Waiter

__all__ = ["has_failed"]


class _Heard:
    """Waiter with an awaitable result, which may have been abandoned."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def done(self, *, failed: bool) -> None:
        """Set the result (see Waiter)."""
        if not self.failed.done():
            self.failed.set_result(failed)


async def has_failed(begin: Callable[[Waiter], None]) -> bool:
    """Start something that takes a waiter, and wait; return whether it failed."""
    heard = _Heard()
    begin(heard)
    return await heard.failed
