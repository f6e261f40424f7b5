"""Index of delayed messages by id, for one virtual host, beside the log.

Messages with an id, given by their publishers or when they were rescheduled, carry it in their
headers; the log is the source of truth. The index can be lost, and is rebuilt from the log behind
`covered`. A message published or rescheduled under a pending id replaces the older one, so the
index has one offset for each id: the newest that is committed or, until it is, the newest of all.

Keys begin with `schedules`, a zero byte and the digest of the virtual host's name and incarnation:

    … zero byte, covered          u64 offset below which the index knows all ids
    … zero byte, id, its digest, that of its owner      u64 offset of the message

The owner's digest is missing for ids of the broker's and for those that an older release has kept.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

from leveret.core.logs.internal_topics import state_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.features.delay.scheduled import ScheduleKey
    from leveret.ports import StateStore

__all__ = ["ScheduleIds", "ids_prefix", "ids_problem"]

DIGEST_BYTES = 16  # digests, since ids may be longer than a key
OFFSET = struct.Struct(">Q")
COVERED = b"\0covered"


class ScheduleIds:
    """Ids of one virtual host's delayed messages."""

    def __init__(self, vhost: str, incarnation: str, state: StateStore) -> None:
        self._prefix = ids_prefix(vhost, incarnation)
        self._covered_key = self._prefix + COVERED
        self._state = state
        self._uncommitted: dict[ScheduleKey, int] = {}

    @property
    def covered(self) -> int:
        """Offset from which on the log must be read for ids."""
        known = self._state.get(self._covered_key)
        return 0 if known is None else OFFSET.unpack(known)[0]

    def find(self, key: ScheduleKey) -> int | None:
        """Return the offset of the newest message with this id, which may be settled; or None."""
        offset = self._uncommitted.get(key)
        if offset is not None:
            return offset
        known = self._state.get(self._key(key))
        return None if known is None else OFFSET.unpack(known)[0]

    def offsets(self, id_: str) -> set[int]:
        """Return the offsets of messages with this id of all owners."""
        found = {offset for key, offset in self._uncommitted.items() if key.id == id_}
        kept = self._state.scan(self._prefix + b"\0id" + _digest(id_))
        return found | {OFFSET.unpack(value)[0] for _, value in kept}

    def is_being_written(self, key: ScheduleKey) -> bool:
        """Whether the newest message with this id is not committed."""
        return key in self._uncommitted

    def begin(self, key: ScheduleKey, offset: int) -> None:
        """Note that a message with this id is being written."""
        self._uncommitted[key] = offset

    def keep(self, key: ScheduleKey, offset: int) -> None:
        """Index a committed message; called in order of offsets."""
        if self._uncommitted.get(key) == offset:
            del self._uncommitted[key]
        packed = OFFSET.pack(offset)
        covered = OFFSET.pack(offset + 1)
        self._state.write([(self._key(key), packed), (self._covered_key, covered)], durable=False)

    def lose(self, key: ScheduleKey, offset: int) -> None:
        """Drop a message that could not be written: the id keeps its former meaning."""
        if self._uncommitted.get(key) == offset:
            del self._uncommitted[key]

    def forget(self, key: ScheduleKey, offset: int) -> None:
        """Remove a message that is done, unless its id belongs to another by now."""
        if self.find(key) == offset:
            self._state.write([(self._key(key), None)], durable=False)

    def cover(self, stop: int) -> None:
        """Note that all records below `stop` are committed and indexed."""
        if not self._uncommitted:
            self._state.write([(self._covered_key, OFFSET.pack(stop))], durable=False)

    def clear(self) -> None:
        """Remove all ids: the messages are gone."""
        self._uncommitted.clear()
        gone = [(key, None) for key, _ in self._state.scan(self._prefix)]
        self._state.write(gone, durable=False)

    def _key(self, key: ScheduleKey) -> bytes:
        owner = _digest(key.owner) if key.owner else b""
        return self._prefix + b"\0id" + _digest(key.id) + owner


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).digest()


def ids_prefix(vhost: str, incarnation: str) -> bytes:
    """Return what all keys of a virtual host's ids begin with."""
    name = state_name(vhost, incarnation)
    return b"schedules\0" + blake2b(name, digest_size=DIGEST_BYTES).digest()


def ids_problem(entries: Iterable[tuple[bytes, bytes]], end: int) -> str | None:
    """Return how ids differ from the log of their messages, which ends at `end`, or None.

    `entries` are those of the state store that begin with `ids_prefix`.
    """
    for key, value in entries:
        offset = OFFSET.unpack(value)[0]
        if offset > end or (offset == end and not key.endswith(COVERED)):
            return f"knows of offset {offset}, but the log ends at {end}"
    return None
