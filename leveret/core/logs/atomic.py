"""Atomic writes over several logs: publishes and settlements that take effect together or never.

For transactions of clients, and for moves of messages from one log to another by the broker.
A write is gathered in memory. Its commit prepares a part in every log (see ports.TopicLog), has the
store decide once all parts are durable, and resolves them. A crash before the decision leaves
nothing of it, one after the decision all of it (docs/decisions/0020).

All writes that commit in one turn of the loop are prepared together, and all prepared ones are
decided together. A write that would hold the loop for long is made as several that belong together
(`commit_together`): they are prepared in turns that follow each other, and decided as one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.core.turn import TouchedQueue
from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports.after_all import AfterAll
from leveret.ports.records import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.core.logs.log_writer import LogWriter, Waiter
    from leveret.core.turn import Turn
    from leveret.ports import SharedLog, TopicStore
    from leveret.ports.partitioner import RecordTarget

__all__ = ["AtomicWrite", "AtomicWrites", "JointWrites", "lacking_room"]


class Decider(Protocol):
    """Receiver of a write's answer, when its parts are prepared or cannot be."""

    def commit(self, write: AtomicWrite) -> None:
        """Prepare a write, again if it had to wait for a log."""
        ...

    def prepared(self, write: AtomicWrite) -> None:
        """Have a prepared write decided."""
        ...

    def refused(self, write: AtomicWrite) -> None:
        """Undo a write that could not be prepared."""
        ...


class Published(Protocol):
    """Target of a published record: a log, or a queue of several."""

    @property
    def builder(self) -> RecordTarget:
        """Builder of its records, or what chooses one for each."""
        ...


@dataclass(slots=True)
class AtomicPart:
    """Part of a write in one log."""

    records: BatchBuilder = field(default_factory=BatchBuilder)
    settles: list[tuple[int, int]] = field(default_factory=list)
    erases: bool = False  # what it settles is erased
    first: int = 0  # offset of its first record, once written
    stop: int = 0
    is_written: bool = False  # and not lost, so that it must be undone if the write fails
    is_seen: bool = False  # its records need not be waited for


class SeenPart(NamedTuple):
    """Waits for the records of a part, whose write does not know of this: no cycle is left."""

    write: AtomicWrite
    part: AtomicPart

    def done(self, *, failed: bool) -> None:  # noqa: ARG002  # the write has its own outcome
        """Have the write wait for the records no longer (see Waiter)."""
        self.part.is_seen = True
        self.write.part_seen()


class AtomicWrites(TouchedQueue):
    """All atomic writes of a broker; the turn treats them as a queue.

    `random_id()` returns a number of 1 … 2**64 - 1 that was never returned before; errors are
    reported with `report(write, error)`.
    """

    def __init__(
        self,
        topics: TopicStore,
        turn: Turn,
        random_id: Callable[[], int],
        wall_ms: Callable[[], int],
        report: Callable[[object, Exception], None],
    ) -> None:
        self.wall_ms = wall_ms
        self.report = report
        self._topics = topics
        self._turn = turn
        self._random_id = random_id
        self._committing: list[AtomicWrite] = []
        self._joint: list[JointWrites] = []
        self._prepared: list[AtomicWrite] = []
        self._undecided: set[AtomicWrite] = set()

    def begin(self) -> AtomicWrite:
        """Return a new, empty write."""
        return AtomicWrite(self, self._random_id())

    def commit(self, write: AtomicWrite) -> None:
        """Schedule a write to be prepared with all others of this turn."""
        self._undecided.add(write)
        self._committing.append(write)
        self._turn.touch(self)

    def commit_together(self, writes: Sequence[AtomicWrite], waiter: Waiter) -> JointWrites:
        """Commit writes as if they were one, in their order. See `AtomicWrite.commit`."""
        joint = JointWrites(self, writes, waiter)
        self._undecided.update(writes)
        self.begin_joint(joint)
        return joint

    def begin_joint(self, joint: JointWrites) -> None:
        """Schedule joint writes to be prepared, one in each turn."""
        self._joint.append(joint)
        self._turn.touch(self)

    def prepared(self, write: AtomicWrite) -> None:
        """Schedule a prepared write to be decided with all others prepared by the next turn."""
        self.decide((write,))

    def decide(self, writes: Sequence[AtomicWrite]) -> None:
        """Schedule prepared writes to be decided: what is scheduled together is decided as one."""
        self._prepared += writes
        self._turn.touch(self)

    def refused(self, write: AtomicWrite) -> None:
        """Undo a write that could not be prepared."""
        write.resolve(write.error)

    def flush(self) -> None:
        """Prepare and decide all scheduled writes."""
        committing, self._committing = self._committing, []
        for write in committing:
            write.prepare()
        joint, self._joint = self._joint, []
        for writes in joint:
            writes.prepare_next()
        prepared, self._prepared = self._prepared, []
        if prepared:
            transactions = {write.transaction: write.logs() for write in prepared}
            self._topics.decide(transactions, partial(self._decided, prepared))

    def _decided(self, writes: list[AtomicWrite], error: Exception | None) -> None:
        for write in writes:
            write.resolve(error)

    @property
    def is_busy(self) -> bool:
        """Whether any write has begun to commit and is not decided."""
        return bool(self._undecided)

    def resolved(self, write: AtomicWrite) -> None:
        """Note that a write was resolved, whether committed or aborted."""
        self._undecided.discard(write)

    def pump(self) -> bool:
        """Deliver nothing."""
        return False


class AtomicWrite:
    """One atomic write: gathered, then committed once. Each log has at most one part."""

    def __init__(self, writes: AtomicWrites, transaction: int) -> None:
        self.transaction = transaction
        self.refused_by: LogWriter | None = None  # the log whose limits it would exceed
        self._writes = writes
        self._decider: Decider = writes
        self._parts: dict[LogWriter, AtomicPart] = {}
        self._waiter: Waiter | None = None
        self._unprepared = 0  # number of parts
        self._unseen = 0  # parts carried out whose records are not committed
        self.error: Exception | None = None  # why it failed, unless a queue refused it
        self._failed = False

    def __repr__(self) -> str:
        return f"AtomicWrite({self.transaction:016x}, {list(self._parts)})"

    # -- gathering

    def publish(  # noqa: PLR0917  # a record's fields, as BatchBuilder.add has them
        self,
        target: Published,
        flags: int,
        exchange: bytes,
        routing_key: bytes,
        header: bytes,
        body: bytes,
    ) -> None:
        """Append a record to `target`, after those that others publish until the commit."""
        writer = target.builder.for_message(flags, routing_key, header).owner
        records = self._part(writer).records
        records.add(flags, self._writes.wall_ms(), exchange, routing_key, header, body)

    def settle(self, source: LogWriter, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle records of `source`: leased ones of a queue, which nothing else settles."""
        self._part(source).settles.extend(ranges)

    def erase(self, source: LogWriter, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle records of `source` as `settle` does, and let nobody read them any more."""
        part = self._part(source)
        assert part.erases or not part.settles, "a part erases all that it settles, or nothing"
        part.erases = True
        part.settles.extend(ranges)

    def records_for(self, writer: LogWriter) -> BatchBuilder:
        """Return the builder of what is published to a log, for compiled code that packs."""
        return self._part(writer).records

    def _part(self, writer: LogWriter) -> AtomicPart:
        part = self._parts.get(writer)
        if part is None:
            part = self._parts[writer] = AtomicPart()
        return part

    def commit(self, waiter: Waiter) -> None:
        """Commit everything except parts of logs deleted meanwhile.

        `waiter.done` is called, never before this returns, when everything is durable and visible,
        or when the write has failed: because a queue has no room for a record, or a log could not
        be written. The records to be settled then stay leased.
        """
        self._waiter = waiter
        self._writes.commit(self)

    def join(self, decider: Decider, waiter: Waiter) -> None:
        """Become one of several writes that are decided as one."""
        self._decider, self._waiter = decider, waiter

    def abandon(self, error: Exception | None) -> None:
        """Undo the write, whose parts are prepared or not begun, as another one has failed."""
        self._failed, self.error = True, error
        self.resolve(None)

    # -- committing

    def logs(self) -> list[SharedLog]:
        """Return the logs with a part in it."""
        return [writer.log for writer in self._parts]

    def lacking_copies(self) -> LogWriter | None:
        """Return who would refuse its part now, since too few nodes are in sync, or None."""
        writers = (writer for writer in self._parts if not writer.deleted)
        return next((writer for writer in writers if writer.lacks_copies), None)

    def prepare(self) -> bool:
        """Write a part to every log. False: it waits for one, and will be committed anew."""
        self._leave_out_deleted()
        held = next((writer for writer in self._parts if writer.held), None)
        if held is not None and self.error is None:
            held.when_released(self._released)
            return False
        self._unprepared = 1
        try:
            if self.error is None:
                self.refused_by = lacking_room([self])
                self._failed = self.refused_by is not None
        except Exception as error:  # noqa: BLE001  # the waiter must be notified
            self.error = error
        if not self._failed and self.error is None:
            self._write_parts()
        self._answered()
        return True

    def _released(self, error: Exception | None) -> None:
        """Go on, as a log is no longer held; or have the write refused, if it cannot be opened."""
        self.error = error
        self._decider.commit(self)

    def _leave_out_deleted(self) -> None:
        for writer in [writer for writer in self._parts if writer.deleted]:
            part = self._parts.pop(writer)
            if writer.outlived_by_whole and part.records.count and self.error is None:
                self.error = StorageError(f"{writer} was removed with a partition of its queue")

    def publishes(self) -> list[tuple[LogWriter, BatchBuilder]]:
        """Return what it publishes to logs that are there."""
        parts = self._parts.items()
        return [(writer, part.records) for writer, part in parts if not writer.deleted]

    def _write_parts(self) -> None:
        # One that refuses goes first: nothing has to be undone in the others then.
        parts = sorted(self._parts.items(), key=lambda each: not each[0].log.is_refusing)
        for writer, part in parts:
            gathered = part.records.count
            writer.take_in(part.records)
            if part.records.count < gathered:
                self._await_originals(writer)
            if part.erases:
                part.settles = writer.with_copies(part.settles)
            settles = part.settles if writer.settles_in_log else []
            if not part.records.count and not settles:
                continue
            self._unprepared += 1
            part.first = writer.log.end
            part.stop = part.first + part.records.count
            part.is_written = True
            prepared, seen = partial(self._part_prepared, part), SeenPart(self, part)
            try:
                writer.prepare(
                    self.transaction, part.records, settles, prepared, seen, erases=part.erases
                )
            except Exception as error:  # noqa: BLE001  # the write must fail, whatever the error
                part.is_written = False
                prepared(error)
                return

    def _await_originals(self, writer: LogWriter) -> None:
        """Wait for what duplicates were dropped for, which may not be safe, and yet be undone.

        Joint writes do not: they could wait for each other. What others gather for the log by now
        is not waited for: it is written behind the part of this write, which is not decided yet.
        """
        if self._decider is self._writes:
            self._unprepared += 1
            writer.await_written(AfterAll(1, self._originals_safe))

    def _originals_safe(self, *, failed: bool) -> None:
        if failed and self.error is None:
            self.error = StorageError("a message is a duplicate of one that could not be stored")
        self._answered()

    def _part_prepared(self, part: AtomicPart, error: Exception | None) -> None:
        if error is not None:
            if not isinstance(error, NotEnoughCopiesError):
                part.is_written = False
            self.error = self.error or error
        self._answered()

    def _answered(self) -> None:
        """Count a part that is prepared or failed; proceed after the last one."""
        self._unprepared -= 1
        if self._unprepared:
            return
        if self._failed or self.error is not None:
            self._decider.refused(self)
        else:
            self._decider.prepared(self)

    def resolve(self, error: Exception | None) -> None:
        """Apply all parts after the commit, or with an `error` undo them."""
        self._writes.resolved(self)
        self._leave_out_deleted()
        if error is not None:
            self._failed, self.error = True, error
            self._writes.report(self, error)
        if self._failed:
            for writer, part in self._parts.items():
                if part.is_written:
                    writer.undo(self.transaction, part.first, part.stop)
        else:
            # Undecided records of others may precede its own: it is visible when all of them are
            # decided.
            self._unseen = sum(
                part.first < part.stop and not part.is_seen for part in self._parts.values()
            )
            for writer, part in self._parts.items():
                writer.carry_out(self.transaction, part.settles, erases=part.erases)
        self._tell()

    def part_seen(self) -> None:
        """Count a part whose records need not be waited for, unless the write is not decided."""
        if self._unseen:
            self._unseen -= 1
            self._tell()

    def _tell(self) -> None:
        if not self._unseen and self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            waiter.done(failed=self._failed)


def lacking_room(writes: Iterable[AtomicWrite]) -> LogWriter | None:
    """Return a log whose limits do not allow what all of these writes publish to it, or None."""
    publishes = [each for write in writes for each in write.publishes()]
    for writer, _ in publishes:
        writer.flush()  # publishes of others go first
    # The partitions of a queue have limits together.
    together: dict[LogWriter, list[BatchBuilder]] = {}
    for writer, records in publishes:
        if records.count:
            together.setdefault(writer.limited_with, []).append(records)
    return next((writer for writer, parts in together.items() if not _fit(writer, parts)), None)


def _fit(writer: LogWriter, parts: Sequence[BatchBuilder]) -> bool:
    count = sum(part.count for part in parts)
    # Their sizes are known, and more than those of their bodies.
    return writer.has_room(count, sum(part.size for part in parts)) or writer.has_room(
        count, sum(part.body_bytes() for part in parts)
    )


class JointWrites:
    """Writes that are decided as one: prepared one after the other, some while others wait.

    `error` is why they failed, `refused_by` the log whose limits they would exceed.
    """

    def __init__(
        self, writes: AtomicWrites, members: Sequence[AtomicWrite], waiter: Waiter
    ) -> None:
        self.error: Exception | None = None
        self.refused_by: LogWriter | None = None
        self._writes = writes
        self._left = deque(members)
        self._prepared: list[AtomicWrite] = []
        self._preparing = 0  # begun, and not answered yet
        self._failed = False
        all_of_them = AfterAll(len(members), waiter.done)
        for member in members:
            member.join(self, all_of_them)

    def prepare_next(self) -> None:
        """Prepare the next write, unless one has failed; the others follow in later turns."""
        if self._left and not self._failed:
            self._preparing += 1
            if self._left.popleft().prepare() and self._left:
                self._writes.begin_joint(self)

    def commit(self, write: AtomicWrite) -> None:
        """Prepare a write that had to wait for a log, before those behind it."""
        self._preparing -= 1
        if self._failed:
            write.abandon(self.error)
            return
        self._left.appendleft(write)
        self._writes.begin_joint(self)

    def prepared(self, write: AtomicWrite) -> None:
        """Note that a write is prepared; have all decided after the last one."""
        self._preparing -= 1
        if self._failed:
            write.abandon(self.error)
            return
        self._prepared.append(write)
        if not self._left and not self._preparing:
            self._writes.decide(self._prepared)

    def refused(self, write: AtomicWrite) -> None:
        """Undo all, as one could not be prepared. Those that wait for a flush follow."""
        self._preparing -= 1
        is_first, self._failed = not self._failed, True
        write.resolve(write.error)
        if is_first:
            self.error, self.refused_by = write.error, write.refused_by
            undone = [*self._prepared, *self._left]
            self._prepared, self._left = [], deque()
            for other in undone:
                other.abandon(self.error)
