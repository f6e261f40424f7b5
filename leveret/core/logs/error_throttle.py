"""Error throttle of a queue's reads: each problem is reported once, however often it is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import LogWriter
    from leveret.errors import StorageError

__all__ = ["ErrorThrottle"]


class ErrorThrottle:
    """Error throttle of one queue; errors are reported with `report(queue, error)`."""

    __slots__ = (
        "_latest",
        "_queue",
        "_report",
    )

    def __init__(self, queue: LogWriter, report: Callable[[object, Exception], None]) -> None:
        self._queue: LogWriter | None = queue
        self._report = report
        self._latest = ""  # last report, until reading works again

    def report(self, error: StorageError) -> None:
        """Report an error unless it equals the last one, or the queue is deleted."""
        queue = self._queue
        if queue is not None and str(error) != self._latest and not queue.deleted:
            self._latest = str(error)
            self._report(queue, error)

    def end(self) -> None:
        """Note that reading works, so that the next error is reported."""
        self._latest = ""

    def close(self) -> None:
        """Stop reporting: the queue was deleted."""
        self._queue = None
