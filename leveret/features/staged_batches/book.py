"""Parts and writers of a virtual host, in memory: what is there, and what a commit makes of it.

No I/O, and no waiting: `staged` stores what is decided here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from leveret.features.staged_batches.rules import BatchRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.features.staged_batches.records import CommitNote, StagedPart, WriterId

__all__ = ["BatchBook", "WriterState"]

SHOWN_MAX: Final = 5  # missing parts that an error names


@dataclass(slots=True)
class WriterState:
    """State of a writer: its last commit, and its staged parts."""

    id: WriterId
    note: CommitNote | None = None
    parts: dict[tuple[int, str], StagedPart] = field(default_factory=dict)

    def has_committed(self, number: int) -> bool:
        """Whether a batch is over: the last one that was committed, or an earlier one."""
        return self.note is not None and number <= self.note.number

    def parts_up_to(self, number: int) -> list[StagedPart]:
        """Return the parts of a batch and of those before it."""
        return [part for part in self.parts.values() if part.number <= number]

    def parts_of(self, number: int) -> list[StagedPart]:
        """Return the parts of a batch."""
        return [part for part in self.parts.values() if part.number == number]

    def row(self) -> dict[str, object]:
        """Return the writer's data for listings."""
        parts, note = self.parts.values(), self.note
        return {
            "writer": self.id.name,
            "user": self.id.user,
            "committed": None if note is None else note.number,
            "committed_at": None if note is None else note.time_ms,
            "staged": sorted({part.number for part in parts}),
            "parts": len(parts),
            "rows": sum(part.rows for part in parts),
            "bytes": sum(part.bytes for part in parts),
            "staged_since": min((part.time_ms for part in parts), default=None),
        }


class BatchBook:
    """All writers of a virtual host by name, the one whose note was written first coming first."""

    def __init__(self) -> None:
        self._writers: dict[WriterId, WriterState] = {}
        self._parts: dict[tuple[WriterId, int, str], StagedPart] = {}  # in the order of staging
        self._writer_counts: Counter[str] = Counter()  # by user
        self._part_counts: Counter[str] = Counter()
        self.part_bytes = 0

    def __len__(self) -> int:
        return len(self._writers)

    def __iter__(self) -> Iterator[WriterState]:
        return iter(self._writers.values())

    def find(self, writer: WriterId) -> WriterState | None:
        """Return what is known of a writer, or None."""
        return self._writers.get(writer)

    def open(self, writer: WriterId) -> WriterState:
        """Return a writer, known or not."""
        found = self._writers.get(writer)
        if found is None:
            found = self._writers[writer] = WriterState(writer)
            self._writer_counts[writer.user] += 1
        return found

    def writers_of(self, user: str) -> int:
        """Return how many writers a user has."""
        return self._writer_counts[user]

    def parts_of(self, user: str) -> int:
        """Return how many parts the writers of a user have."""
        return self._part_counts[user]

    def part(self, key: tuple[WriterId, int, str]) -> StagedPart | None:
        """Return a part, or None."""
        return self._parts.get(key)

    @property
    def part_count(self) -> int:
        """Number of all parts."""
        return len(self._parts)

    def parts(self) -> Iterator[StagedPart]:
        """Iterate over all parts, in the order in which they were staged."""
        return iter(self._parts.values())

    def add(self, part: StagedPart) -> None:
        """Add a part that is stored."""
        self.open(part.writer).parts[part.number, part.name] = part
        self._parts[part.key] = part
        self._part_counts[part.writer.user] += 1
        self.part_bytes += part.bytes

    def remove(self, parts: Sequence[StagedPart]) -> None:
        """Remove parts that were published or dropped, and writers that are unknown then."""
        for part in parts:
            writer = self._writers[part.writer]
            del writer.parts[part.number, part.name]
            del self._parts[part.key]
            _take_one(self._part_counts, part.writer.user)
            self.part_bytes -= part.bytes
            self._forget_if_unknown(writer)

    def note(self, note: CommitNote) -> CommitNote | None:
        """Take in a note that is stored. Returns the one that it replaces."""
        writer = self.open(note.writer)
        before, writer.note = writer.note, note
        # Behind all others: the first ones are those whose records are the oldest.
        self._writers[writer.id] = self._writers.pop(writer.id)
        return before

    def forget(self, writer: WriterId) -> None:
        """Forget a writer's last commit."""
        found = self._writers[writer]
        found.note = None
        self._forget_if_unknown(found)

    def _forget_if_unknown(self, writer: WriterState) -> None:
        if writer.note is None and not writer.parts and writer.id in self._writers:
            del self._writers[writer.id]
            _take_one(self._writer_counts, writer.id.user)

    def named(self, writer: WriterId, number: int, names: Sequence[str]) -> list[StagedPart]:
        """Return the parts that a commit names, in their order. Raises BatchRefusedError."""
        found = [self.part((writer, number, name)) for name in names]
        missing = [name for name, part in zip(names, found, strict=True) if part is None]
        if missing:
            shown = ", ".join(f"'{name}'" for name in missing[:SHOWN_MAX])
            more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
            raise BatchRefusedError(
                "not_found", f"batch {number} of writer '{writer.name}' has no part {shown}{more}"
            )
        return [part for part in found if part is not None]

    def oldest_notes(self, count: int) -> list[CommitNote]:
        """Return the notes whose records are the oldest."""
        found: list[CommitNote] = []
        for writer in self._writers.values():
            if len(found) == count:
                break
            if writer.note is not None:
                found.append(writer.note)
        return found

    def expired(self, before_ms: int) -> list[StagedPart]:
        """Return the parts that were staged before a time."""
        return list(takewhile(lambda part: part.time_ms < before_ms, self.parts()))

    def idle(self, before_ms: int) -> list[WriterState]:
        """Return the writers that have nothing staged and have not committed since a time."""
        return [
            writer
            for writer in self._writers.values()
            if writer.note is not None and writer.note.time_ms < before_ms and not writer.parts
        ]


def _take_one(counts: Counter[str], user: str) -> None:
    """Count one less for a user, of whom nothing stays when none are left."""
    counts[user] -= 1
    if not counts[user]:
        del counts[user]
