"""Flushes of one log: one at a time, each of everything written before it.

It keeps the batches that wait for a flush, the coroutines that wait for the end of one, and whether
another is needed. The log handles a flush's success or failure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leveret.storage.files import storage_error
from leveret.storage.flush import Flush, Unflushed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from leveret.storage.reclaimer import Reclaimer
    from leveret.storage.segments import Segments
    from leveret.storage.services import LogServices
    from leveret.storage.transaction_participants import TransactionParticipants

__all__ = ["Flusher"]


class Flusher(Unflushed):
    """Flushes `segments` in the committer's threads.

    `ended(flush, error)` is called when a flush has come back, before coroutines that wait for it
    go on, and returns whether more may follow. `under_way` and `failures`, in a row, are for the
    log.
    """

    # An `Unflushed` rather than with one: the log looks into it for each batch that it appends.
    __slots__ = (
        "_again",
        "_directory",
        "_ended",
        "_parts",
        "_reclaimer",
        "_segments",
        "_services",
        "_until_idle",
        "_until_next",
        "failures",
        "under_way",
    )

    def __init__(  # noqa: PLR0917  # the parts of one log
        self,
        services: LogServices,
        directory: Path,
        segments: Segments,
        parts: TransactionParticipants,
        reclaimer: Reclaimer,
        ended: Callable[[Flush, OSError | None], bool],
    ) -> None:
        super().__init__()
        self.under_way = False
        self.failures = 0
        self._services = services
        self._directory = directory
        self._segments = segments
        self._parts = parts
        self._reclaimer = reclaimer
        self._ended = ended
        self._again = False  # something was written since that wants to be flushed
        self._until_next: list[asyncio.Future[None]] = []
        self._until_idle: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Start a flush of what was written so far, unless one runs or nothing is dirty."""
        if self.under_way or not self._segments.dirty:
            return
        self.under_way, self._again = True, False
        self._parts.flush_begins()
        self._reclaimer.flush_begins()
        flush = Flush.begin(self._services.files, self._segments, self)
        self._services.committer.submit(flush.run, partial(self._finished, flush))

    def start_behind(self) -> None:
        """Flush what was written so far, after the flush that is running."""
        self._again = self.under_way
        self.start()

    def release(self) -> None:
        """Drop the reference to the closed log; no flush may be running."""
        self._ended = _ignore

    async def next(self) -> None:
        """Wait for the end of the running flush, or of a new one. Raises StorageError."""
        self.start()
        await self._wait(self._until_next)

    async def idle(self) -> None:
        """Wait until no flush is running; one must be."""
        await self._wait(self._until_idle)

    async def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self._services.loop.create_future()
        waiters.append(waiter)
        await waiter

    def _finished(self, flush: Flush, error: OSError | None) -> None:
        self.under_way = False
        self.failures = 0 if error is None else self.failures + 1
        self._services.flushes.ended(flush, failed=error is not None)
        flush.unpin()
        waiters = self._until_next[:]
        self._until_next.clear()
        for waiter in waiters:
            if waiter.done():  # the waiting coroutine was cancelled
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(storage_error("flush the log in", self._directory, error))
        # After any error in it, the next flush must start, or nothing is confirmed any more.
        try:
            may_go_on = self._ended(flush, error)
        except Exception as bug:  # noqa: BLE001
            self._services.report(self._ended, bug)
            may_go_on = True
        if may_go_on and self._is_wanted:
            self.start()
        if not self.under_way:
            waiters = self._until_idle[:]
            self._until_idle.clear()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    @property
    def _is_wanted(self) -> bool:
        return bool(self.entries or self._segments.sealed_dirty or self._parts.waits or self._again)


def _ignore(flush: Flush, error: OSError | None) -> bool:  # noqa: ARG001  # as the log's would be
    """Ignore the end of a flush of a closed log."""
    return False
