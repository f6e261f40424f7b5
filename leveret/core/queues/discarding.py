"""Discarding of messages: what becomes of them.

A queue hands over what it discards, leased to no consumer; features dead-letter or retry it
(leveret.features.dead_letter.worker).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.logs.log_writer import LogWriter
    from leveret.core.settings.discard_reasons import Reason
    from leveret.ports.records import Batch

__all__ = ["BatchSlice", "DiscardedMessages", "NoDeadLetters"]


class BatchSlice(NamedTuple):
    """Records [first, stop) of a batch."""

    batch: Batch
    first: int
    stop: int


class DiscardedMessages(Protocol):
    """Discarded messages of one queue. It settles them when it is done with them."""

    @property
    def waiting_count(self) -> int:
        """Number of messages that no target accepts at present; they stay leased."""
        ...

    def add(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:
        """Discard messages that are leased to no consumer."""
        ...

    def refused(self, batch: Batch) -> None:
        """Discard messages that were never stored: the queue is full (reject-publish-dlx)."""
        ...

    def try_again(self) -> None:
        """Try again what no target has accepted."""
        ...

    def close(self) -> None:
        """Stop: the queue was deleted, with all its messages."""
        ...


class NoDeadLetters:
    """Discards messages by settling them, where nothing dead-letters them."""

    waiting_count = 0

    def __init__(self, queue: LogWriter) -> None:
        self._queue = queue

    def add(self, ranges: Sequence[tuple[int, int]], reason: Reason) -> None:  # noqa: ARG002
        """Settle the messages."""
        self._queue.settle(ranges)

    def refused(self, batch: Batch) -> None:
        """Do nothing: the messages were never stored."""

    def try_again(self) -> None:
        """Do nothing: all are settled."""

    def close(self) -> None:
        """Do nothing: all are settled."""
