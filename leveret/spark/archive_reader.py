"""Records of an archive in place of those that the log has no more: the option `archivePath`.

The driver asks `ArchiveIndex` how far back partitions go with their archive; workers read rows of
Parquet files, which become chunks as the broker would have sent them. Manifests
(leveret.spark.archive_manifest) say which files have which offsets, and nothing else is read.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leveret.range_reader import ChunkColumn, PartitionOffsets, ReadChunk, TopicBounds
from leveret.spark.archive_files import files_to_read, manifest_numbers, read_manifest
from leveret.spark.archive_manifest import ManifestError, topic_directory
from leveret.spark.errors import SourceError, TopicMissingError
from leveret.spark.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.spark.archive_files import ReadableFiles
    from leveret.spark.archive_manifest import ArchivedFile, BatchManifest
    from leveret.spark.offsets import OffsetRange
    from leveret.spark.places import TopicLookup
    from leveret.spark.read_options import ReadOptions
    from leveret.spark.servers import BrokerServers

__all__ = ["ArchiveIndex", "ArchivedTopics", "archive_of", "topics_of"]

LOOK_AGAIN_S: Final = 5.0  # for manifests that have come: the driver asks ten times a second
ROWS_AT_ONCE: Final = 10_000  # about; of a chunk
# Columns of chunks, each made of the file's one of that name.
NUMBERS: Final = {"offset": pa.int64(), "timestamp": pa.int64(), "flags": pa.int32()}
BYTES: Final = ("exchange", "routing_key", "key", "header", "value")


class PartitionArchive:
    """Archived offsets of one partition: stretches without holes, and the files that have them."""

    def __init__(self) -> None:
        self.stretches: list[list[int]] = []  # [first, end), ascending
        self.files: list[ArchivedFile] = []

    def add(self, first: int, end: int) -> None:
        """Add a range; batches come in their order."""
        if self.stretches and self.stretches[-1][1] == first:
            self.stretches[-1][1] = end
        elif first < end:
            self.stretches.append([first, end])

    def first_before(self, offset: int) -> int:
        """Return the lowest offset from which everything up to another one is archived."""
        for first, end in reversed(self.stretches):
            if first <= offset <= end:
                return first
        return offset

    def end_behind(self, offset: int) -> int:
        """Return the offset up to which everything from another one on is archived."""
        for first, end in self.stretches:
            if first <= offset < end:
                return end
        return offset


class TopicArchive:
    """Manifests of one topic, as far as they have come."""

    def __init__(self) -> None:
        self.log: str | None = None
        self.vhost: str | None = None
        self.last_batch = 0
        self.partitions: dict[int, PartitionArchive] = {}
        self.looked_s = float("-inf")

    def add(self, manifest: BatchManifest) -> None:
        """Add the next batch."""
        self.log, self.vhost = manifest.log, manifest.vhost
        self.last_batch = manifest.batch
        for each in manifest.ranges:
            its = self.partitions.setdefault(each.partition, PartitionArchive())
            its.add(each.first + each.lost, each.end)
        for file in manifest.files:
            self.partitions.setdefault(file.partition, PartitionArchive()).files.append(file)


class ArchiveIndex:
    """Archive at `place`, a path or a URI. Raises SourceError where it cannot be read."""

    def __init__(self, place: str) -> None:
        try:
            self._files: ReadableFiles = files_to_read(place)
        except (OSError, ValueError) as error:
            raise SourceError(f"the archive {place} cannot be read: {error}") from error
        self._topics: dict[str, TopicArchive] = {}

    def extend(
        self, topic: str, vhost: str, bounds: TopicBounds | None, time_ms: int | None
    ) -> TopicBounds | None:
        """Return bounds of a topic with what is archived before them. Raises SourceError.

        Partitions that are gone are among them; `bounds` is None where the topic itself is gone.
        The offsets of a time are looked up in the archive as well.
        """
        archive = self._topic(topic)
        if archive.log is None:
            return bounds
        if archive.vhost != vhost or (bounds is not None and archive.log != bounds.log):
            raise SourceError(
                f"the archive {self._files.root} has another topic '{topic}': of virtual host "
                f"'{archive.vhost}', with the log {archive.log}. Read it without archivePath"
            )
        partitions = [] if bounds is None else bounds.partitions
        there = {each.partition: each for each in partitions}
        found = {}
        for number, its in archive.partitions.items():
            known = there.pop(number, None)
            if known is None:
                if not its.stretches:
                    continue
                end = its.stretches[-1][1]
                known = PartitionOffsets(number, end, end, None if time_ms is None else end)
            found[number] = self._extended(topic, its, known, time_ms)
        found |= there
        return TopicBounds(archive.log, [found[number] for number in sorted(found)])

    def _extended(
        self, topic: str, its: PartitionArchive, known: PartitionOffsets, time_ms: int | None
    ) -> PartitionOffsets:
        first = its.first_before(known.first)
        if first == known.first:
            return known
        size, offset = known.bytes, known.offset
        if size is not None:
            older = (file for file in its.files if first <= file.first < known.first)
            size += sum(file.record_bytes for file in older)
        if time_ms is not None and offset == known.first:
            found = self._offset_at(topic, its, time_ms, first)
            offset = offset if found is None else min(found, known.first)
        return replace(known, first=first, offset=offset, bytes=size)

    def _offset_at(self, topic: str, its: PartitionArchive, time_ms: int, first: int) -> int | None:
        """Return the first archived offset of a time or later, None if there is none."""
        files = [file for file in its.files if file.last >= first and file.last_time >= time_ms]
        for file in sorted(files, key=lambda each: each.first):
            table = self._table(topic, file, ["offset", "timestamp"])
            late = table.filter(pc.field("timestamp") >= pa.scalar(time_ms * 1000, pa.int64()))
            if late.num_rows:
                return pc.min(late.column("offset")).as_py()
        return None

    def covered_end(self, wanted: OffsetRange, log: str | None) -> int:
        """Return up to which offset a range is archived, its first one if it is not."""
        archive = self._topic(wanted.topic)
        its = archive.partitions.get(wanted.partition)
        if its is None or (log is not None and archive.log != log):
            return wanted.first
        return min(its.end_behind(wanted.first), wanted.end)

    def chunks(self, wanted: OffsetRange, columns: Sequence[str]) -> Iterator[ReadChunk]:
        """Yield the records of a range that is archived, as the broker would have sent them.

        Raises SourceError.
        """
        archive = self._topic(wanted.topic)
        its = archive.partitions[wanted.partition]
        log = int(archive.log or "0", 16)
        at = wanted.first
        files = [each for each in its.files if each.first < wanted.end and at <= each.last]
        for together in _overlapping(files):
            for rows in self._rows(wanted, together, columns):
                chunk = _chunk(rows, wanted, at, log)
                at = chunk.next_offset
                yield chunk
        if at < wanted.end:  # offsets without a record
            yield _chunk(None, wanted, at, log)

    def _rows(
        self, wanted: OffsetRange, files: Sequence[ArchivedFile], columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield the rows of a range that are in files, in order, some at a time."""
        names = [name for name in (*NUMBERS, *BYTES) if name in {*columns, "offset"}]
        inside = (pc.field("offset") >= wanted.first) & (pc.field("offset") < wanted.end)
        tables = self._in_pieces(wanted.topic, files[0], names)
        if len(files) > 1 or not self._is_sorted(wanted.topic, files[0]):
            whole = pa.concat_tables(self._table(wanted.topic, each, names) for each in files)
            tables = iter([whole.sort_by("offset")])
        for table in tables:
            rows = table.filter(inside)
            for first in range(0, rows.num_rows, ROWS_AT_ONCE):
                yield rows.slice(first, ROWS_AT_ONCE)

    def _is_sorted(self, topic: str, file: ArchivedFile) -> bool:
        """Whether the rows of a file are in order, as the job `archive` writes them."""
        offsets = self._table(topic, file, ["offset"]).column("offset").combine_chunks()
        return pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() is not False

    def _table(self, topic: str, file: ArchivedFile, columns: list[str]) -> pa.Table:
        """Return all rows of a file, with the columns as chunks have them."""
        return pa.concat_tables(self._in_pieces(topic, file, columns))

    def _in_pieces(self, topic: str, file: ArchivedFile, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the rows of a file, some at a time; times are in microseconds.

        Raises SourceError.
        """
        path = f"{self._files.root}/{topic_directory(topic)}/{file.path}"
        rows = 0
        try:
            with self._files.open(f"{topic_directory(topic)}/{file.path}") as opened:
                for batch in pq.ParquetFile(opened).iter_batches(ROWS_AT_ONCE, columns=columns):
                    rows += batch.num_rows
                    yield pa.table(
                        {name: _as_in_chunks(batch.column(name), name) for name in columns}
                    )
        except (OSError, KeyError, pa.ArrowException) as error:
            raise SourceError(f"{path} of the archive cannot be read: {error}") from error
        if rows != file.rows:
            raise SourceError(f"{path} has {rows} messages, and its manifest says {file.rows}")

    def _topic(self, topic: str) -> TopicArchive:
        """Return what is archived of a topic now, or was a moment ago. Raises SourceError."""
        known = self._topics.setdefault(topic, TopicArchive())
        now = time.monotonic()
        if now - known.looked_s < LOOK_AGAIN_S:
            return known
        try:
            for number in manifest_numbers(self._files, topic):
                if number > known.last_batch:
                    known.add(read_manifest(self._files, topic, number))
        except (OSError, ManifestError) as error:
            raise SourceError(f"the archive {self._files.root} cannot be read: {error}") from error
        known.looked_s = now
        return known


class ArchivedTopics:
    """Topics as the broker and an archive have them together, in place of `BrokerServers`."""

    def __init__(self, servers: BrokerServers, archive: ArchiveIndex, vhost: str) -> None:
        self._servers = servers
        self._archive = archive
        self._vhost = vhost

    def topic(self, name: str, time_ms: int | None = None, *, sizes: bool = False) -> TopicBounds:
        """Return the partitions of a topic, from their first archived offset on.

        Raises SourceError.
        """
        try:
            bounds = self._servers.topic(name, time_ms, sizes=sizes)
        except TopicMissingError:
            found = self._archive.extend(name, self._vhost, None, time_ms)
            if found is None:
                raise
            return found
        return self._archive.extend(name, self._vhost, bounds, time_ms) or bounds

    def topic_names(self) -> list[str]:
        """Return the names of all topics that the broker has."""
        return self._servers.topic_names()


def topics_of(options: ReadOptions) -> TopicLookup:
    """Return where a table's topics are looked up: the broker, with its archive if there is one.

    Raises SourceError.
    """
    servers = servers_of(options.connection)
    if options.archive_path is None:
        return servers
    return ArchivedTopics(servers, archive_of(options.archive_path), options.connection.vhost)


_known: dict[tuple[int, str], ArchiveIndex] = {}


def archive_of(place: str) -> ArchiveIndex:
    """Return this process's index of the archive at a place. Raises SourceError."""
    key = (os.getpid(), place)  # a forked process has its parent's dictionary
    if key not in _known:
        _known[key] = ArchiveIndex(place)
    return _known[key]


def _overlapping(files: Sequence[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Yield files in order, those together whose offsets lie between each other's.

    These are files of two dates, where a clock was set back around midnight.
    """
    together: list[ArchivedFile] = []
    last = -1
    for each in sorted(files, key=lambda file: file.first):
        if together and each.first > last:
            yield together
            together = []
        together.append(each)
        last = max(last, each.last)
    if together:
        yield together


def _as_in_chunks(column: pa.Array, name: str) -> pa.Array:
    if name == "timestamp":
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    return column.cast(NUMBERS.get(name, pa.binary()))


def _chunk(rows: pa.Table | None, wanted: OffsetRange, at: int, log: int) -> ReadChunk:
    """Return rows from offset `at` on as a chunk; no rows reach up to the range's end."""
    columns: dict[str, ChunkColumn] = {}
    next_offset, count = wanted.end, 0
    if rows is not None:
        count = rows.num_rows
        for name in rows.column_names:
            columns[name] = _column(rows.column(name).combine_chunks(), name)
        next_offset = int(columns["offset"].values[count - 1]) + 1
    else:
        columns["offset"] = ChunkColumn(memoryview(b"").cast("B").cast("q"))
    return ReadChunk(
        rows=count,
        offset=at,
        next_offset=next_offset,
        first=wanted.first,
        end=wanted.end,
        missing=0,
        log=log,
        partition=wanted.partition,
        has_more=next_offset < wanted.end,
        is_compacted=False,
        columns=columns,
    )


def _column(array: pa.Array, name: str) -> ChunkColumn:
    """Return a column of a chunk; an array that is a slice is copied, so that it begins at 0."""
    if array.offset or name not in NUMBERS:
        array = pa.concat_arrays([array])
    if name in NUMBERS:
        if name == "timestamp":
            array = pc.divide(array, pa.scalar(1000, pa.int64()))
        values = memoryview(array.buffers()[1]).cast("B")
        size = len(array) * NUMBERS[name].bit_width // 8
        return ChunkColumn(values[:size].cast("I" if name == "flags" else "q"))
    _, table, values = array.buffers()
    wide = memoryview(table).cast("B")[: 4 * (len(array) + 1)].cast("i")
    blob = memoryview(b"" if values is None else values).cast("B")[: wide[len(array)]]
    return ChunkColumn(blob, wide)
