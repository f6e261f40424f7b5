"""Recoveries of a store's logs: in threads, so many at once, and each log once.

What was recovered is kept until the log is opened. On the event loop, and without tasks: a recovery
goes on when those who wait for it are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from leveret.storage.recovery import Recovered

    Recovery = Callable[[], Recovered]
    Outcome = tuple[str, Recovered | Exception]

__all__ = ["Recoveries"]

# Logs that a thread recovers before it tells of them. A small log takes a tenth of a millisecond,
# and so does the way into a thread and back.
TOGETHER_MAX = 16


class Recoveries:
    """Recoveries by key of the log, `parallel` at a time in threads of `pool`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Executor, *, parallel: int) -> None:
        self._loop = loop
        self._pool = pool
        self._parallel = parallel
        self._waiting: deque[tuple[str, Recovery]] = deque()
        self._running_count = 0
        self._ends: dict[str, asyncio.Future[None]] = {}  # of those that wait or run
        self._recovered: dict[str, Recovered] = {}
        self._closed = False

    def __contains__(self, key: str) -> bool:
        """Whether a log was recovered and not opened since."""
        return key in self._recovered

    def begin(self, key: str, recovery: Recovery) -> asyncio.Future[None]:
        """Recover a log, unless that has begun; return its end. Raises StorageError if closed."""
        end = self._ends.get(key)
        if end is None:
            if self._closed:
                raise _stopping()
            end = self._ends[key] = self._loop.create_future()
            end.add_done_callback(asyncio.Future.exception)  # whether or not anybody waits for it
            self._waiting.append((key, recovery))
            self._start_next()
        return end

    def _start_next(self) -> None:
        while self._waiting and self._running_count < self._parallel:
            count = min(max(len(self._waiting) // self._parallel, 1), TOGETHER_MAX)
            some = [self._waiting.popleft() for _ in range(count)]
            self._running_count += 1
            running = self._loop.run_in_executor(self._pool, _recover_each, some)
            running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[list[Outcome]]) -> None:
        self._running_count -= 1
        for key, outcome in running.result():
            end = self._ends.pop(key)
            if isinstance(outcome, Exception):
                end.set_exception(outcome)
            elif self._closed:
                end.set_exception(_stopping())
            else:
                self._recovered[key] = outcome
                end.set_result(None)
        self._start_next()

    def keep(self, key: str, recovered: Recovered) -> None:
        """Keep what was recovered by the caller."""
        self._recovered[key] = recovered

    def take(self, key: str) -> Recovered | None:
        """Return what was recovered of a log that is being opened; None if it was not."""
        return self._recovered.pop(key, None)

    async def drop(self, key: str) -> None:
        """Forget what was recovered of a log; wait for a recovery that has begun."""
        end = self._ends.get(key)
        if end is not None:
            await asyncio.wait([end])
        self._recovered.pop(key, None)

    async def close(self) -> None:
        """Refuse those that wait, and wait for those that run; nothing recovered is kept."""
        self._closed = True
        while self._waiting:
            key, _ = self._waiting.popleft()
            self._ends.pop(key).set_exception(_stopping())
        if self._ends:
            await asyncio.wait(list(self._ends.values()))
        self._recovered.clear()


def _recover_each(logs: list[tuple[str, Recovery]]) -> list[Outcome]:
    """Recover logs in a thread; return their keys with what was recovered, or the error."""
    return [(key, _outcome(recovery)) for key, recovery in logs]


def _outcome(recovery: Recovery) -> Recovered | Exception:
    try:
        return recovery()
    except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
        return error


def _stopping() -> StorageError:
    return StorageError("the node stops: no log is opened any more")
