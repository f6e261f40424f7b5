"""Reading again: as often as something may have changed, and until it works."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from leveret.cluster.session_tasks import SessionTasks
from leveret.ports.coordinator import CoordinatorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["RETRY_SECONDS", "Refresh"]

logger = logging.getLogger("leveret.cluster")

RETRY_SECONDS = 0.2  # before the coordinator is asked again


class Refresh:
    """Runs `work`, which reads of the coordinator, after each `ask`; one run serves all before it.

    A run that raises CoordinatorError is repeated after a pause. What it says is logged once, until
    a run has worked.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._tasks = SessionTasks("reading from ZooKeeper")
        self._task: asyncio.Task[None] | None = None
        self._is_asked = False
        self._told = ""

    def ask(self) -> None:
        """Run it soon, behind all that has happened so far."""
        self._is_asked = True
        if self._task is None:
            self._task = self._tasks.start(self._run())
            self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while self._is_asked:
            self._is_asked = False
            try:
                await self._work()
            except CoordinatorError as error:
                self._is_asked = True
                if str(error) != self._told:
                    self._told = str(error)
                    logger.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._told = ""

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if self._is_asked:  # behind the last look of the run, and before this
            self.ask()

    async def close(self) -> None:
        """End a run that is under way."""
        self._is_asked = False
        await self._tasks.close()
