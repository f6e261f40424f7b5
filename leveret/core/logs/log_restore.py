"""Restore of a log's owner from its records after a start, until all of them were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.environment import Environment
    from leveret.core.logs.log_scan import LogScan
    from leveret.core.logs.log_writer import LogWriter
    from leveret.ports.records import Batch

__all__ = ["RETRY_MS", "LogRestore"]

RETRY_MS = 1000  # until a log that could not be read is tried again


class LogRestore:
    """Passes what `scan` reads to `take`, and calls `done` at the end, for the owner of the log.

    A scan that fails goes on later from where it was (decision 0047): an owner that knew half of
    its records would accept what is stored already.
    """

    def __init__(
        self,
        owner: LogWriter,
        environment: Environment,
        scan: LogScan,
        take: Callable[[Batch], None],
        done: Callable[[], None],
    ) -> None:
        self._owner = owner
        self._environment = environment
        self._scan = scan
        self._take = take
        self._done = done
        self._errors = ErrorThrottle(owner, environment.report)

    def start(self) -> None:
        """Start reading, or go on."""
        self._environment.spawn(self._read())

    async def _read(self) -> None:
        try:
            while not self._owner.deleted and (batches := await self._scan.read()):
                for batch in batches:
                    self._take(batch)
        except StorageError as error:
            self._errors.report(error)
            self._environment.timers.after(RETRY_MS, self.start)
        else:
            self._done()
