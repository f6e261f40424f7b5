"""Which delayed message of a virtual host carries which id: an index beside the log.

Messages that were given an id, by their publishers or when they were rescheduled, carry it in their
headers; the log is the truth about them. What stands here can be lost, and is learnt again from the
log behind `covered`. A message that is published or rescheduled under an id that is pending takes
the place of the older one, so the index has one offset for each id: the newest that is committed,
or, until it is, the newest of all.

Keys begin with `schedules`, a zero byte and the digest of the virtual host's name:

    … zero byte, covered          u64 offset below which the index knows all ids
    … zero byte, id, its digest   u64 offset of the message
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.ports import StateStore

__all__ = ["ScheduleIds"]

DIGEST_BYTES = 16  # an id is longer than a key may be; no two have the same digest
OFFSET = struct.Struct(">Q")


class ScheduleIds:
    """The ids of one virtual host."""

    def __init__(self, vhost: str, state: StateStore) -> None:
        digest = blake2b(vhost.encode(), digest_size=DIGEST_BYTES).digest()
        self._prefix = b"schedules\0" + digest
        self._covered_key = self._prefix + b"\0covered"
        self._state = state
        self._uncommitted: dict[str, int] = {}

    @property
    def covered(self) -> int:
        """The offset from which on the log has to be asked what ids there are."""
        known = self._state.get(self._covered_key)
        return 0 if known is None else OFFSET.unpack(known)[0]

    def find(self, id_: str) -> int | None:
        """The offset of the newest message with this id, which may have been settled since."""
        offset = self._uncommitted.get(id_)
        if offset is not None:
            return offset
        known = self._state.get(self._key(id_))
        return None if known is None else OFFSET.unpack(known)[0]

    def begin(self, id_: str, offset: int) -> None:
        """A message with this id is being written."""
        self._uncommitted[id_] = offset

    def keep(self, id_: str, offset: int) -> None:
        """The message is committed; call in the order of offsets."""
        if self._uncommitted.get(id_) == offset:
            del self._uncommitted[id_]
        packed = OFFSET.pack(offset)
        covered = OFFSET.pack(offset + 1)
        self._state.write([(self._key(id_), packed), (self._covered_key, covered)], durable=False)

    def lose(self, id_: str, offset: int) -> None:
        """The message could not be written: the id means what it meant before."""
        if self._uncommitted.get(id_) == offset:
            del self._uncommitted[id_]

    def forget(self, id_: str, offset: int) -> None:
        """The message is done with; the id may belong to another by now."""
        if self.find(id_) == offset:
            self._state.write([(self._key(id_), None)], durable=False)

    def cover(self, stop: int) -> None:
        """All records below `stop` are committed: what has an id among them is known."""
        if not self._uncommitted:
            self._state.write([(self._covered_key, OFFSET.pack(stop))], durable=False)

    def clear(self) -> None:
        """Forget everything: the messages are gone."""
        self._uncommitted.clear()
        gone = [(key, None) for key, _ in self._state.scan(self._prefix)]
        self._state.write(gone, durable=False)

    def _key(self, id_: str) -> bytes:
        digest = blake2b(id_.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).digest()
        return self._prefix + b"\0id" + digest
