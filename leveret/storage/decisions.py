"""The node's log of committed transactions, `leveret.transactions`.

A transaction has committed once its record stands here as durably as its parts stand in their logs;
without a record it has aborted. A record is settled when every log that takes part has written down
the outcome itself, so that the log of decisions stays as short as what is under way.

    record: body u64 transaction, little-endian; exchange, routing key and content header empty
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from leveret.errors import CorruptBatchError, LeveretError
from leveret.ports.records import RecordFlag
from leveret.storage.damage import sound_batches
from leveret.storage.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leveret.ports import TopicLog
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch
    from leveret.storage.files import FileSystem
    from leveret.storage.segment import Segment

__all__ = ["DECISIONS_INCARNATION", "DECISIONS_TOPIC", "Decisions", "read_decisions"]

DECISIONS_TOPIC = "leveret.transactions"
DECISIONS_INCARNATION = "node"
BODY = struct.Struct("<Q")


class Waiting(NamedTuple):
    """Decisions below offset `stop` that wait for their flush."""

    stop: int
    transactions: list[int]
    decided: Callable[[Exception | None], None]


class Decisions:
    """Committed transactions that must be remembered. Used on the event loop."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._log: TopicLog | None = None
        self._offsets: dict[int, int] = {}
        self._unheard: dict[int, int] = {}  # of how many logs it is not known that they remember
        self._earlier: list[int] = []  # of an earlier run, while not all logs are open
        self._waiting: deque[Waiting] = deque()

    def __contains__(self, transaction: int) -> bool:
        return transaction in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def open(self, log: TopicLog, found: Mapping[int, int]) -> None:
        """Set the log, and the decisions of an earlier run with their offsets."""
        self._log = log
        self._offsets.update(found)
        self._earlier = list(found)
        for transaction in found:
            self._unheard[transaction] = 1  # until all logs are open that may ask
        log.on_commit(self._flushed)
        log.on_failure(self._failed)

    def decide(
        self, participants: Mapping[int, int], decided: Callable[[Exception | None], None]
    ) -> None:
        """Commit transactions; each with the number of logs that must remember it.

        `decided` is called once, with the error if they have not committed.
        """
        assert self._log is not None
        log, now_ms = self._log, self._wall_ms()
        for transaction in participants:
            body = BODY.pack(transaction)
            log.builder.add(RecordFlag.PERSISTENT, now_ms, b"", b"", b"", body)
        try:
            offset = log.append()
        except LeveretError as error:
            decided(error)
            return
        for transaction, count in participants.items():
            self._offsets[transaction] = offset
            self._unheard[transaction] = count
            offset += 1
        if log.committed == log.end:
            decided(None)
        else:
            self._waiting.append(Waiting(log.end, list(participants), decided))

    def _flushed(self) -> None:
        assert self._log is not None
        while self._waiting and self._waiting[0].stop <= self._log.committed:
            self._waiting.popleft().decided(None)

    def _failed(self, error: Exception) -> None:
        """Report the error of a failed flush to all waiting decisions, and drop these."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            for transaction in each.transactions:
                del self._offsets[transaction], self._unheard[transaction]
        for each in waiting:
            each.decided(error)

    # -- forgetting

    def asked(self, transaction: int) -> bool:
        """Return whether a transaction has committed; if so, the asking log must remember it."""
        if transaction not in self._offsets:
            return False
        self._unheard[transaction] += 1
        return True

    def remembered(self, transaction: int) -> None:
        """Note that one more log has the outcome durably; settle the decision after the last."""
        if transaction not in self._unheard:
            return  # it was aborted, so there is no decision
        self._unheard[transaction] -= 1
        if not self._unheard[transaction]:
            del self._unheard[transaction]
            offset = self._offsets.pop(transaction)
            assert self._log is not None
            self._log.settle([(offset, offset + 1)])

    def all_open(self) -> None:
        """Note that all logs are open: none will ask about an earlier transaction any more."""
        earlier, self._earlier = self._earlier, []
        for transaction in earlier:
            self.remembered(transaction)


def read_decisions(
    files: FileSystem,
    segments: Sequence[Segment],
    settled: RangeSet,
    unseal: Callable[[Batch], Batch],
    warn: Callable[[str], None],
) -> dict[int, int]:
    """Return the decisions that an earlier run has left, with their offsets.

    They are flushed before anything acts on them: a power cut must not undo them. Waits for the
    device. Raises StorageError.
    """
    found: dict[int, int] = {}
    for segment in segments:
        try:
            found.update(_read_segment(files, segment, settled, unseal, warn))
        except OSError as error:
            raise storage_error("read decisions about transactions in", segment.path, error) from (
                error
            )
    return found


def _read_segment(
    files: FileSystem,
    segment: Segment,
    settled: RangeSet,
    unseal: Callable[[Batch], Batch],
    warn: Callable[[str], None],
) -> Iterator[tuple[int, int]]:
    def damaged(error: Exception) -> None:
        warn(
            f"{segment.path} is damaged ({error}): of transactions that committed just before "
            "the node ended, some may be undone in some of their queues"
        )

    if not segment.suspect:
        segment.flush(files)
    handle = files.open(segment.path)
    try:
        for batch in sound_batches(files, handle, 0, segment.size, damaged):
            if batch.is_control:
                continue
            try:
                for offset, _, _, _, _, _, body in unseal(batch).records():
                    if offset not in settled and offset < segment.stop:
                        yield BODY.unpack(body)[0], offset
            except CorruptBatchError as error:
                damaged(error)
    finally:
        files.close(handle)
