"""Job `verify`: an archive against its manifests, and against the log where it has the messages.

The files are read whole: their sizes, counts, offsets and hashes are compared with the manifests,
and every record that the log has as well is compared with the log's.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from leveret.spark.archive_files import manifest_numbers, read_manifest
from leveret.spark.archive_manifest import (
    ArchivedFile,
    ManifestError,
    batch_directory,
    check_sequence,
    topic_directory,
)
from leveret.spark.errors import TopicMissingError
from leveret.spark.jobs.archive import topic_names
from leveret.spark.jobs.archived_files import file_facts, read_files, record_hash
from leveret.spark.jobs.export import add_topics
from leveret.spark.jobs.hadoop_files import files_to_write
from leveret.spark.jobs.job import JobError, SparkJob

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from leveret.range_reader import TopicBounds
    from leveret.spark.archive_files import ArchiveFiles
    from leveret.spark.archive_manifest import BatchManifest
    from leveret.spark.jobs.job import JobContext, JobSummary

__all__ = ["JOB"]

EXAMPLES_MAX: Final = 20  # of records that differ; all are counted
FILES_AT_ONCE: Final = 2000  # that one job of Spark reads: a list of paths has its limits
FACTS: Final = tuple(
    each.name for each in fields(ArchivedFile) if each.name not in {"path", "partition"}
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    parser.add_argument("--archive", required=True, metavar="DIR", help="directory, or Hadoop URI")
    parser.add_argument(
        "--no-log", action="store_true", help="compare with the manifests only; asks no broker"
    )
    parser.add_argument(
        *("--compacted",), action="store_true",
        help="the topic is compacted: the archive may have messages that the log has no more",
    )  # fmt: skip


def _run(context: JobContext) -> JobSummary:
    names = topic_names(context.arguments.topics)
    files = files_to_write(context.spark, context.arguments.archive)
    topics = [_verified(context, files, name) for name in names]
    differences = [text for each in topics for text in each.pop("differences")]
    return {
        "ok": not differences,
        "directory": context.arguments.archive,
        "topics": topics,
        "differences": differences,
    }


def _verified(context: JobContext, files: ArchiveFiles, topic: str) -> dict[str, Any]:
    """Return what was compared of a topic, and all differences. Raises JobError."""
    manifests, differences = _manifests(files, topic)
    differences += check_sequence(manifests)
    context.report(f"reading {sum(len(each.files) for each in manifests)} files of topic '{topic}'")
    differences += _check_files(context, files, topic, manifests)
    told: dict[str, Any] = {
        "topic": topic,
        "batches": len(manifests),
        "files": sum(len(each.files) for each in manifests),
        "messages": sum(each.rows for each in manifests),
        "lost": sum(each.lost for its in manifests for each in its.ranges),
    }
    if not context.arguments.no_log and not differences and manifests:
        compared, more = LogComparison(context, files, manifests).run()
        told["compared_with_log"] = compared
        differences += more
    return {**told, "differences": [f"topic '{topic}': {each}" for each in differences]}


def _manifests(files: ArchiveFiles, topic: str) -> tuple[list[BatchManifest], list[str]]:
    """Return the manifests that can be read, and what is wrong with others. Raises JobError."""
    found, wrong = [], []
    try:
        numbers = manifest_numbers(files, topic)
    except OSError as error:
        raise JobError(f"{files.root} cannot be read: {error}") from error
    if not numbers:
        raise JobError(f"{files.root} has no batch of topic '{topic}'")
    for number in numbers:
        try:
            found.append(read_manifest(files, topic, number))
        except (ManifestError, OSError) as error:
            wrong.append(str(error))
    return found, wrong


def _check_files(
    context: JobContext, files: ArchiveFiles, topic: str, manifests: Sequence[BatchManifest]
) -> Iterator[str]:
    """Yield how files differ from what the manifests say of them."""
    directory = topic_directory(topic)
    batches = {batch_directory(each.batch) for each in manifests}
    present = dict(_files_there(files, directory, batches))
    named = {file.path: file for each in manifests for file in each.files}
    yield from (f"{path} is missing" for path in sorted(named.keys() - present.keys()))
    yield from (f"{path} is in no manifest" for path in sorted(present.keys() - named.keys()))
    there = sorted(named.keys() & present.keys())
    for path in there:
        if present[path] != named[path].bytes:
            yield f"{path} has {present[path]} bytes, and its manifest says {named[path].bytes}"
    there = [path for path in there if present[path] == named[path].bytes]
    for first in range(0, len(there), FILES_AT_ONCE):
        some = there[first : first + FILES_AT_ONCE]
        found, unreadable = _facts(context.spark, files, directory, some)
        yield from unreadable
        for path in some:
            if path in found:
                yield from _differing(named[path], found[path])


def _files_there(
    files: ArchiveFiles, directory: str, batches: set[str]
) -> Iterator[tuple[str, int]]:
    """Yield the files of batches that have a manifest, with their sizes."""
    for date in files.names(directory):
        if not date.startswith("date="):
            continue
        for batch in sorted(batches.intersection(files.names(f"{directory}/{date}"))):
            for name in files.names(f"{directory}/{date}/{batch}"):
                size = files.size(f"{directory}/{date}/{batch}/{name}")
                if size is not None and not name.startswith((".", "_")):
                    yield f"{date}/{batch}/{name}", size


def _facts(
    spark: SparkSession, files: ArchiveFiles, directory: str, paths: Sequence[str]
) -> tuple[dict[str, list[ArchivedFile]], list[str]]:
    """Return what files hold, by path, and which ones cannot be read.

    Where something in many files cannot be read, halves of them are tried, to find it.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        found: dict[str, list[ArchivedFile]] = {path: [] for path in paths}
        for each in file_facts(spark, files, directory, paths):
            found[each.path].append(each)
    except (PySparkException, Py4JError) as error:
        if len(paths) == 1:
            return {}, [f"{paths[0]} cannot be read: {str(error).strip().splitlines()[0]}"]
        middle = len(paths) // 2
        first, unreadable = _facts(spark, files, directory, paths[:middle])
        second, more = _facts(spark, files, directory, paths[middle:])
        return {**first, **second}, unreadable + more
    return found, []


def _differing(named: ArchivedFile, found: Sequence[ArchivedFile]) -> Iterable[str]:
    """Yield how a file differs from what its manifest says."""
    if len(found) != 1 or found[0].partition != named.partition:
        yield f"{named.path} does not have rows of partition {named.partition} alone"
        return
    for name in FACTS:
        said, has = getattr(named, name), getattr(found[0], name)
        if said != has:
            yield f"{named.path}: {name} is {has}, and its manifest says {said}"


class LogComparison:
    """Compares records of an archive with those of the log that still has them."""

    def __init__(
        self, context: JobContext, files: ArchiveFiles, manifests: Sequence[BatchManifest]
    ) -> None:
        self._context = context
        self._files = files
        self._manifests = manifests
        self._topic = manifests[0].topic

    def run(self) -> tuple[int, list[str]]:
        """Return how many records were compared, and how they differ."""
        bounds = self._bounds()
        if bounds is None:
            return 0, []
        ranges = self._common_ranges(bounds)
        if not ranges:
            return 0, []
        self._context.report(f"comparing topic '{self._topic}' with its log")
        joined = self._joined(ranges).cache()
        try:
            return joined.count(), self._differences(joined)
        finally:
            joined.unpersist()

    def _bounds(self) -> TopicBounds | None:
        try:
            bounds = self._context.broker.topic(self._topic)
        except TopicMissingError:
            return None
        same = (self._manifests[0].vhost, self._manifests[0].log)
        return bounds if same == (self._context.connection.vhost, bounds.log) else None

    def _common_ranges(self, bounds: TopicBounds) -> dict[int, tuple[int, int]]:
        """Return offsets by partition that the log and the archive have."""
        archived: dict[int, int] = self._manifests[-1].next
        first = {each.partition: each for its in self._manifests[::-1] for each in its.ranges}
        ranges = {}
        for each in bounds.partitions:
            if each.partition in first:
                its = first[each.partition]
                low = max(each.first, its.first + its.lost)
                high = min(each.end, archived.get(each.partition, 0))
                if low < high:
                    ranges[each.partition] = (low, high)
        return ranges

    def _joined(self, ranges: dict[int, tuple[int, int]]) -> DataFrame:
        """Return the records' hashes on both sides, by partition and offset."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        directory = topic_directory(self._topic)
        paths = [
            f"{self._files.root}/{directory}/{file.path}"
            for each in self._manifests
            for file in each.files
            if file.partition in ranges and file.last >= ranges[file.partition][0]
        ]
        spark, keys = self._context.spark, ["partition", "offset"]
        log = self._log(ranges).select(*keys, record_hash().alias("log"))
        archive = read_files(spark, paths) if paths else self._log(ranges).limit(0)
        is_common = f.lit(False)
        for number, (low, high) in ranges.items():
            inside = f.col("offset").between(low, high - 1)
            is_common |= (f.col("partition") == number) & inside
        archive = archive.where(is_common).select(*keys, record_hash().alias("archive"))
        return archive.join(log, keys, "full_outer")

    def _log(self, ranges: dict[int, tuple[int, int]]) -> DataFrame:
        starts = {str(number): low for number, (low, _) in ranges.items()}
        ends = {str(number): high for number, (_, high) in ranges.items()}
        return (
            self._context.spark.read.format("leveret")
            .options(**self._context.source_options(), includeRecord="true", failOnDataLoss="false")
            .option("assign", json.dumps({self._topic: list(ranges)}))
            .option("startingOffsets", json.dumps({self._topic: starts}))
            .option("endingOffsets", json.dumps({self._topic: ends}))
            .load()
        )

    def _differences(self, joined: DataFrame) -> list[str]:
        """Return what differs, with examples. What the log has deleted meanwhile does not."""
        from pyspark.sql import functions as f  # noqa: PLC0415

        now = self._bounds()
        gone = f.lit(False)
        for each in () if now is None else now.partitions:
            gone |= (f.col("partition") == each.partition) & (f.col("offset") < each.first)
        kinds = {
            "are in the log only": f.col("archive").isNull(),
            "are not the same in the log": f.col("archive") != f.col("log"),
        }
        if now is not None and not self._context.arguments.compacted:
            kinds["are in the archive only"] = f.col("log").isNull() & ~gone
        differences = []
        for what, condition in kinds.items():
            rows = joined.where(condition)
            count = rows.count()
            if count:
                some = rows.orderBy("partition", "offset").limit(EXAMPLES_MAX).collect()
                places = ", ".join(f"{row.partition}:{row.offset}" for row in some)
                differences.append(f"{count} messages {what}: partition:offset {places}")
        return differences


JOB: Final = SparkJob(
    "compare an archive with its manifests and with the log", _add_arguments, _run
)
