"""Copying to one follower: what it has of each log, what is under way, and what is to be sent.

There is no queue of batches. A log that has more than was sent is one entry in a dictionary, and
is read from its files from there on, as much as a frame takes; what is left waits behind the
others. So a new log, live traffic, and a follower that was away for an hour are one loop, and
nothing overflows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from leveret.ports.replication import LogPlace
from leveret.replication.effects import Effect, ReadLog, Send
from leveret.replication.messages import Append, Copy, Drop, Operation, Operations, Remove

if TYPE_CHECKING:
    from leveret.ports.replication import LogEnd, RawBatches
    from leveret.replication.attaching import Comparison
    from leveret.replication.limits import ReplicationLimits

__all__ = ["FollowerCopy"]

TIME_STEP_MS = 100  # between two noted times of a log: small beside what a follower may lag
TIMES_MAX = 64  # of a log; who lags for longer is out of the set anyway

OPERATION_BYTES = 64  # of an operation without its data, about


@dataclass(slots=True)
class UnsafeLog:
    """Log of which a follower has less than the leader on its disk: up to `safe`."""

    safe: LogEnd
    end: LogEnd
    times: deque[tuple[LogPlace, int]] = field(default_factory=deque)  # what is behind, from when

    def note_time(self, place: LogPlace, now_ms: int) -> None:
        """Note that what stands behind a place was written from now on."""
        times = self.times
        if len(times) < TIMES_MAX and (not times or now_ms - times[-1][1] >= TIME_STEP_MS):
            times.append((place, now_ms))

    def time_of(self, place: LogPlace, since_ms: int) -> int:
        """Return from when on what stands behind a place was written; no later place is asked for.

        That is `since_ms` if it was not noted.
        """
        times = self.times
        while len(times) > 1 and times[1][0] <= place:
            times.popleft()
        return times[0][1] if times and times[0][0] <= place else since_ms


class Unsent(NamedTuple):
    """Place from which a log is to be read next, and since when something is there (ms).

    A compacted file, which is copied as a whole, is read up to its end only.
    """

    place: LogPlace
    offset: int
    since_ms: int
    is_copied: bool = False


@dataclass(slots=True)
class UnsafeFrame:
    """A frame that is being made, or was sent and is not acknowledged.

    `ends` are those of logs that a follower has with it; the oldest of it was written at
    `since_ms`.
    """

    since_ms: int
    number: int = 0
    size: int = 0
    operations: list[Operation] = field(default_factory=list)
    ends: list[tuple[str, LogEnd]] = field(default_factory=list)


class FollowerCopy:
    """Copy of a follower that has attached over the present link, as the leader knows it.

    A log that is not in `unsafe` is on the follower's disk up to the leader's end. Until its logs
    are compared with the leader's, it counts for nothing. `number` tells attachments apart.
    """

    def __init__(self, node: int, incarnation: int, number: int, limits: ReplicationLimits) -> None:
        self.node = node
        self.incarnation = incarnation
        self.number = number
        self.is_attached = False
        self.unsafe: dict[str, UnsafeLog] = {}
        self._limits = limits
        self._unsent: dict[str, Unsent] = {}
        # Compacted files, to be copied as a whole, and those that they take the place of.
        self._files: deque[tuple[str, Unsent, tuple[Remove, ...]]] = deque()
        self._removals: deque[tuple[Operation, int]] = deque()  # and when they were decided
        self._frames: deque[UnsafeFrame] = deque()
        self._frame: UnsafeFrame | None = None  # being made
        self.sent = 0  # number of the last frame
        self._reading: tuple[str, Unsent, tuple[Remove, ...]] | None = None
        self.reads_deleted = False  # whether the log that is being read was deleted meanwhile
        self._bytes_under_way = 0
        self._moved: dict[str, None] = {}

    @property
    def is_reading(self) -> bool:
        """Whether a log is being read for it."""
        return self._reading is not None

    @property
    def is_crowded(self) -> bool:
        """Whether more files wait to be removed or copied than there may."""
        return len(self._removals) + len(self._files) > self._limits.waiting_files_max

    # -- what it lacks

    def begin(self, comparison: Comparison, now_ms: int, since_ms: int) -> None:
        """Send from now on what it lacks by a comparison, and what was noted meanwhile.

        It lacks that since its link ended, or the reign began.
        """
        self.is_attached = True
        files, self._files = self._files, deque()
        deleted = {operation.log for operation, _ in self._removals if isinstance(operation, Drop)}
        for log in comparison.differences:
            if log.log in deleted:
                continue  # it was there when logs were described
            for file in log.copied:
                removed = tuple(Remove(log.log, *old) for old in log.removed if old[0] == file[0])
                self._copy(log.log, file, removed, now_ms)
            copied = {base for base, _ in log.copied}
            for old in log.removed:
                if old[0] not in copied:
                    self._removals.append((Remove(log.log, *old), now_ms))
            ours = comparison.ours[log.log]
            if log.place != ours.place:
                noted = self.unsafe.get(log.log)
                end = (ours.place, ours.offset) if noted is None else noted.end
                # The offset is the follower's word: nothing is committed by it.
                self.unsafe[log.log] = UnsafeLog((log.place, 0), end)
                self._unsent[log.log] = Unsent(log.place, log.offset, since_ms)
        for name, unsent, removed in files:  # compacted since; before, it is a difference
            compared = comparison.ours.get(name)
            if compared is not None and unsent.place.file not in compared.files:
                self._copy(name, unsent.place.file, removed, now_ms)

    def wrote(self, log: str, before: LogEnd, end: LogEnd, now_ms: int) -> None:
        """Note that a log, which ended `before`, has a new end."""
        unsafe = self.unsafe.get(log)
        if unsafe is None:
            self.unsafe[log] = UnsafeLog(before, end, deque([(before[0], now_ms)]))
            self._unsent[log] = Unsent(*before, now_ms)
            return
        unsafe.end = end
        unsafe.note_time(before[0], now_ms)
        if self._next(log) is None:
            self._unsent[log] = Unsent(*before, now_ms)

    def _next(self, log: str) -> Unsent | None:
        """Return from where a log is read or to be read; None if all of it was sent."""
        if self._reading is not None and self._reading[0] == log:
            reading = self._reading[1]
            if not reading.is_copied:
                return reading
        return self._unsent.get(log)

    def removed(self, operation: Remove | Drop, now_ms: int) -> None:
        """Tell it of a file or log that is no more."""
        if isinstance(operation, Drop):
            log = operation.log
            if self.unsafe.pop(log, None) is not None:
                self._forget_ends(log)
            self._unsent.pop(log, None)
            self._files = deque(file for file in self._files if file[0] != log)
            if self._reading is not None and self._reading[0] == log:
                self.reads_deleted = True
        self._removals.append((operation, now_ms))

    def _forget_ends(self, log: str) -> None:
        """Forget what is under way of a deleted log: another one may get its name."""
        made = () if self._frame is None else (self._frame,)
        for frame in (*self._frames, *made):
            frame.ends = [end for end in frame.ends if end[0] != log]

    def replaced(self, log: str, old: tuple[int, int], by: int, now_ms: int) -> None:
        """Copy a compacted file to it, of the revision `by`, which takes the place of another."""
        self._copy(log, (old[0], by), (Remove(log, *old),), now_ms)

    def _copy(
        self, log: str, file: tuple[int, int], removed: tuple[Remove, ...], now_ms: int
    ) -> None:
        following = self._next(log)
        old = min((remove[1:] for remove in removed), default=file)
        if following is not None and following.place.file < old:
            return  # it gets there with all the others
        unsent = Unsent(LogPlace(*file), file[0], now_ms, is_copied=True)
        self._files.append((log, unsent, removed))

    def unsafe_since(self) -> int | None:
        """Return since when something is not on its disk (ms), None if all is."""
        since = [frame.since_ms for frame in self._frames]
        since += [unsent.since_ms for unsent in self._unsent.values()]
        since += [unsent.since_ms for _, unsent, _ in self._files]
        since += [decided_ms for _, decided_ms in self._removals]
        if self._reading is not None:
            since.append(self._reading[1].since_ms)
        if self._frame is not None:
            since.append(self._frame.since_ms)
        return min(since, default=None)

    # -- sending

    def send(self, epoch: int) -> list[Effect]:
        """Return what is to be done next: read a log, send frames, or nothing if it must wait."""
        if self._reading is not None or not self.is_attached:
            return []
        effects: list[Effect] = []
        while self._bytes_under_way < self._limits.window_bytes_max:
            while self._removals and self._room() > 0:
                operation, decided_ms = self._removals.popleft()
                self._add(decided_ms, operation, 0)
            if self._room() > 0:
                return effects + (self._read_next() or self.finish(epoch))
            effects += self.finish(epoch)
        return effects

    def _room(self) -> int:
        """Return how many bytes may be added to the frame that is being made."""
        made = 0 if self._frame is None else self._frame.size
        return self._limits.frame_bytes_max - made

    def _read_next(self) -> list[Effect]:
        """Read the next log or compacted file, if there is one."""
        if self._files:
            self._reading = self._files.popleft()
        elif self._unsent:
            log = next(iter(self._unsent))
            self._reading = log, self._unsent.pop(log), ()
        else:
            return []
        log, unsent, _ = self._reading
        room = self._room()
        return [ReadLog(self.node, self.number, log, unsent.place, unsent.offset, room)]

    def read(self, raw: RawBatches | None) -> None:
        """Take what was read into the frame that is being made, unless its log was deleted."""
        assert self._reading is not None
        (log, unsent, removed), self._reading = self._reading, None
        if self.reads_deleted:
            self.reads_deleted = False
            return
        assert raw is not None
        left = unsent._replace(place=raw.stop, offset=raw.offset)
        if unsent.is_copied:
            is_last = not raw.data or raw.stop.file != unsent.place.file
            copy = Copy(log, unsent.place, raw.data, is_last)
            self._add(unsent.since_ms, copy, len(raw.data))
            if not is_last:
                self._files.appendleft((log, left, removed))
                return
            for operation in removed:
                self._add(unsent.since_ms, operation, 0)
            return
        unsafe = self.unsafe[log]
        data, stop = raw.data, (raw.stop, raw.offset)
        if raw.stop > unsafe.end[0]:  # what was written meanwhile is told later, and sent then
            stop = unsafe.end
            if stop[0].file == unsent.place.file:
                data = data[: stop[0].position - unsent.place.position]
        if data:
            append = Append(log, unsent.place, data)
            self._add(unsent.since_ms, append, len(data))
        if raw.stop < unsafe.end[0]:
            self._unsent[log] = left._replace(since_ms=unsafe.time_of(raw.stop, left.since_ms))
        self._make(unsent.since_ms).ends.append((log, stop))

    def _make(self, since_ms: int) -> UnsafeFrame:
        if self._frame is None:
            self._frame = UnsafeFrame(since_ms)
        self._frame.since_ms = min(self._frame.since_ms, since_ms)
        return self._frame

    def _add(self, since_ms: int, operation: Operation, size: int) -> None:
        frame = self._make(since_ms)
        frame.operations.append(operation)
        frame.size += size + OPERATION_BYTES

    def finish(self, epoch: int) -> list[Effect]:
        """Send the frame that is being made."""
        frame, self._frame = self._frame, None
        if frame is None:
            return []
        if not frame.operations:  # the end of a file, which it has reached before
            if self._frames:
                self._frames[-1].ends += frame.ends
            else:
                self._have(frame)
            return []
        self.sent = frame.number = self.sent + 1
        self._bytes_under_way += frame.size
        self._frames.append(frame)
        message = Operations(epoch, frame.number, tuple(frame.operations))
        frame.operations = []
        return [Send(self.node, message)]

    def acknowledged(self, number: int) -> None:
        """Note that all up to a frame is on the follower's disk."""
        while self._frames and self._frames[0].number <= number:
            frame = self._frames.popleft()
            self._bytes_under_way -= frame.size
            self._have(frame)

    def take_moved(self) -> list[str]:
        """Return the logs of which more has got safe since the last call."""
        moved, self._moved = self._moved, {}
        return list(moved)

    def _have(self, frame: UnsafeFrame) -> None:
        for log, end in frame.ends:
            self._moved[log] = None
            unsafe = self.unsafe.get(log)
            if unsafe is not None:
                unsafe.safe = max(unsafe.safe, end)
                if unsafe.safe[0] >= unsafe.end[0]:
                    del self.unsafe[log]
