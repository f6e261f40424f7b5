"""Marks of growing logs in the state store, about once a second, all in one write.

Nothing is done for this when messages are written: the logs are scanned, some at a time, and those
that have grown since are noted. So after a crash their state of a second before is known.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.storage.marks import LogMarks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from leveret.ports import StateStore
    from leveret.storage.commit import Committer
    from leveret.storage.log import PartitionLog

__all__ = ["NoteWriter"]

logger = logging.getLogger(__name__)

LOGS_AT_ONCE = 500  # some tenth of a millisecond of the event loop
WORKS_AT_ONCE = 64  # in one thread, before others' flushes have their turn


class NoteWriter:
    """Writes notes every `interval_ms` while there is anything to write; used on the loop.

    `worked(error)` is called after work that waited for a write, a portion at a time.
    """

    def __init__(
        self,
        state: StateStore,
        loop: asyncio.AbstractEventLoop,
        committer: Committer,
        logs: Mapping[Path, PartitionLog],
        *,
        interval_ms: int,
        worked: Callable[[OSError | None], None],
    ) -> None:
        self._state = state
        self._loop = loop
        self._committer = committer
        self._logs = logs
        self._interval_seconds = interval_ms / 1000
        self._worked = worked
        self._changes: dict[bytes, bytes | None] = {}
        self._afterwards: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_stopped = False
        self._is_writing = False
        self._writes_again = False
        self._refused = False  # the operator knows

    def start(self) -> None:
        """Scan the logs once after the interval, unless a scan is scheduled or scanning stopped."""
        if self._timer is None and not self._is_stopped:
            self._timer = self._loop.call_later(self._interval_seconds, self.look)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Queue a change for the next write; None removes the key."""
        self._changes[key] = value

    def when_written(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread once the queued changes are durable, or their write has failed."""
        self._afterwards.append(work)
        self.start()

    def look(self) -> None:
        """Scan all logs, then write."""
        self._look_on(iter(list(self._logs.values())))

    def _look_on(self, logs: Iterator[PartitionLog]) -> None:
        some = list(islice(logs, LOGS_AT_ONCE))
        for log in some:
            mark = log.growth()
            if mark is not None:
                self._changes.update([LogMarks.change(log.key, mark)])
        if len(some) == LOGS_AT_ONCE:
            self._timer = self._loop.call_soon(self._look_on, logs)
            return
        self._timer = self._loop.call_later(self._interval_seconds, self.look)
        self.write()

    def write(self) -> None:
        """Write the queued changes in a worker thread, behind a write that is running."""
        self._writes_again = self._is_writing
        if self._is_writing or not (self._changes or self._afterwards):
            return
        self._is_writing = True
        changes, self._changes = self._changes, {}
        afterwards, self._afterwards = self._afterwards, []
        refusals: list[StorageError] = []

        def work() -> None:
            try:
                self._state.write(list(changes.items()), durable=True)
            except StorageError as error:
                refusals.append(error)

        def done(error: OSError | None) -> None:
            self._is_writing = False
            refused = [*refusals, *([] if error is None else [error])]
            if refused and not self._refused:
                logger.warning("%s; should files be lost now, that is not noticed", refused[0])
            self._refused = bool(refused)
            if refused:
                self._changes = changes | self._changes
            for first in range(0, len(afterwards), WORKS_AT_ONCE):
                works = afterwards[first : first + WORKS_AT_ONCE]
                self._committer.submit(partial(_work_through, works), self._worked)
            if self._writes_again:
                self.write()

        self._committer.submit(work, done)

    def stop(self) -> None:
        """Stop scanning for good, because the node stops; what is queued can still be written."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def finish(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write the queued changes and these last; then do the waiting work. No write may run.

        Raises StorageError.
        """
        try:
            self._state.write([*self._changes.items(), *changes], durable=True)
        finally:
            with suppress(OSError):  # the next start tries again
                _work_through(self._afterwards)


def _work_through(works: Sequence[Callable[[], None]]) -> None:
    """Run all of `works`. Raises the first OSError, after the last."""
    errors = []
    for work in works:
        try:
            work()
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
