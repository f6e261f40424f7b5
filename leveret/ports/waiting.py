"""Waiting of commands, which look again and again, or let others run between two portions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.ports.after_all import AfterAll

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ended", "let_others_run", "until"]

POLL_SECONDS: Final = 0.01


async def let_others_run() -> None:
    """Return in the next pass of the event loop."""
    await asyncio.sleep(0)


async def until(is_so: Callable[[], bool], seconds_max: float) -> None:
    """Wait until something is so. Raises TimeoutError."""
    async with asyncio.timeout(seconds_max):
        while not is_so():  # noqa: ASYNC110  # core has no events to wait for
            await asyncio.sleep(POLL_SECONDS)


async def ended(begin: Callable[[Any], object]) -> bool:
    """Return whether what `begin(waiter)` begins has succeeded: `waiter.done(failed=…)` tells."""
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def done(*, failed: bool) -> None:
        if not told.done():
            told.set_result(not failed)

    begin(AfterAll(1, done))
    return await told
