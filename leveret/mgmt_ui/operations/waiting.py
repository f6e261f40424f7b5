"""PendingMessage, as a coroutine, for what the broker tells waiters (see core.logs.appender)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import Waiter

__all__ = ["has_failed"]


class _Heard:
    """A waiter whose news can be awaited; nobody may want it any more."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def done(self, *, failed: bool) -> None:
        """See Waiter."""
        if not self.failed.done():
            self.failed.set_result(failed)


async def has_failed(begin: Callable[[Waiter], None]) -> bool:
    """Begin something that tells a waiter of its end; whether it failed."""
    heard = _Heard()
    begin(heard)
    return await heard.failed
