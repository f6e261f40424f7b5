"""Worker threads that wait for the disk, so that the event loop does not.

A log submits one piece of work at a time (a flush of everything it has written so far); what is
appended meanwhile is covered by its next one: that is the group commit. Several logs' flushes run
in parallel, on a few threads.
"""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from leveret.ports.callbacks import call_each

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Committer"]


class Committer:
    """Runs work in threads and reports the results on the loop.

    `submit(work, done)` calls `done(error)` on the loop, with the OSError that `work` raised or
    None. Any other exception of `work` is a bug, and `done` gets an OSError that names it, so that
    no caller waits for ever. An exception of `done` goes to the loop's exception handler, and the
    other results are reported all the same.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: int, name: str = "leveret-commit"
    ) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], None], Callable[[OSError | None], None]] | None]
        self._queue = SimpleQueue()
        self._finished: list[tuple[Callable[[OSError | None], None], OSError | None]] = []
        self._lock = threading.Lock()  # of what is finished
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run `work` in a thread, then `done` on the loop."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Finish submitted work and end the threads; `done` may not be called any more."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            failure: OSError | None = None
            try:
                work()
            except OSError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to
                failure = OSError(f"internal error: {error!r}")
                failure.__cause__ = error
            # Only the first of those that finish together wakes the loop. Which is first is decided
            # under the lock: two threads that each saw the other's work would both leave it to the
            # other, and no result would be reported any more.
            with self._lock:
                self._finished.append((done, failure))
                is_first = len(self._finished) == 1
            if is_first:
                self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:
            return  # the loop is closed: nothing can be reported

    def _report(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        call_each((partial(done, failure) for done, failure in finished), self._complain)

    def _complain(self, done: object, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"{done!r} failed after a flush", "exception": error}
        )
