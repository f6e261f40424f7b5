"""Services that all logs of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from leveret.ports import Clock
    from leveret.ports.ranges import RangeSet
    from leveret.storage.commit import Committer
    from leveret.storage.decisions import Decisions
    from leveret.storage.files import FileSystem
    from leveret.storage.flush import FlushFigures
    from leveret.storage.keyring import Keyring
    from leveret.storage.log import PartitionLog
    from leveret.storage.marks import LogMark
    from leveret.storage.reader import OpenFiles
    from leveret.storage.tail import TailCache

__all__ = ["LogServices"]


@dataclass(frozen=True, slots=True)
class LogServices:
    """Services that all logs of a node share. `warn` logs a warning."""

    files: FileSystem
    loop: asyncio.AbstractEventLoop
    clock: Clock
    tail_cache: TailCache
    keyring: Keyring
    committer: Committer
    flushes: FlushFigures
    pool: ThreadPoolExecutor
    open_files: OpenFiles
    segment_bytes_max: int
    decisions: Decisions
    run: int  # the number of this run of the node, as marks have it
    touched: Callable[[PartitionLog], None]  # has settlements to write down
    closed: Callable[[PartitionLog, LogMark | None], None]
    deleted: Callable[[PartitionLog], None]  # moves its files away, and has them removed
    lost: Callable[[PartitionLog, RangeSet, Sequence[str]], None]  # messages, and what was kept
    warn: Callable[[str], None]

    def report(self, subject: object, error: Exception) -> None:
        """Pass an exception that a callback raised to the loop's exception handler."""
        self.loop.call_exception_handler({"message": f"{subject!r} failed", "exception": error})
