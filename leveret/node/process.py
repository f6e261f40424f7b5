"""The process of a node: clock, tasks, signals, and error reports.

Every part is given it. Every task of the node runs in its task group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from leveret.errors import (
    DiskFullError,
    LeveretError,
    NotEnoughCopiesError,
    ToleratedError,
)
from leveret.ports.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.config import Configuration

__all__ = ["Process", "node_name"]

logger = logging.getLogger(__package__)


def node_name() -> str:
    """Return the node's name in logs, lists and metrics."""
    return f"leveret@{platform.node()}"


def _flush_output() -> None:
    """Write what is buffered, as far as that is possible: the reader of a pipe may be gone."""
    for output in (*logging.getLogger().handlers, sys.stdout):
        with contextlib.suppress(Exception):  # no output may keep a process from its end
            output.flush()


class Process:
    """A node's process. `tasks` is the group that all tasks of the node run in.

    `stopping` is set when the node must stop; `on_disk_full` is called when a write has no room.
    """

    def __init__(self, configuration: Configuration, tasks: asyncio.TaskGroup) -> None:
        self.configuration = configuration
        self.clock = SystemClock()
        self.started_ms = self.clock.wall_ms()
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.on_disk_full: Callable[[], None] | None = None
        self._group = tasks
        self._tasks: set[asyncio.Task[None]] = set()

    def watch_signals(self) -> None:
        """Stop the node at SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.stopping.set)

    def begin_anew(self, reason: str) -> NoReturn:
        """Replace the process by a new one of the same node, at once and without an end.

        All its connections end, as all its files and sockets are closed by that. A process that is
        stopping is only ended, and so is one that cannot be replaced: its program was removed.
        """
        is_stopping = self.stopping.is_set()
        logger.warning("%s: %s", "ends at once" if is_stopping else "begins anew", reason)
        _flush_output()
        try:
            if not is_stopping:
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # ourselves
        except OSError as error:
            logger.critical("cannot begin anew, and ends: %s: %s", sys.executable, error.strerror)
            _flush_output()
        finally:
            os._exit(1)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background; its failure is reported and stops no other task."""
        task = self._group.create_task(self._reported(work))
        # A task that is cancelled before its first step, as in a failed start, never awaits `work`.
        task.add_done_callback(lambda _: work.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_tasks(self) -> None:
        """Cancel the remaining background tasks."""
        for task in self._tasks:
            task.cancel()

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  # isolation between tasks
            self._log("background task", error)

    def report(self, subject: object, error: Exception) -> None:
        """Log an unexpected error; a full disk raises its alarm, too."""
        if isinstance(error, NotEnoughCopiesError):
            return  # told once for all logs, by the reign
        if isinstance(error, DiskFullError) and self.on_disk_full is not None:
            self.on_disk_full()
        self._log(subject, error)

    @staticmethod
    def _log(subject: object, error: Exception) -> None:
        about = {"subject": subject}
        if isinstance(error, ToleratedError):
            logger.warning("%s: %s", subject, error, extra=about)
        elif isinstance(error, LeveretError):
            logger.error("%s: %s", subject, error, extra=about)
        else:
            text = "%s failed: please report this as a bug"
            logger.error(text, subject, exc_info=error, extra=about)
