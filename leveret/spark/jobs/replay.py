"""Job `replay`: archived messages, or those of a topic, published again, each of them once.

The messages are published by staged batches (docs/staged-batches.md) of a writer whose name says
what is replayed where: the same replay again goes on where the last one has ended, or does
nothing. leveret.spark.jobs.replay_plan has the order and the numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.spark.archive_files import read_manifests
from leveret.spark.archive_manifest import ManifestError, check_sequence, topic_directory
from leveret.spark.errors import SourceError, TopicMissingError, WrongCredentialsError
from leveret.spark.jobs.archived_files import read_files, record_size
from leveret.spark.jobs.hadoop_files import files_to_write
from leveret.spark.jobs.job import JobError, SparkJob
from leveret.spark.jobs.replay_plan import (
    OffsetBucket,
    cut_pieces,
    needs_cutting,
    skip_rows,
)
from leveret.spark.offsets import OffsetRange
from leveret.spark.option_reader import OptionError, time_ms

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from leveret.spark.jobs.job import JobContext, JobSummary
    from leveret.spark.jobs.replay_plan import ReplayPiece

__all__ = ["JOB", "read_ranges"]

BUCKET_OFFSETS: Final = 1000
PIECE_BYTES: Final = 96 << 20  # of the 256 MiB that a broker commits at a time


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic whose messages are published again")
    parser.add_argument(
        *("--from",), dest="archive", metavar="DIR",
        help="archive to read, a directory or Hadoop URI; without it the topic's log is read",
    )  # fmt: skip
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to", metavar="QUEUE", help="queue or stream to publish to")
    to.add_argument(
        "--to-exchange", metavar="NAME", help="exchange to publish to, with the old routing keys"
    )
    parser.add_argument(
        *("--offsets",), metavar="JSON",
        help='only these partitions, from an offset up to another: {"0": [100, 200]}',
    )  # fmt: skip
    parser.add_argument("--from-time", metavar="TIME", help="only what was stored then or later")
    parser.add_argument("--until-time", metavar="TIME", help="only what was stored before")
    parser.add_argument(
        "--id", metavar="NAME", help="of the replay; the same one does nothing twice"
    )
    parser.add_argument(
        *("--piece-bytes",), type=int, default=PIECE_BYTES, metavar="NUMBER",
        help="bytes that are published at a time, about  [default: %(default)s]",
    )  # fmt: skip
    parser.add_argument(
        *("--copies",), action="store_true",
        help="publish messages with a header CC, to the other queues as well",
    )  # fmt: skip
    parser.add_argument(
        *("--drop-unroutable",), action="store_true",
        help="drop messages that no queue gets; without it they are an error",
    )  # fmt: skip


class ReplaySource(NamedTuple):
    """One batch of an archive, or a topic's log: what reads the table, and its columns."""

    name: str
    read: Callable[[Sequence[OffsetRange]], DataFrame]  # no ranges: everything
    ranges: Sequence[OffsetRange] = ()
    rows: int | None = None  # where that is known


class ReplayTarget(NamedTuple):
    """Where messages are published: a queue, or an exchange, for which they keep their keys."""

    exchange: str
    queue: str | None

    def __str__(self) -> str:
        return self.queue or f"exchange '{self.exchange}'"

    def options(self) -> dict[str, str]:
        """Return the options of the data source for it."""
        return {"exchange": self.exchange} if self.queue is None else {"topic": self.queue}


def read_ranges(text: str) -> dict[int, tuple[int, int]]:
    """Return offsets by partition of the option --offsets. Raises OptionError."""
    try:
        told = json.loads(text)
        found = {int(number): (first, end) for number, (first, end) in told.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        found = {}
    if not found or not all(
        number >= 0 and type(first) is type(end) is int and 0 <= first <= end
        for number, (first, end) in found.items()
    ):
        raise OptionError('--offsets must be like {"0": [100, 200]}: from, and up to, an offset')
    return found


def _run(context: JobContext) -> JobSummary:
    given = context.arguments
    ranges = read_ranges(given.offsets) if given.offsets else None
    times = {
        side: time_ms(text)
        for side, text in (("from", given.from_time), ("until", given.until_time))
        if text
    }
    if given.piece_bytes < 1:
        raise OptionError("--piece-bytes is at least 1")
    if given.id is not None and not re.fullmatch(r"[\w.:-]{1,100}", given.id):
        raise OptionError("--id has letters, digits and . : - _ only, 100 at most")
    to = ReplayTarget(given.to_exchange or "", given.to)
    _check_target(context, to)
    read = _log_sources if given.archive is None else _archive_sources
    sources, log = read(context, ranges, times)
    about: list[Any] = [context.connection.vhost, log, given.topic, list(to)]
    if given.archive is None:
        about += [source.ranges for source in sources]  # resolved: times have become offsets
    else:
        about += [times, sorted((ranges or {}).items())]
    writer = given.id or hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return Replay(context, f"replay-{writer}", to).run(sources)


def _check_target(context: JobContext, to: ReplayTarget) -> None:
    """Raise JobError if the queue does not exist, before anything is read for it."""
    if to.queue is None:
        return
    try:
        context.broker.topic(to.queue)
    except TopicMissingError as error:
        raise JobError(f"{error}: declare it first, as a stream for instance") from error
    except WrongCredentialsError:
        raise
    except SourceError:
        return  # it is there, and cannot be read by offset


def _archive_sources(
    context: JobContext, ranges: Mapping[int, tuple[int, int]] | None, times: Mapping[str, int]
) -> tuple[list[ReplaySource], str]:
    """Return the batches of an archive, and the number of their log. Raises JobError."""
    given = context.arguments
    files = files_to_write(context.spark, given.archive)
    try:
        manifests = read_manifests(files, given.topic)
    except (ManifestError, OSError) as error:
        raise JobError(f"the archive cannot be read: {error}") from error
    if not manifests:
        raise JobError(f"{given.archive} has no batch of topic '{given.topic}'")
    wrong = check_sequence(manifests)
    if wrong:
        raise JobError(f"the archive is not complete: {wrong[0]}. `leveret spark verify` says more")
    condition = _condition(ranges, times)
    sources = []
    for each in manifests:
        root = f"{files.root}/{topic_directory(given.topic)}"
        paths = [(file.partition, file.first, file.last, file.path) for file in each.files]

        def read(
            some: Sequence[OffsetRange], root: str = root, paths: Sequence[Any] = paths
        ) -> DataFrame:
            wanted = [
                f"{root}/{path}"
                for number, first, last, path in paths
                if not some
                or any(
                    its.partition == number and its.first <= last and first < its.end
                    for its in some
                )
            ]
            table = read_files(context.spark, wanted)
            return table if condition is None else table.where(condition)

        if paths:
            rows = each.rows if condition is None else None
            sources.append(ReplaySource(f"batch {each.batch} of the archive", read, rows=rows))
    return sources, manifests[0].log


def _condition(
    ranges: Mapping[int, tuple[int, int]] | None, times: Mapping[str, int]
) -> Column | None:
    """Return which records are replayed, None if all are."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    conditions = []
    if ranges is not None:
        conditions.append(_in_ranges([OffsetRange("", n, *its) for n, its in ranges.items()]))
    if "from" in times:
        conditions.append(f.unix_millis("timestamp") >= times["from"])
    if "until" in times:
        conditions.append(f.unix_millis("timestamp") < times["until"])
    found = None
    for each in conditions:
        found = each if found is None else found & each
    return found


def _in_ranges(ranges: Sequence[OffsetRange]) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415

    found = f.lit(False)
    for each in ranges:
        inside = f.col("offset").between(each.first, each.end - 1)
        found |= (f.col("partition") == each.partition) & inside
    return found


def _log_sources(
    context: JobContext, ranges: Mapping[int, tuple[int, int]] | None, times: Mapping[str, int]
) -> tuple[list[ReplaySource], str]:
    """Return the topic's log as the one source, and its number. Raises SourceError.

    What is there now is replayed. The offsets are said, so that a run that is ended can be
    repeated with the same ones.
    """
    topic = context.arguments.topic
    bounds = context.broker.topic(topic)
    if ranges is None:
        ranges = {each.partition: (each.first, each.end) for each in bounds.partitions}
        for side, index in (("from", 0), ("until", 1)):
            if side in times:
                for each in context.broker.topic(topic, times[side]).partitions:
                    if each.partition in ranges and each.offset is not None:
                        its = list(ranges[each.partition])
                        its[index] = each.offset
                        ranges[each.partition] = (its[0], max(its))
        told = json.dumps({str(number): its for number, its in sorted(ranges.items())})
        context.report(f"replaying --offsets '{told}': give these to repeat this run", always=True)

    def read(some: Sequence[OffsetRange]) -> DataFrame:
        its: dict[str, list[OffsetRange]] = defaultdict(list)
        for each in some or all_of_it:
            its[str(each.partition)].append(each)
        starts = {number: min(each.first for each in rows) for number, rows in its.items()}
        ends = {number: max(each.end for each in rows) for number, rows in its.items()}
        return (
            context.spark.read.format("leveret")
            .options(**context.source_options(), includeRecord="true", includeHeaders="true")
            .option("assign", json.dumps({topic: [int(number) for number in its]}))
            .option("startingOffsets", json.dumps({topic: starts}))
            .option("endingOffsets", json.dumps({topic: ends}))
            .load()
        )

    all_of_it = [
        OffsetRange(topic, number, first, end)
        for number, (first, end) in sorted(ranges.items())
        if first < end
    ]
    name = f"topic '{topic}'"
    return [ReplaySource(name, read, all_of_it)] if all_of_it else [], bounds.log


class Replay:
    """Publishes the records of sources by one writer."""

    def __init__(self, context: JobContext, writer: str, to: ReplayTarget) -> None:
        self._context = context
        self._writer = writer
        self._to = to
        self._published = 0

    def run(self, sources: Sequence[ReplaySource]) -> JobSummary:
        """Publish what is not published yet. Raises JobError, SourceError."""
        done = self._context.broker.last_committed(self._writer) or 0
        at = 0
        for source in sources:
            if source.rows is not None and at + source.rows <= done:
                at += source.rows
                continue
            buckets = self._buckets(source, BUCKET_OFFSETS)
            rows = sum(each.rows for each in buckets)
            if at + rows > done:
                for piece in self._pieces(source, buckets, at, done):
                    self._publish(source, piece)
            at += rows
        return {
            "id": self._writer.removeprefix("replay-"),
            "to": str(self._to),
            "messages": self._published,
            "published_before": min(done, at),
        }

    def _buckets(
        self, source: ReplaySource, width: int, of: OffsetBucket | None = None
    ) -> list[OffsetBucket]:
        """Return how many records, and bytes of them, each `width` offsets have, in order."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        ranges = [] if of is None else [OffsetRange("", of.partition, of.first, of.end)]
        table = source.read(ranges)
        if of is not None:
            table = table.where(_in_ranges(ranges))
        is_copied = f.exists("headers", lambda each: each.key == "CC")
        rows = (
            table.groupBy("partition", f.floor(f.col("offset") / width).alias("bucket"))
            .agg(
                f.min("offset").alias("first"),
                f.max("offset").alias("last"),
                f.count(f.lit(1)).alias("rows"),
                f.sum(record_size()).alias("bytes"),
                f.count_if(is_copied).alias("copied"),
            )
            .orderBy("partition", "bucket")
            .collect()
        )
        self._check_copies(sum(row.copied for row in rows))
        return [
            OffsetBucket(row.partition, row.first, row.last + 1, row.rows, row.bytes)
            for row in rows
        ]

    def _check_copies(self, count: int) -> None:
        if count and self._to.queue is not None and not self._context.arguments.copies:
            raise JobError(
                f"{count} messages have a header CC, and would be published to the queues that it "
                "names as well: --copies does so, and --to-exchange publishes to an exchange"
            )

    def _pieces(
        self, source: ReplaySource, buckets: list[OffsetBucket], at: int, done: int
    ) -> Iterator[ReplayPiece]:
        """Yield the pieces of a source behind what is done. Its first record is number `at`."""
        piece_bytes = self._context.arguments.piece_bytes
        cut = set(needs_cutting(buckets, at, done, piece_bytes))
        exact: list[OffsetBucket] = []
        for index, each in enumerate(buckets):
            exact += self._buckets(source, 1, each) if index in cut else [each]
        at, rest = skip_rows(exact, at, done)
        yield from cut_pieces(rest, at, piece_bytes)

    def _publish(self, source: ReplaySource, piece: ReplayPiece) -> None:
        """Publish a piece, partition by partition, each in the order of its offsets."""
        ranges = [OffsetRange("", its.partition, its.first, its.end) for its in piece.ranges]
        columns = ["header", "value"] + (["routing_key"] if self._to.queue is None else [])
        table = source.read(ranges).where(_in_ranges(ranges))
        count = max(each.partition for each in ranges) + 1
        # Each of Spark's partitions is one of ours: they are published in this order.
        table = table.repartitionById(count, "partition").sortWithinPartitions("offset")
        mandatory = "false" if self._context.arguments.drop_unroutable else "true"
        (
            table.select(*columns)
            .write.format("leveret")
            .mode("append")
            .options(**self._context.source_options(), **self._to.options(), mandatory=mandatory)
            .options(writer=self._writer, batchId=str(piece.number))
            .save()
        )
        self._published += piece.rows
        self._context.report(f"{self._published:,} messages are published, now {source.name}")


JOB: Final = SparkJob("publish archived messages, or those of a topic, again", _add_arguments, _run)
