"""State that the sequence of changes leads to, the same on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.metadata.sorted_keys import SortedKeys
from leveret.ports.coordination import KeyChange, KeyEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from leveret.cluster.metadata.changes import ChangeBatch, PendingWrite

__all__ = ["WRITERS_MAX", "AppliedBatch", "MetadataState", "StateImage"]

# Processes whose last batch is remembered. One that lost its connection would have to miss that
# many starts of others, and the changes to be trimmed, before it took its batch for a lost one.
WRITERS_MAX = 1024


class AppliedBatch(NamedTuple):
    """Last batch of a writer: its counter, and the sequence number that it got."""

    counter: int
    sequence: int


class StateImage(NamedTuple):
    """All of the state as of `sequence`; the writers are in the order of their last batches."""

    sequence: int
    entries: Mapping[str, KeyEntry]
    writers: Mapping[int, AppliedBatch]


class MetadataState:
    """Entries, and the last batches of their writers. It is a view of the entries, too."""

    def __init__(self) -> None:
        self.sequence = 0
        self._entries: dict[str, KeyEntry] = {}
        self._keys = SortedKeys()
        self._writers: dict[int, AppliedBatch] = {}

    def __getitem__(self, key: str) -> KeyEntry:
        return self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, key: str) -> KeyEntry | None:
        """Return the entry of a key, or None."""
        return self._entries.get(key)

    def version(self, key: str) -> int:
        """Return the version of a key, 0 if it does not exist."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.version

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return the keys that begin with `prefix`, in order."""
        return self._keys.beginning_with(prefix)

    def conflicts(self, write: PendingWrite) -> list[str]:
        """Return the keys that have other versions than a write expects."""
        expected = [(key, version) for key, _, version in write.changes if version is not None]
        expected += write.checks
        return [key for key, version in expected if self.version(key) != version]

    def applied(self, writer: int, counter: int) -> int | None:
        """Return the sequence number that a writer's last batch got, None if it was not applied."""
        last = self._writers.get(writer)
        return last.sequence if last is not None and last.counter == counter else None

    def apply(self, batch: ChangeBatch) -> None:
        """Apply the next batch."""
        assert batch.sequence == self.sequence + 1
        self.sequence = batch.sequence
        for key, value, _ in batch.changes:
            self._set(key, None if value is None else KeyEntry(batch.sequence, value))
        self._writers.pop(batch.writer, None)
        self._writers[batch.writer] = AppliedBatch(batch.counter, batch.sequence)
        if len(self._writers) > WRITERS_MAX:
            del self._writers[next(iter(self._writers))]

    def _set(self, key: str, entry: KeyEntry | None) -> None:
        if entry is not None:
            if key not in self._entries:
                self._keys.add(key)
            self._entries[key] = entry
        elif self._entries.pop(key, None) is not None:
            self._keys.remove(key)

    def image(self) -> StateImage:
        """Return a copy, which later changes leave as it is."""
        return StateImage(self.sequence, dict(self._entries), dict(self._writers))

    def difference(self, image: StateImage, keys: Iterable[str]) -> list[KeyChange]:
        """Return the changes of these keys that lead from here to `image`."""
        changes = []
        for key in keys:
            entry = image.entries.get(key)
            if self.version(key) != (0 if entry is None else entry.version):
                changes.append(KeyChange(key, None if entry is None else entry.value))
        return changes

    def restore(self, image: StateImage, changes: Sequence[KeyChange]) -> None:
        """Become `image`, to which `changes` lead from here."""
        self.sequence = image.sequence
        self._writers = dict(image.writers)
        if not self._entries:
            self._entries = dict(image.entries)
            self._keys = SortedKeys(self._entries)
            return
        for key, _, _ in changes:
            self._set(key, image.entries.get(key))
