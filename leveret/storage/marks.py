"""Marks of each log in the state store, so that a loss of its files is noticed.

    b"run"
     0  u64       number of the run that wrote last
     8  16 bytes  the boot of the machine that it ran in; zeros where the system does not tell

    b"log/" + the log's directory: its mark
     0  u8   version, 4
     1  u32  CRC-32C over everything from byte 5
     5  u64  number of the run that has written it
    13  u8   1: the log was closed, the mark tells all there is; 0: it was open
    14  u64  base offset of the last segment
    22  u32  revision of the last segment
    26  u64  size of the last segment in bytes; 0 while open
    34  u64  offsets below were committed; where it was closed, the log's end
    42  u64  offsets below were flushed
    50  u64  end of what may have been delivered before
    58       closed: a checkpoint's payload; open: nothing

    b"closed/" + the log's directory, of earlier releases: the mark of a clean close
     0  u8   version, 2 or 3
     1  u64  base offset of the last segment
     9  u32  revision of the last segment
    13  u64  size of the last segment in bytes
    21  u64  the log's end
    29  u64  end of what may have been delivered before
    37       version 2: RangeSet.to_bytes() of what is settled
             version 3: a checkpoint's payload of kind 4 or 7

A mark is written when the log is closed and, about once a second, while it grows. One that says
closed is believed if the last run has written it: each start counts the run up before it opens a
log, so that nothing can have come after it. An older one still says what there must be.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from leveret.errors import DiskFullError, NewerFormatError
from leveret.storage.checkpoint import SETTLED_ALL

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.ports import StateStore

__all__ = ["LogMark", "LogMarks", "MarkedState", "boot_id"]

RUN_KEY = b"run"
RUN = struct.Struct("<Q16s")

VERSION = 4
CHECK = struct.Struct("<BI")
MARK = struct.Struct("<QBQIQQQQ")
EARLIER_PREFIX = b"closed/"
EARLIER = struct.Struct("<BQIQQQ")
EARLIER_SETTLED, EARLIER_TOLD = 2, 3  # a mark of version 1 is not believed
REPLICA_PREFIX = b"replica/"  # of a log that is copied from another node (storage/replica_notes.py)
UNKNOWN_BOOT = bytes(16)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Return an id of this boot of the machine; zeros if unknown."""
    try:
        return bytes.fromhex(BOOT_ID.read_text("ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return UNKNOWN_BOOT


@dataclass(frozen=True, slots=True)
class LogMark:
    """State of a log when it was marked. `checkpoint` is empty unless `closed`."""

    run: int
    closed: bool
    base: int
    revision: int
    segment_bytes: int
    committed: int
    flushed: int
    redelivered_stop: int = 0
    checkpoint: bytes = b""

    @property
    def place(self) -> tuple[int, int, int]:
        """End of the log's files; files with a smaller one are older, or were truncated."""
        return self.base, self.revision, self.segment_bytes

    def to_bytes(self) -> bytes:
        """Return the value in the state store."""
        fields = (
            *(self.run, self.closed, self.base, self.revision, self.segment_bytes),
            *(self.committed, self.flushed, self.redelivered_stop),
        )
        body = MARK.pack(*fields) + self.checkpoint
        return CHECK.pack(VERSION, crc32c(body)) + body

    @staticmethod
    def from_bytes(value: bytes) -> LogMark | None:
        """Return the mark, or None if it is damaged. Raises NewerFormatError."""
        if len(value) < CHECK.size:
            return None
        version, checksum = CHECK.unpack_from(value)
        if crc32c(value[CHECK.size :]) != checksum:
            return None
        if version > VERSION:
            raise NewerFormatError(f"the state store's mark of a log (version {version})")
        if version < VERSION or len(value) < CHECK.size + MARK.size:
            return None
        run, closed, *numbers = MARK.unpack_from(value, CHECK.size)
        base, revision, size, committed, flushed, redelivered_stop = numbers
        checkpoint = value[CHECK.size + MARK.size :]
        return LogMark(
            run, bool(closed), base, revision, size, committed, flushed, redelivered_stop,
            checkpoint,
        )  # fmt: skip


def _earlier_mark(value: bytes, run: int) -> LogMark | None:
    """Return a mark of an earlier release as one of `run`, or None if malformed."""
    if len(value) < EARLIER.size or value[0] not in (EARLIER_SETTLED, EARLIER_TOLD):
        return None
    version, base, revision, size, end, redelivered_stop = EARLIER.unpack_from(value)
    checkpoint = value[EARLIER.size :]
    if version == EARLIER_SETTLED:
        checkpoint = bytes([SETTLED_ALL]) + checkpoint
    return LogMark(run, True, base, revision, size, end, end, redelivered_stop, checkpoint)


@dataclass(frozen=True, slots=True)
class MarkedState:
    """Knowledge about a log when it is opened, beside its files.

    `closed_last`: the mark was written by the close that ended the last run, nothing came after it.
    `same_boot`: the machine has not been restarted since the last run; what that wrote is there,
    flushed or not. `same_run`: that run wrote the mark.
    """

    mark: LogMark | None = None
    closed_last: bool = False
    same_boot: bool = False
    same_run: bool = False

    @property
    def certain_end(self) -> int:
        """End of the offsets that only a loss of files can take away."""
        if self.mark is None:
            return 0
        if self.closed_last or (self.same_boot and self.same_run):
            return self.mark.committed
        return self.mark.flushed

    @property
    def certain_flushed(self) -> int:
        """End of the offsets that were flushed."""
        return 0 if self.mark is None else self.mark.flushed


class LogMarks:
    """Marks of all logs, by key. Opening it begins a new run.

    The mark of a log is removed when the log is opened, and set again when it is closed.
    """

    PREFIX = b"log/"

    def __init__(self, state: StateStore, boot: bytes) -> None:
        """Read the marks and begin a run. Raises StorageError."""
        noted = state.get(RUN_KEY)
        last_run, last_boot = RUN.unpack(noted) if noted is not None else (0, UNKNOWN_BOOT)
        self.run = last_run + 1
        self._last_run = last_run
        self._same_boot = boot == last_boot != UNKNOWN_BOOT
        self._values = {key[len(self.PREFIX) :]: value for key, value in state.scan(self.PREFIX)}
        earlier = state.scan(EARLIER_PREFIX)
        self._earlier = {key[len(EARLIER_PREFIX) :]: value for key, value in earlier}
        changes: list[tuple[bytes, bytes | None]] = [(RUN_KEY, RUN.pack(self.run, boot))]
        changes += [(key, None) for key, _ in earlier]
        with suppress(DiskFullError):  # a mark that says too much does not fit its last segment
            state.write(changes, durable=True)

    def _mark(self, key: bytes) -> LogMark | None:
        if key in self._earlier:
            return _earlier_mark(self._earlier[key], self._last_run)
        value = self._values.get(key)
        return None if value is None else LogMark.from_bytes(value)

    def known(self, key: bytes) -> MarkedState:
        """Return what is known of a log that is being opened. Raises NewerFormatError."""
        mark = self._mark(key)
        if mark is not None and mark.run == self.run:  # it was closed while the node went on
            return MarkedState(mark, mark.closed, same_boot=True, same_run=True)
        same_run = mark is not None and mark.run == self._last_run
        closed_last = mark is not None and mark.closed and same_run
        return MarkedState(mark, closed_last, self._same_boot, same_run)

    def put_back(self, key: bytes, mark: LogMark) -> None:
        """Set the mark of a log that was closed while the node goes on."""
        self._values[key] = mark.to_bytes()

    def knows(self, key: bytes) -> bool:
        """Whether an unopened log has a mark, be it damaged."""
        return key in self._values or key in self._earlier

    def tells_of(self, key: bytes) -> bool:
        """Whether an unopened log has, or had, records according to its mark."""
        mark = self._mark(key)
        return mark is not None and mark.committed > 0

    def forget(self, keys: Collection[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Drop the marks of deleted logs; return the changes for the state store.

        They drop what was noted while another node led, too: it would be missed in the next reign.
        """
        for key in keys:
            self._values.pop(key, None)
            self._earlier.pop(key, None)
        return [(prefix + key, None) for prefix in (self.PREFIX, REPLICA_PREFIX) for key in keys]

    @property
    def unopened(self) -> list[bytes]:
        """Keys of the logs that have not been opened."""
        return [*self._values, *self._earlier]

    def closing(self) -> list[tuple[bytes, bytes | None]]:
        """Return this run's final marks: of closed logs, and of those never opened."""
        changes: list[tuple[bytes, bytes | None]] = []
        for key in self.unopened:
            mark = self._mark(key)
            if mark is not None and mark.closed and mark.run in (self._last_run, self.run):
                changes.append(self.change(key, replace(mark, run=self.run)))
        return changes

    @staticmethod
    def change(key: bytes, mark: LogMark) -> tuple[bytes, bytes]:
        """Return key and value of a mark in the state store."""
        return LogMarks.PREFIX + key, mark.to_bytes()
