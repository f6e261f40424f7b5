"""Staged batches of one virtual host: parts are uploaded, committed, aborted, and dropped in time.

Two internal topics have all of it (leveret.features.staged_batches.logs); the book in memory is
rebuilt from one of them at a start. A part is there once its record is safe; it is published, or
dropped, together with that record by an atomic write. Commits and drops of a node follow each other
(`gate`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.core.logs.log_restore import LogRestore
from leveret.core.logs.log_scan import LogScan
from leveret.errors import StorageError
from leveret.features.staged_batches.batch_commit import BatchCommit
from leveret.features.staged_batches.book import BatchBook
from leveret.features.staged_batches.part_upload import PartUpload
from leveret.features.staged_batches.records import CommitNote, StagedPart, pack_part, unpack
from leveret.features.staged_batches.rules import (
    BatchRefusedError,
    check_name,
    checksum_text,
)
from leveret.features.staged_batches.upload_checks import UploadChecks
from leveret.ports.after_all import AfterAll
from leveret.ports.log_text import quoted
from leveret.ports.ranges import RangeSet
from leveret.ports.waiting import ended, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.atomic import JointWrites
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.vhost import Vhost
    from leveret.features.staged_batches.logs import BatchNotes, StagedRecords
    from leveret.features.staged_batches.records import WriterId
    from leveret.features.staged_batches.rules import BatchLimits
    from leveret.features.staged_batches.upload_checks import PublishRights
    from leveret.ports.records import Batch

__all__ = ["BatchGate", "StagedBatches"]

GATE_SECONDS_MAX: Final = 30.0  # for the commits before; an answer may take a minute
CHECK_MS: Final = 60_000  # between looks for what has expired
COMMITTED: Final = "already committed"


class BatchGate:
    """Lets one commit or drop of a node pass at a time: what it gathers is in memory."""

    def __init__(self) -> None:
        self.is_held = False

    async def enter(self) -> None:
        """Wait until nobody else is inside. Raises BatchRefusedError after a while."""
        try:
            await until(lambda: not self.is_held, GATE_SECONDS_MAX)
        except TimeoutError:
            raise BatchRefusedError("busy", "other batches are being committed") from None
        self.is_held = True

    def leave(self) -> None:
        """Let the next one in."""
        self.is_held = False


class StagedBatches:
    """Writers and parts of a virtual host."""

    def __init__(
        self,
        vhost: Vhost,
        topics: tuple[StagedRecords, BatchNotes],
        core: CoreServices,
        limits: BatchLimits,
        gate: BatchGate,
    ) -> None:
        self.vhost = vhost
        self.records, self.notes = topics
        self.core = core
        self.limits = limits
        self.book = BatchBook()
        self.wall_ms = core.timers.wall_ms
        self._gate = gate
        self._storing: set[tuple[WriterId, int, str]] = set()  # parts whose records are written
        self._timer = core.timers.timer(self._drop_expired)
        self._earlier_stop = self.records.log.end  # of what an earlier run has left
        if self.notes.held:
            self._restore()
        else:
            self._settle_orphans()
        self._plan_check()

    def __str__(self) -> str:
        return f"staged batches of vhost {quoted(self.vhost.name)}"

    @property
    def staged_bytes(self) -> int:
        """Bytes of all parts, those being uploaded included."""
        uploads = sum(upload.part.bytes for upload in self.uploads())
        return self.book.part_bytes + uploads

    def uploads(self) -> list[PartUpload]:
        """Return the uploads under way."""
        return [upload for upload in self.records.uploads if isinstance(upload, PartUpload)]

    # -- uploading

    def upload(self, writer: WriterId, number: int, name: str, rights: PublishRights) -> PartUpload:
        """Return a new upload of a part. Raises BatchRefusedError."""
        check_name(name, "part")
        part = StagedPart(writer, number, name)
        if self.outcome_of(part) is None:
            self._check_room(part)
        return PartUpload(self, part, UploadChecks(rights, self.wall_ms), rights.named_user)

    def outcome_of(self, part: StagedPart) -> dict[str, object] | None:
        """Return the answer for a part that needs no upload any more; None: it does."""
        writer = self.book.find(part.writer)
        if writer is not None and writer.has_committed(part.number):
            return _outcome(COMMITTED)
        known = self.book.part(part.key)
        return None if known is None else _outcome("repeated", known)

    def _check_room(self, part: StagedPart) -> None:
        """Raise BatchRefusedError if the virtual host, or its user, may have no further part."""
        if self.book.part_count + len(self._storing) >= self.limits.parts_max:
            raise BatchRefusedError(
                "full", f"{self.book.part_count} parts are staged in this virtual host: the limit"
            )
        user = part.writer.user
        storing = sum(writer.user == user for writer, _, _ in self._storing)
        if self.book.parts_of(user) + storing >= self.limits.parts_per_user_max:
            raise BatchRefusedError(
                "full",
                f"user '{user}' has staged {self.book.parts_of(user)} parts in this virtual host, "
                "as many as one user may (staged_parts_per_user_max): commit or abort batches "
                "first",
            )
        if self.book.find(part.writer) is None:
            self._check_new_writer(user)

    def _check_new_writer(self, user: str) -> None:
        """Raise BatchRefusedError if the virtual host, or its user, may have no further writer."""
        if len(self.book) >= self.limits.writers_max:
            raise BatchRefusedError(
                "full",
                f"there are {len(self.book)} writers already, of which none has been idle for long "
                "enough to be forgotten",
            )
        if self.book.writers_of(user) >= self.limits.writers_per_user_max:
            raise BatchRefusedError(
                "full",
                f"user '{user}' has {self.book.writers_of(user)} writers in this virtual host, as "
                "many as one user may (staged_writers_per_user_max): forget those that will not "
                "come again",
            )

    async def add(self, upload: PartUpload) -> dict[str, object]:
        """Store the record of a part whose messages are stored. Returns the answer when it is safe.

        Raises BatchRefusedError, StorageError.
        """
        part = upload.part
        try:
            await until(lambda: part.key not in self._storing, GATE_SECONDS_MAX)
        except TimeoutError:
            raise BatchRefusedError("busy", "the same part is being stored") from None
        outcome = self.outcome_of(part)
        if outcome is not None:
            self._check_same(part)
            return outcome
        self._check_room(part)
        upload.is_kept = True
        self._storing.add(part.key)
        part.time_ms = self.wall_ms()
        part.offset = self.notes.put(part.writer.name, pack_part(part))
        if not await ended(partial(self._await_stored, upload)):
            raise StorageError("the part could not be stored")
        if self.notes.deleted:
            raise BatchRefusedError("not_found", "the virtual host was deleted")
        return _outcome("staged", part)

    def _check_same(self, part: StagedPart) -> None:
        """Raise BatchRefusedError if a part is there with other content than was uploaded now."""
        known = self.book.part(part.key)
        if known is not None and known.checksum not in {None, part.checksum}:
            raise BatchRefusedError(
                "conflict",
                f"part '{part.name}' is there with other content: it has the checksum "
                f"{checksum_text(known.checksum)}, this upload {checksum_text(part.checksum)}. It "
                "stays as it is; stage the other content under another name, or drop the batch "
                "first",
            )

    def _await_stored(self, upload: PartUpload, told: Waiter) -> None:
        self.notes.await_commit(AfterAll(1, partial(self._stored, upload, told)))

    def _stored(self, upload: PartUpload, told: Waiter, *, failed: bool) -> None:
        """Note a part, even if whoever has uploaded it has not waited for that."""
        part = upload.part
        self._storing.discard(part.key)
        if failed:
            upload.is_kept = False
            upload.drop()
        elif self.outcome_of(part) is not None:  # its batch was committed without it meanwhile
            self._drop([part], [], AfterAll(1))
        elif not self.notes.deleted:
            self.book.add(part)
            self._plan_check()
        told.done(failed=failed)

    # -- committing and dropping

    async def commit(
        self,
        writer: WriterId,
        number: int,
        names: Sequence[str],
        rights: PublishRights,
        *,
        mandatory: bool = False,
    ) -> dict[str, object]:
        """Publish a batch. Returns the answer, when it is safe.

        If it is `mandatory`, messages that find no queue refuse it.
        Raises BatchRefusedError, ChannelError 403 and 404, StorageError.
        """
        await self._gate.enter()
        is_begun = False
        try:
            known = self.book.find(writer)
            if known is not None and known.has_committed(number):
                left = known.parts_up_to(number)
                is_begun = True
                await ended(partial(self._drop_inside, left, []))
                return {"outcome": COMMITTED}
            if known is None and not names:
                # Nothing to remember it by: a note would take a place and a record for a month,
                # of users who may publish nothing, too.
                return {"outcome": "committed", "messages": 0, "unrouted": 0}
            parts = self.book.named(writer, number, names)
            self._check_size(parts)
            commit = BatchCommit(self, writer, number, parts, rights, mandatory=mandatory)
            await commit.gather()
            is_begun = True
            outcome: list[JointWrites] = []
            done = await ended(lambda told: outcome.append(self._begin(commit, told)))
        finally:
            if not is_begun:
                self._gate.leave()
        if not done:
            raise self._failure(outcome[0])
        self._plan_check()
        return {
            "outcome": "committed",
            "messages": commit.messages,
            "unrouted": commit.unrouted,
        }

    def _begin(self, commit: BatchCommit, told: Waiter) -> JointWrites:
        """Begin to write a commit; the gate opens when it has ended, whoever waits for it."""
        return commit.begin(AfterAll(1, partial(self._left, told)))

    def _left(self, told: Waiter, *, failed: bool) -> None:
        self._gate.leave()
        told.done(failed=failed)

    def _check_size(self, parts: Sequence[StagedPart]) -> None:
        size = sum(part.bytes for part in parts)
        if size > self.limits.commit_bytes_max:
            raise BatchRefusedError(
                "too_large",
                f"the batch has {size} bytes, more than the {self.limits.commit_bytes_max} of one "
                "commit: use smaller batches",
            )

    @staticmethod
    def _failure(joint: JointWrites) -> Exception:
        if joint.refused_by is not None:
            return BatchRefusedError(
                "refused", f"{joint.refused_by} has no room for the messages of the batch"
            )
        return StorageError(f"the batch could not be stored: {joint.error}")

    def lost_part(self, part: StagedPart) -> BatchRefusedError:
        """Drop a part whose messages cannot be read any more, and return the error that says so."""
        self._drop([part], [], AfterAll(1))
        return BatchRefusedError(
            "not_found", f"the disk has lost messages of part '{part.name}': stage it again"
        )

    async def abort(self, writer: WriterId, number: int) -> int:
        """Drop the parts of a batch. Returns how many there were. Raises StorageError."""
        for upload in self.uploads():
            if upload.part.writer == writer and upload.part.number == number:
                upload.is_aborted = True
        return max(await self._dropped(writer, number), 0)

    async def forget(self, writer: WriterId) -> bool:
        """Forget a writer and its parts. Returns whether it was known. Raises StorageError."""
        return await self._dropped(writer, None) >= 0

    async def _dropped(self, writer: WriterId, number: int | None) -> int:
        """Drop a batch's parts; without a number all of the writer, and its note.

        Returns the number of parts; -1 for an unknown writer.
        """
        await self._gate.enter()
        known = self.book.find(writer)
        if known is None:
            self._gate.leave()
            return -1
        parts = list(known.parts.values()) if number is None else known.parts_of(number)
        notes = [known.note] if number is None and known.note is not None else []
        if not await ended(partial(self._drop_inside, parts, notes)):
            raise StorageError("what was to be dropped is there still")
        return len(parts)

    def _drop_inside(
        self, parts: Sequence[StagedPart], notes: Sequence[CommitNote], told: Waiter
    ) -> None:
        """Drop, and let the next one in through the gate."""
        self._drop(parts, notes, AfterAll(1, partial(self._left, told)))

    def _drop(self, parts: Sequence[StagedPart], notes: Sequence[CommitNote], told: Waiter) -> None:
        """Settle parts and notes; `told` is notified when that is safe."""
        write = self.core.atomic.begin()
        ranges = RangeSet(each for part in parts for each in part.ranges)
        offsets = [part.offset for part in parts] + [note.offset for note in notes]
        settled = RangeSet((offset, offset + 1) for offset in offsets)
        write.settle(self.records, list(ranges))
        write.settle(self.notes, list(settled))
        write.commit(AfterAll(1, partial(self._settled, parts, notes, told)))

    def _settled(
        self,
        parts: Sequence[StagedPart],
        notes: Sequence[CommitNote],
        told: Waiter,
        *,
        failed: bool,
    ) -> None:
        if not failed:
            self.book.remove([part for part in parts if self.book.part(part.key) is part])
            for note in notes:
                self.book.forget(note.writer)
        told.done(failed=failed)

    # -- in time

    def _plan_check(self) -> None:
        if self._timer.due_ms is None and len(self.book):
            self._timer.set(self.wall_ms() + min(CHECK_MS, self.limits.expire_ms))

    def _drop_expired(self) -> None:
        """Drop what was staged long ago, and forget writers that have long been idle."""
        if self.notes.deleted:
            return
        now_ms = self.wall_ms()
        self._timer.set(None)
        self._plan_check()
        if self._gate.is_held or self.notes.held:
            return  # the next time
        parts = self.book.expired(now_ms - self.limits.expire_ms)
        idle = self.book.idle(now_ms - self.limits.writer_idle_ms)
        notes = [writer.note for writer in idle if writer.note is not None]
        if parts or notes:
            self._gate.is_held = True
            self._drop_inside(parts, notes, AfterAll(1))

    # -- after a start

    def _restore(self) -> None:
        found: list[StagedPart | CommitNote] = []
        scan = LogScan(self.notes.log, partial(self.core.report, self), self.notes.lose)
        LogRestore(
            self.notes,
            self.core,
            scan,
            partial(self._restore_batch, found),
            partial(self._restored, found),
        ).start()

    def _restore_batch(self, found: list[StagedPart | CommitNote], batch: Batch) -> None:
        for offset, _, time_ms, _, writer, _, body in batch.records():
            if offset in self.notes.log.settled:
                continue
            try:
                found.append(unpack(writer, body, offset, time_ms))
            except StorageError as error:
                self.core.report(self, error)

    def _restored(self, found: Sequence[StagedPart | CommitNote]) -> None:
        if self.notes.deleted:
            return
        notes = [each for each in found if isinstance(each, CommitNote)]
        replaced = [self.book.note(note) for note in notes]
        over = [note.offset for note in replaced if note is not None]
        for part in found:
            if isinstance(part, CommitNote):
                continue
            if self.outcome_of(part) is None and self._is_whole(part):
                self.book.add(part)
            else:
                over.append(part.offset)
        if over:
            self.notes.settle(list(RangeSet((offset, offset + 1) for offset in over)))
        self._settle_orphans()
        self._plan_check()
        self.notes.release()

    def _is_whole(self, part: StagedPart) -> bool:
        """Whether all messages of a part are there: a power cut or the disk may have taken some."""
        log = self.records.log
        return all(
            log.first <= first < stop <= log.committed and not log.settled.overlap(first, stop)
            for first, stop in part.ranges
        )

    def _settle_orphans(self) -> None:
        """Settle what uploads have left that were never finished."""
        log = self.records.log
        orphans = log.settled.gaps(log.first, self._earlier_stop)
        for part in self.book.parts():
            for first, stop in part.ranges:
                orphans.remove(first, stop)
        if orphans:
            self.records.settle(list(orphans))

    # -- the end

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._timer.set(None)
        self.records.close()
        self.notes.close()


def _outcome(outcome: str, part: StagedPart | None = None) -> dict[str, object]:
    """Return the answer to an upload; `part` is the one that is there, if one is."""
    rows, checksum = (0, None) if part is None else (part.rows, part.checksum)
    return {"rows": rows, "outcome": outcome, "checksum": checksum_text(checksum)}
