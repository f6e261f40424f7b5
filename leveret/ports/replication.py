"""Logs as replication has them: files that are copied byte for byte, and places in them.

The log of the node that leads is read as it stands in its files, sealed batches included, and each
node that follows appends the same bytes to files of the same names. So the copy of a log is what a
crash of the leader would have left at some moment, and to take over is to open it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from leveret.errors import NotEnoughCopiesError, StorageError

__all__ = [
    "BATCH_BYTES_MAX",
    "START",
    "EpochEnd",
    "LogEnd",
    "LogEvents",
    "LogFiles",
    "LogPlace",
    "LogSink",
    "PlaceGoneError",
    "RawBatches",
    "ReplicatedLog",
]


# Bytes of a batch that can be copied: the longest message that may be permitted, 512 MiB, with its
# headers; transactions, and what else is written at once, are shorter.
BATCH_BYTES_MAX = 640 << 20


class LogPlace(NamedTuple):
    """Byte in a file of a log: the file's first offset, its revision, and the position in it.

    Places of one log are ordered as its bytes are. All of them are ends of batches, or beginnings
    of files.
    """

    base: int = 0
    revision: int = 0
    position: int = 0

    @property
    def file(self) -> tuple[int, int]:
        """First offset and revision of the file, which name it in its log."""
        return self[:2]


LogEnd = tuple[LogPlace, int]  # a place in a log, and the offset of the next record there

START = LogPlace()  # of a log without files


class PlaceGoneError(StorageError):
    """The file of a place is not there any more: it was removed, or compacted."""


class EpochEnd(NamedTuple):
    """Where the last batch of an epoch ends in a log."""

    epoch: int
    place: LogPlace


class LogFiles(NamedTuple):
    """Files of a log at one node: (base, revision) of each, oldest first, and what they hold.

    The last batch begins at `last` and has a `checksum`; the next one is written at `place`, and
    its first record gets the `offset`.
    """

    log: str
    files: tuple[tuple[int, int], ...] = ()
    epochs: tuple[EpochEnd, ...] = ()
    place: LogPlace = START
    offset: int = 0
    last: LogPlace = START
    checksum: int = 0


class RawBatches(NamedTuple):
    """Whole batches as they stand in a file, and the place behind them.

    That is the beginning of the next file if these are the last bytes of a sealed one. The next
    record has the `offset`; without any data it is the one that was asked for.
    """

    data: bytearray
    stop: LogPlace
    offset: int


class LogSink(Protocol):
    """Copying of one log to other nodes, as the log knows it. Called on the event loop."""

    def wrote(self) -> None:
        """Note that something was written at the log's end.

        The log is told by `sent_to_copies` when that is on its way to the copies.
        """
        ...

    def removed(self, base: int, revision: int) -> None:
        """Note that a file is no part of the log any more."""
        ...

    def replaced(self, base: int, revision: int, by: int) -> None:
        """Note that a compacted file, of the revision `by`, has taken the place of another."""
        ...

    def failed(self, error: StorageError) -> None:
        """Note that a flush has failed: nothing is written anew, so this node must stop leading."""
        ...

    def requires_copies(self) -> None:
        """Note that the log has another `copies_min`."""
        ...


class LogEvents(Protocol):
    """Events in the logs that a node leads, by their keys. Called on the event loop."""

    def wrote(self, log: str, before: LogEnd, end: LogEnd) -> None:
        """Note that a log, which ended `before`, has a new end."""
        ...

    def removed(self, log: str, base: int, revision: int) -> None:
        """Note that a file is no part of a log any more."""
        ...

    def replaced(self, log: str, file: tuple[int, int], by: int, following: LogPlace) -> None:
        """Note that a file was compacted, into one of the revision `by`.

        Behind it begins the file `following`.
        """
        ...

    def dropped(self, log: str) -> None:
        """Note that a log was deleted."""
        ...

    def failed(self, reason: str) -> None:
        """Note that a disk has failed: this node must stop leading."""
        ...


class ReplicatedLog(Protocol):
    """Log of the node that leads, as those see it who copy it."""

    def copy_to(self, sink: LogSink) -> None:
        """Have the log copied from now on, which is committed as far as it is written.

        What is written behind is committed once it is `replicated`, and so is whatever removes a
        file or lets somebody forget a decision.
        """
        ...

    def replicated(self, place: LogPlace, offset: int) -> None:
        """Note that all copies that count end at a place or behind, as durably as the log itself.

        The record behind the place has the `offset`. Both may go back when another copy counts, but
        what is committed stays so. No more is committed by it while the log refuses.
        """
        ...

    @property
    def copies_min(self) -> int:
        """Number of nodes that must be in sync for anything to be stored."""
        ...

    def refuse(self, error: NotEnoughCopiesError | None) -> None:
        """Store nothing more from now on, and tell it to who waits; None: do so again."""
        ...

    @property
    def place(self) -> LogPlace:
        """End of the log; the beginning of its first file if it has none yet."""
        ...

    def sent_to_copies(self) -> None:
        """Note that what was written is on its way to the copies: a flush may wait for that."""
        ...

    def read_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches | None:
        """Return batches of one file from a place on; at the end of the log none.

        The next record there has the `offset`. They have `bytes_max` bytes at most, but for a
        single batch. None if a device would have to be read: `fetch_raw` then. Raises
        PlaceGoneError if the file is not there any more, CorruptBatchError if no batch begins
        there, StorageError.
        """
        ...

    async def fetch_raw(self, place: LogPlace, offset: int, bytes_max: int) -> RawBatches:
        """Read as `read_raw` does, but wait for the device in a worker thread."""
        ...
