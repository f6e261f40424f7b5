"""The two internal topics of staged batches: messages that nobody sees, and notes about them.

`leveret.staged` holds the messages of parts, `leveret.batches` what is known of parts and writers
(leveret.features.staged_batches.records). They are apart because a writer's last note may stay for
long, and a segment stays as long as anything in it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from leveret.core.logs.log_writer import LogWriter
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.environment import Environment
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.ports import TopicLog
    from leveret.ports.records import BatchBuilder

__all__ = ["BATCHES_TOPIC", "STAGED_TOPIC", "BatchNotes", "StagedRecords"]

BATCHES_TOPIC: Final = "leveret.batches"
STAGED_TOPIC: Final = "leveret.staged"


class Truncated(Protocol):
    """Owner of records in a log, who must know if they are lost."""

    def truncated(self, end: int) -> None:
        """Note that records from `end` on are lost."""
        ...


class StagedRecords(LogWriter):
    """Messages of parts. `uploads` are those under way."""

    def __init__(self, log: TopicLog, environment: Environment) -> None:
        super().__init__(log, environment.turn, environment.report)
        self.uploads: set[Truncated] = set()

    def __repr__(self) -> str:
        return f"StagedRecords({self.log!r})"

    def _show_committed(self) -> None:
        """Do nothing: nobody sees them."""

    def _forget_uncommitted(self) -> None:
        for upload in self.uploads:
            upload.truncated(self.log.end)

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._close_publishing()


class BatchNotes(LogWriter):
    """Records about parts and writers. `held` until those of an earlier run were read.

    `first` is the offset of the first note in the atomic write that was prepared last.
    """

    def __init__(self, log: TopicLog, environment: Environment) -> None:
        super().__init__(log, environment.turn, environment.report)
        self._wall_ms = environment.timers.wall_ms
        self.held = log.first < log.end
        self.first = 0

    def __repr__(self) -> str:
        return f"BatchNotes({self.log!r})"

    def put(self, writer: str, body: bytes) -> int:
        """Add a record. Returns its offset; await the commit."""
        offset = self.log.end + self.builder.count
        key = writer.encode(errors="surrogateescape")
        self.builder.add(RecordFlag.PERSISTENT, self._wall_ms(), b"", key, b"", body)
        self._turn.touch(self)
        return offset

    def put_in(self, write: AtomicWrite, writer: str, body: bytes) -> None:
        """Add a record to an atomic write."""
        key = writer.encode(errors="surrogateescape")
        write.publish(self, RecordFlag.PERSISTENT, b"", key, b"", body)

    def take_in(self, records: BatchBuilder) -> None:
        """Note where the records of an atomic write begin."""
        if records.count:
            self.first = self.log.end

    def release(self) -> None:
        """Begin to write: everything of an earlier run is known."""
        self._release()
        self._turn.touch(self)

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._close_publishing()

    def _show_committed(self) -> None:
        """Do nothing: whoever writes waits for the commit."""

    def _forget_uncommitted(self) -> None:
        self._drop_gathered()
