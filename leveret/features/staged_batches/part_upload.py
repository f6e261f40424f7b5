"""One upload of a part: chunks are checked and stored as they come.

    chunk ─► rows packed in slices ─► `leveret.staged` ─► the part's record in `leveret.batches`

Until that record is written the upload is as if it had never been: after a crash nothing refers to
its messages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Self

from crc32c import crc32c

from leveret.core.access.authentication import answered
from leveret.errors import ChannelError, StorageError
from leveret.features.staged_batches.chunk_rows import ChunkRows, InvalidChunkError, RowStager
from leveret.features.staged_batches.rules import BatchRefusedError, checksum_text
from leveret.ports.after_all import AfterAll
from leveret.ports.waiting import ended, let_others_run

if TYPE_CHECKING:
    from leveret.features.staged_batches.records import StagedPart
    from leveret.features.staged_batches.staged import StagedBatches
    from leveret.features.staged_batches.upload_checks import UploadChecks

__all__ = ["PartUpload"]

WORK_MAX: Final = 1024  # rows of a slice, or less if they are large: a third of a ms
RANGES_MAX: Final = 65_536  # of a part: its record has 16 bytes for each


class PartUpload:
    """One upload. Use it as a context: whatever is not finished is dropped at its end."""

    def __init__(
        self, batches: StagedBatches, part: StagedPart, checks: UploadChecks, user: bytes | None
    ) -> None:
        self.part = part
        self.is_aborted = False
        self.is_kept = False  # whether its record is being written
        self._batches = batches
        self._records = batches.records
        self._checks = checks
        self._stager = RowStager(checks, user, batches.limits.message_bytes_max)
        self._is_lost = False
        self._checksum = 0

    def __enter__(self) -> Self:
        self._records.uploads.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_kept or not self.part.ranges:
            self._records.uploads.discard(self)
        else:
            self.drop()

    def truncated(self, end: int) -> None:
        """Note that records from `end` on are lost, and their offsets are used again."""
        kept = [(first, min(stop, end)) for first, stop in self.part.ranges if first < end]
        self._is_lost = self._is_lost or kept != self.part.ranges
        self.part.ranges = kept

    def drop(self) -> None:
        """Settle what was stored, once it is in the log; until then it may yet be lost."""
        self._records.await_commit(AfterAll(1, self._settle))

    def _settle(self, *, failed: bool) -> None:  # noqa: ARG002  # what was lost is in no range
        self._records.uploads.discard(self)
        ranges, self.part.ranges = self.part.ranges, []
        if ranges and not self._records.deleted:
            self._records.settle(ranges)

    # -- what comes

    async def take(self, data: bytes) -> None:
        """Store the rows of a chunk, unless the part is there already or not needed any more.

        Raises InvalidChunkError, BatchRefusedError, ChannelError, StorageError.
        """
        self._checksum = crc32c(data, self._checksum)
        if self._batches.outcome_of(self.part) is not None:
            return
        chunk = ChunkRows(data)
        try:
            more = chunk.rows > 0
            while more:
                more = await answered(partial(self._pack, chunk))
                await let_others_run()  # the turn writes what was packed
                self._check()
        except InvalidChunkError as error:
            raise InvalidChunkError(f"row {chunk.row}: {error}") from None
        except ChannelError as error:
            raise type(error)(error.code, f"row {chunk.row}: {error.explanation}") from None

    def _pack(self, chunk: ChunkRows) -> bool:
        builder = self._records.builder
        count = builder.count
        first = self._records.log.end + count
        try:
            return self._stager.pack(chunk, builder, self._batches.wall_ms(), WORK_MAX)
        finally:
            if builder.count > count:
                self._note_range(first, first + builder.count - count)
                self._records.turn.touch(self._records)

    def _note_range(self, first: int, stop: int) -> None:
        part, ranges = self.part, self.part.ranges
        part.rows, part.bytes = self._stager.rows, self._stager.packed_bytes
        if ranges and ranges[-1][1] == first:
            first = ranges.pop()[0]
        ranges.append((first, stop))

    def _check(self) -> None:
        """Raise unless the upload may go on."""
        limits, batches = self._batches.limits, self._batches
        if self._records.deleted:
            raise BatchRefusedError("not_found", "the virtual host was deleted")
        if self._is_lost:
            raise StorageError("what was uploaded could not be stored")
        if self.is_aborted:
            raise BatchRefusedError("aborted", "the batch was aborted while this part was uploaded")
        if self.part.bytes > limits.commit_bytes_max:
            raise BatchRefusedError(
                "too_large",
                f"a part takes {self.part.bytes} bytes, more than the {limits.commit_bytes_max} of "
                "one commit: use smaller batches",
            )
        if len(self.part.ranges) > RANGES_MAX:
            raise BatchRefusedError("too_large", "the part's chunks are too small: use larger ones")
        if batches.staged_bytes > limits.staged_bytes_max:
            raise BatchRefusedError(
                "full",
                f"{batches.staged_bytes} bytes are staged in this virtual host, of "
                f"{limits.staged_bytes_max}: commit or abort batches first",
            )

    async def finish(self, stated: int | None = None) -> dict[str, object]:
        """Make the part whole. Returns the answer, when it is safe.

        `stated` is the checksum that the upload should have. Raises BatchRefusedError,
        StorageError.
        """
        if stated not in {None, self._checksum}:
            raise BatchRefusedError(
                "invalid",
                f"what has arrived has the checksum {checksum_text(self._checksum)}, not "
                f"{checksum_text(stated)} as stated: send it again",
            )
        self.part.checksum = self._checksum
        if not await ended(self._records.await_commit):
            self._is_lost = True
        self._check()
        self.part.exchanges = [name.decode() for name in self._checks.exchanges]
        return await self._batches.add(self)
