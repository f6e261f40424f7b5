"""The threads in which storage waits for devices: of one node, shared by all its logs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.storage.commit import Committer

if TYPE_CHECKING:
    import asyncio

__all__ = ["StorageThreads"]


@dataclass(frozen=True, slots=True)
class StorageThreads:
    """`committer` flushes and changes files, `pool` reads them. Whoever starts them closes them."""

    committer: Committer
    pool: ThreadPoolExecutor

    @classmethod
    def start(
        cls, loop: asyncio.AbstractEventLoop, *, commit_threads: int, fetch_threads: int
    ) -> StorageThreads:
        """Start so many of them. Raises OSError."""
        committer = Committer(loop, commit_threads)
        return cls(committer, ThreadPoolExecutor(fetch_threads, "leveret-fetch"))

    def close(self) -> None:
        """End the threads once they have done what was submitted."""
        self.committer.close()
        self.pool.shutdown()
