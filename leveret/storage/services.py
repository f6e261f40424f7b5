"""Services that all logs of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from leveret.ports import Clock
    from leveret.ports.ranges import RangeSet
    from leveret.storage.commit import Committer, FlushFigures
    from leveret.storage.decisions import Decisions
    from leveret.storage.files import FileSystem
    from leveret.storage.keyring import Keyring
    from leveret.storage.marks import LogMark
    from leveret.storage.reader import OpenFiles
    from leveret.storage.tail import TailCache

__all__ = ["LogServices"]


@dataclass(frozen=True, slots=True)
class LogServices:
    """Services that all logs of a node share; `warn` logs a warning.

    The callbacks are called with the directory of the log.
    """

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
    epoch: int  # in which this node leads the logs; 0 where it is alone
    run: int  # the number of this run of the node, as marks have it
    touched: Callable[[Path], None]  # has settlements to write down
    closed: Callable[[Path, LogMark | None], None]
    deleted: Callable[[Path, bytes], None]  # of this key: moves its files away, to be removed
    lost: Callable[[Path, RangeSet, Sequence[str]], None]  # messages, and what was kept
    may_compact: Callable[[Path], None]  # a segment was sealed, or some time has passed
    warn: Callable[[str], None]

    def report(self, subject: object, error: Exception) -> None:
        """Pass an exception that a callback raised to the loop's exception handler."""
        self.loop.call_exception_handler({"message": f"{subject!r} failed", "exception": error})
