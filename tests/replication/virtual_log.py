"""A log of batches in memory that can lose what was not flushed.

A batch is (index, epoch, value): `index` counts all batches that the log has ever had, so that logs
of two nodes can be compared even where files are missing. A value above 0 is a record, which has an
offset; others, as settlements in real logs, have none. A position in a file is a number of batches.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import count, zip_longest
from typing import NamedTuple

from leveret.ports.replication import EpochEnd, LogFiles, LogPlace, RawBatches

VERSIONS = count(1)


class VirtualBatch(NamedTuple):
    index: int
    epoch: int
    value: int


@dataclass
class VirtualFile:
    base: int
    revision: int
    index: int  # of its first batch
    batches: list[VirtualBatch] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.index + len(self.batches)

    @property
    def name(self) -> tuple[int, int]:
        return self.base, self.revision

    def offset_at(self, position: int) -> int:
        return self.base + sum(batch.value > 0 for batch in self.batches[:position])


class VirtualLog:
    """Files of a log; all batches in front of the index `flushed` are on the disk.

    Whatever changes its batches gives it a `version` that no log has had.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: list[VirtualFile] = []
        self.flushed = 0
        self.cuts = 0  # how often it was cut
        self.version = next(VERSIONS)

    @property
    def end(self) -> int:
        """Index of the next batch."""
        return self.files[-1].end if self.files else 0

    @property
    def place(self) -> LogPlace:
        return self.place_at(self.end)

    @property
    def offset(self) -> int:
        return self.offset_at(self.end)

    def batches(self) -> list[VirtualBatch]:
        return [batch for file in self.files for batch in file.batches]

    def _file_of(self, index: int) -> VirtualFile:
        at = bisect_right(self.files, index, key=lambda file: file.index) - 1
        return self.files[max(at, 0)]

    def place_at(self, index: int) -> LogPlace:
        if not self.files:
            return LogPlace()
        file = self._file_of(index)
        return LogPlace(file.base, file.revision, index - file.index)

    def offset_at(self, index: int) -> int:
        if not self.files:
            return 0
        file = self._file_of(index)
        return file.offset_at(index - file.index)

    def index_of(self, place: LogPlace) -> int | None:
        for file in self.files:
            if file.name == place.file:
                return file.index + place.position
        return 0 if place == LogPlace() else None

    # -- what a leader does

    def write(self, epoch: int, value: int, *, rolls: bool) -> None:
        self.version = next(VERSIONS)
        newest = self.files[-1] if self.files else None
        if newest is None or rolls:
            base = self.offset
            revision = 0 if newest is None or newest.base != base else newest.revision + 1
            self.files.append(VirtualFile(base, revision, self.end))
        self.files[-1].batches.append(VirtualBatch(self.end, epoch, value))

    def read(self, place: LogPlace, count: int) -> RawBatches | None:
        """Return up to `count` batches of one file; None if it is not there."""
        if not self.files:
            return RawBatches(bytearray(), place, 0)
        for file, following in zip_longest(self.files, self.files[1:]):
            if file.name != place.file:
                continue
            found = file.batches[place.position : place.position + count]
            position = place.position + len(found)
            stop, offset = LogPlace(*file.name, position), file.offset_at(position)
            if position == len(file.batches) and following is not None:
                stop, offset = LogPlace(*following.name), following.base
            return RawBatches(found, stop, offset)  # type: ignore[arg-type]
        return None

    # -- what a follower does

    def append(self, place: LogPlace, batches: list[VirtualBatch]) -> None:
        self.version = next(VERSIONS)
        if place.position == 0:
            assert not self.files or place > self.place
            assert place.base >= self.offset
            self.files.append(VirtualFile(place.base, place.revision, batches[0].index))
        else:
            assert place == self.place, (place, self.place)
            assert batches[0].index == self.end
        for batch in batches:
            assert not self.files[-1].batches or batch.epoch >= self.files[-1].batches[-1].epoch
            self.files[-1].batches.append(batch)

    def cut(self, place: LogPlace) -> None:
        self.version = next(VERSIONS)
        self.files = [
            file
            for file in self.files
            if file.name < place.file or (file.name == place.file and place.position)
        ]
        if self.files and self.files[-1].name == place.file:
            del self.files[-1].batches[place.position :]

    def remove(self, name: tuple[int, int]) -> None:
        self.version = next(VERSIONS)
        self.files = [file for file in self.files if file.name != name]

    def add(self, file: VirtualFile) -> None:
        """Add a compacted file; the one whose place it takes is removed behind."""
        self.version = next(VERSIONS)
        self.files = sorted([*self.files, file], key=lambda each: each.name)

    def checksum_at(self, place: LogPlace) -> int:
        """Return the checksum of the batch that begins at a place, 0 without one."""
        file = next(file for file in self.files if file.name == place.file)
        return hash(file.batches[place.position]) if place.position < len(file.batches) else 0

    # -- what happens to its disk

    def lose(self, kept: int) -> None:
        """Keep what is flushed, and `kept` batches behind it."""
        self.version = next(VERSIONS)
        end = self.flushed + kept
        for file in self.files:
            del file.batches[max(end - file.index, 0) :]
        self.files = [file for file in self.files if file.batches]
        self.flushed = self.end

    def describe(self) -> LogFiles:
        epochs: dict[int, LogPlace] = {}
        for file in self.files:
            for position, batch in enumerate(file.batches, 1):
                epochs[batch.epoch] = LogPlace(*file.name, position)
        batches = self.batches()
        last = self.place_at(batches[-1].index) if batches else LogPlace()
        return LogFiles(
            self.name,
            tuple(file.name for file in self.files),
            tuple(EpochEnd(*end) for end in epochs.items()),
            self.place,
            self.offset,
            last,
            self.checksum_at(last) if batches else 0,
        )
