"""Notes of the logs of a node that follows, in the state store: up to where each was flushed.

    b"replica/" + the log's key: the place up to which it was flushed, noted about once a second
     0  u64  base offset of the segment
     8  u32  its revision
    12  u64  position in it

What was noted and is not there any more was damaged (`ReplicaStore.describe`). Notes stay behind
while the node leads: its logs only grow, and the note of a deleted one goes with its mark. Marks of
that time (storage/marks.py) are replaced by notes as soon as it does not lead any more, since the
logs may then be cut.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING

from leveret.ports.replication import START, LogPlace
from leveret.storage.lineage import KEY as DEFINITIONS_KEY
from leveret.storage.lineage import RECORDS_PREFIX
from leveret.storage.marks import EARLIER_PREFIX, REPLICA_PREFIX, RUN_KEY, LogMark, LogMarks
from leveret.storage.note_writer import NoteWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from leveret.ports import StateStore
    from leveret.storage.commit import Committer
    from leveret.storage.trash import Trash

__all__ = ["ReplicaNotes", "forget_replica"]

PLACE = Struct("<QIQ")
FORGOTTEN_KEY = b"replica-run"  # the last run as leader of which nothing derived is left
# Keys of the state store that no log is the source of: all others can be made anew from logs.
OWN_PREFIXES = (
    *(REPLICA_PREFIX, FORGOTTEN_KEY, RUN_KEY, LogMarks.PREFIX, EARLIER_PREFIX),
    *(DEFINITIONS_KEY, RECORDS_PREFIX),
    b"statistics\0",  # of the node's charts (core.statistics.keeping)
)
LAST_KEY = b"\xff" * 8
NOTE_INTERVAL_MS = 1000  # what is lost of this last second goes unnoticed


def forget_replica(state: StateStore) -> None:
    """Forget what was noted of logs that are copied no more. Raises StorageError."""
    keys = [*(key for key, _ in state.scan(REPLICA_PREFIX)), FORGOTTEN_KEY]
    state.write([(key, None) for key in keys], durable=True)


class ReplicaNotes:
    """Notes of all logs. Made in any thread, used on the event loop.

    `flushed` are the places up to which logs are known to have been flushed, by the logs' keys.
    Logs that were being deleted have none. Raises StorageError.
    """

    def __init__(
        self,
        state: StateStore,
        loop: asyncio.AbstractEventLoop,
        committer: Committer,
        trash: Trash,
    ) -> None:
        self._state = state
        self._loop = loop
        self._writer = NoteWriter(
            *(state, loop, committer, {}), interval_ms=NOTE_INTERVAL_MS, worked=trash.removed
        )
        found = {
            key[len(REPLICA_PREFIX) :]: LogPlace(*PLACE.unpack(value))
            for key, value in state.scan(REPLICA_PREFIX)
            if len(value) == PLACE.size
        }
        for key in trash.find_deleted(found):
            del found[key]
            self._writer.note(REPLICA_PREFIX + key, None)
        self.flushed = {key.decode(): place for key, place in found.items()}

    def note(self, key: str, place: LogPlace) -> None:
        """Note that a log is flushed up to a place; START: that it need not be there."""
        if place == START:
            self.flushed.pop(key, None)
        else:
            self.flushed[key] = place
        value = None if place == START else PLACE.pack(*place)
        self._writer.note(REPLICA_PREFIX + key.encode(), value)
        self._writer.start()

    def when_written(self, work: Callable[[], None]) -> None:
        """Do work in a thread once all notes are on the disk (see NoteWriter)."""
        self._writer.when_written(work)

    async def written(self) -> None:
        """Wait until all notes are on the disk. Should that fail, too much is kept for damaged."""
        end = self._loop.create_future()

        def written() -> None:
            self._loop.call_soon_threadsafe(end.set_result, None)

        self._writer.when_written(written)
        self._writer.write()
        await asyncio.wait([end])

    def stop(self) -> None:
        """Write no more notes by itself, only those that are waited for."""
        self._writer.stop()

    # -- what a reign of this node has left

    def read_marks(self) -> dict[bytes, bytes]:
        """Return the marks that are not replaced, by the logs' keys. Raises StorageError."""
        return {key[len(LogMarks.PREFIX) :]: v for key, v in self._state.scan(LogMarks.PREFIX)}

    async def replace_marks(self, marks: Mapping[bytes, bytes], void: Collection[bytes]) -> None:
        """Note what marks say was flushed, but the `void` ones, and have nobody believe them."""
        for raw, value in marks.items():
            mark, key = LogMark.from_bytes(value), raw.decode()
            # All files before the last one are known as flushed if a record of that one is.
            if mark is not None and (mark.closed or mark.flushed > mark.base) and raw not in void:
                place = LogPlace(*mark.place)
                self.note(key, max(place, self.flushed.get(key, START)))
            self._writer.note(LogMarks.PREFIX + raw, None)
        if marks:
            await self.written()

    def forget_derived(self) -> None:
        """Forget what features have derived from records that the next leader may not have.

        Nothing is done if the node has not led since the last time. In a worker thread. Raises
        StorageError.
        """
        run = self._state.get(RUN_KEY)
        if run == self._state.get(FORGOTTEN_KEY):
            return
        keys = self._state.keys(b"", LAST_KEY)
        gone = [(key, None) for key in keys if not key.startswith(OWN_PREFIXES)]
        self._state.write([*gone, (FORGOTTEN_KEY, run)], durable=True)
