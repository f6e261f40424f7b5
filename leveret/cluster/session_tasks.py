"""Tasks of a member in one session with the coordinator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leveret.ports.callbacks import do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["SessionTasks"]


class SessionTasks:
    """Tasks of one part of a member, which has ended them all before its session's files close.

    So they are in no task group. The failure of one ends no other: the loop is told that `subject`
    failed, then `failed` is called.
    """

    def __init__(self, subject: str, failed: Callable[[], None] = do_nothing) -> None:
        self._subject, self._failed = subject, failed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends, or all are closed."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            about = {"exception": task.exception(), "task": task}
            self._loop.call_exception_handler({"message": f"{self._subject} failed", **about})
            self._failed()

    async def close(self) -> None:
        """Cancel the tasks that run, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
