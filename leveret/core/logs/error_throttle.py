"""What a queue's reading reports to the operator: each trouble once, however often it is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import LogWriter
    from leveret.errors import StorageError

__all__ = ["ErrorThrottle"]


class ErrorThrottle:
    """The complaints of one queue; `report(queue, error)` passes them on."""

    __slots__ = (
        "_latest",
        "_queue",
        "_report",
    )

    def __init__(self, queue: LogWriter, report: Callable[[object, Exception], None]) -> None:
        self._queue: LogWriter | None = queue
        self._report = report
        self._latest = ""  # what was reported, until reading works again

    def report(self, error: StorageError) -> None:
        """Report an error unless it was the latest; nobody minds those of a deleted queue."""
        queue = self._queue
        if queue is not None and str(error) != self._latest and not queue.deleted:
            self._latest = str(error)
            self._report(queue, error)

    def end(self) -> None:
        """Reading works: what is met from now on is news."""
        self._latest = ""

    def close(self) -> None:
        """The queue is gone, and nobody is told of it any more."""
        self._queue = None
