"""An event loop whose time passes only when nothing else is left to do, and threads that are none.

What threads do happens on the loop after a while that is drawn from a seed, so that a run is the
same each time.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any

from leveret.storage.threads import StorageThreads

LONG_SECONDS = 0.3  # a slow call of a disk, once in a while


class StalledError(Exception):
    """Nothing is left that could ever happen."""


class SimulatedSelector(selectors.SelectSelector):
    """Waits for nothing but the next timer, by setting the clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise StalledError
            self.now += max(timeout, 0)
        return events


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its executors are `SimulatedPool`; where none is given, work takes a drawn time, too."""

    def __init__(self, chance: random.Random) -> None:
        self.clock = SimulatedSelector()
        super().__init__(self.clock)
        self.chance = chance
        self._pool = SimulatedPool(self)

    def time(self) -> float:
        return self.clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        pool = executor if isinstance(executor, SimulatedPool) else self._pool
        end = self.create_future()
        pool.submit(lambda: func(*args), end)
        return end

    def delay(self) -> float:
        """Draw how long a call of a device takes."""
        return self.chance.uniform(0, LONG_SECONDS if self.chance.random() < 0.01 else 0.004)


class SimulatedPool:
    """Runs work after a while, unless its process has ended by then."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.is_alive = True

    def submit(self, work: Callable[[], Any], end: asyncio.Future[Any]) -> None:
        self._loop.call_later(self._loop.delay(), self._run, work, end)

    def _run(self, work: Callable[[], Any], end: asyncio.Future[Any]) -> None:
        if not self.is_alive or end.cancelled():
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  # it is raised where it is waited for
            end.set_exception(error)
        else:
            end.set_result(result)

    def shutdown(self) -> None:
        self.is_alive = False


class SimulatedCommitter:
    """Stands for storage.commit.Committer: work of one thread, in order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self.is_alive = True

    oldest_flush_us = 0  # no disk hangs

    def submit(
        self,
        work: Callable[[], object],
        done: Callable[[OSError | None], object],
        *,
        is_flush: bool = False,
    ) -> None:
        self._free_at = max(self._free_at, self._loop.time()) + self._loop.delay()
        self._loop.call_at(self._free_at, self._run, work, done)

    def _run(self, work: Callable[[], object], done: Callable[[OSError | None], object]) -> None:
        if not self.is_alive:
            return
        failure = None
        try:
            work()
        except OSError as error:
            failure = error
        done(failure)

    def close(self) -> None:
        self.is_alive = False


def simulated_threads(loop: SimulatedLoop) -> StorageThreads:
    """Return the threads of a process that is simulated."""
    return StorageThreads(SimulatedCommitter(loop), SimulatedPool(loop))
