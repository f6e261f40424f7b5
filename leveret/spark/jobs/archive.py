"""Job `archive`: topics as Parquet files, batch by batch, each of them once.

A batch is a range of offsets of each partition. It is written, read back, and then committed by
its manifest (leveret.spark.archive_manifest), which appears as a whole; only then is the consumer
group moved on, so that the topic's retention may delete what is archived. A run that ends anywhere
in between leaves a batch without a manifest, which the next run writes again.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from leveret.range_reader import ReadRefusedError
from leveret.spark.archive_files import manifest_numbers, read_manifest
from leveret.spark.archive_manifest import (
    MANIFESTS,
    ArchivedRange,
    BatchManifest,
    ManifestError,
    batch_directory,
    manifest_name,
    topic_directory,
)
from leveret.spark.errors import DataLossError
from leveret.spark.jobs.archived_files import COLUMNS, file_facts
from leveret.spark.jobs.export import add_topics
from leveret.spark.jobs.hadoop_files import files_to_write
from leveret.spark.jobs.job import JobError, SparkJob
from leveret.spark.offsets import TopicOffsets, limit_offsets, ranges_between
from leveret.spark.option_reader import OptionError, OptionReader
from leveret.spark.places import TopicsNow
from leveret.spark.read_options import TopicSelection

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from leveret.spark.archive_files import ArchiveFiles
    from leveret.spark.archive_manifest import ArchivedFile
    from leveret.spark.jobs.job import JobContext, JobSummary
    from leveret.spark.offsets import OffsetRange

__all__ = ["JOB", "TopicArchiver", "topic_names"]

BATCH_ROWS: Final = 5_000_000
BATCH_BYTES: Final = 1 << 30
TASK_ROWS: Final = 500_000  # of a file, about: enough to compress well, few enough to be read
TASK_BYTES: Final = 128 << 20
LOSS_TRIES: Final = 5  # of a batch that retention catches up with
COMMIT_PAUSES_S: Final = (1, 2, 4, 0)  # after each try


def topic_names(text: str) -> list[str]:
    """Return the topics of the argument TOPIC,…. Raises OptionError."""
    names = list(dict.fromkeys(each.strip() for each in text.split(",")))
    if not all(names):
        raise OptionError(f"'{text}' has an empty name of a topic")
    return names


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    parser.add_argument("--to", required=True, metavar="DIR", help="directory, or Hadoop URI")
    parser.add_argument(
        *("--group",), default="archive",
        help="consumer group that shows how far the archive is  [default: %(default)s]",
    )  # fmt: skip
    parser.add_argument(
        *("--continuous",), metavar="TIME",
        help="go on, with this time between two looks, such as 1m",
    )  # fmt: skip
    for option, default, what in (
        ("--batch-rows", BATCH_ROWS, "messages"), ("--batch-bytes", BATCH_BYTES, "bytes, about,"),
    ):  # fmt: skip
        parser.add_argument(
            *(option,), type=int, default=default, metavar="NUMBER",
            help=f"{what} of a batch  [default: %(default)s]",
        )  # fmt: skip
    parser.add_argument(
        *("--accept-loss",), action="store_true",
        help="go on where messages were deleted before they were archived",
    )  # fmt: skip


def _run(context: JobContext) -> JobSummary:
    given = context.arguments
    names = topic_names(given.topics)
    pause_s = OptionReader({"--continuous": given.continuous or "0"}).duration_s("--continuous", 0)
    if given.batch_rows < 1 or given.batch_bytes < 1:
        raise OptionError("--batch-rows and --batch-bytes are at least 1")
    for name in names:
        context.broker.topic(name)  # an error before Spark is started
    files = files_to_write(context.spark, given.to)
    archivers = [TopicArchiver(context, files, name) for name in names]
    while True:
        for archiver in archivers:
            archiver.run()
        if given.continuous is None:
            return {"directory": given.to, "topics": [each.summary() for each in archivers]}
        time.sleep(pause_s)


class TopicArchiver:
    """Archives one topic. `at_step` is told each step that was done, for tests that end there."""

    def __init__(
        self,
        context: JobContext,
        files: ArchiveFiles,
        topic: str,
        at_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._files = files
        self._topic = topic
        self._directory = topic_directory(topic)
        self._at_step = at_step
        self._batches: list[BatchManifest] = []
        self._next: dict[int, int] = {}

    def run(self) -> None:
        """Archive what is there now, in as many batches as that takes. Raises JobError."""
        until = self._look_up().ends
        while self._archive_next(until):
            pass

    def summary(self) -> dict[str, Any]:
        """Return what was archived since the start."""
        return {
            "topic": self._topic,
            "batches": len(self._batches),
            "messages": sum(each.rows for each in self._batches),
            "files": sum(len(each.files) for each in self._batches),
            "bytes": sum(file.bytes for each in self._batches for file in each.files),
            "lost": sum(its.lost for each in self._batches for its in each.ranges),
            "next": {str(number): at for number, at in sorted(self._next.items())},
        }

    def _look_up(self) -> TopicsNow:
        bounds = self._context.broker.topic(self._topic, sizes=True)
        return TopicsNow({self._topic: bounds}, TopicSelection(names=(self._topic,)))

    def _archive_next(self, until: TopicOffsets) -> bool:
        """Archive the next batch up to offsets. Returns False if there is nothing more.

        Where losses are accepted, a batch that retention catches up with while it is written is
        planned anew. Raises JobError.
        """
        tries = LOSS_TRIES if self._context.arguments.accept_loss else 1
        for left in reversed(range(tries)):
            try:
                return self._archive_batch(until)
            except DataLossError as error:
                if not left:
                    raise JobError(
                        f"topic '{self._topic}': messages were deleted while they were archived. "
                        "Its retention must wait for the archive (x-retention-waits-for), or keep "
                        "messages for longer"
                    ) from error
        return False

    def _archive_batch(self, until: TopicOffsets) -> bool:
        """Archive a batch. Returns False if there is none. Raises JobError, DataLossError."""
        last, now = self._last_batch(), self._look_up()
        if last is not None:
            self._check_same_log(last, now)
        start = self._start(last, now)
        if last is None:  # the log may begin behind what was there when the run began
            ends = {
                number: max(at, start.get(self._topic, number) or 0)
                for number, at in until.by_topic[self._topic].items()
            }
            until = TopicOffsets({self._topic: ends}, until.logs)
        self._next = dict(start.by_topic[self._topic])
        self._commit_group(self._next, now)
        ranges = self._plan(start, now, until)
        if not ranges:
            return False
        number = 1 if last is None else last.batch + 1
        archived = self._without_lost(ranges, now)
        self._context.report(
            f"archiving batch {number} of topic '{self._topic}': "
            f"{sum(each.end - each.first for each in archived):,} offsets"
        )
        manifest = self._written(number, now, archived)
        self._files.write(
            f"{self._directory}/{MANIFESTS}/{manifest_name(number)}", manifest.to_bytes()
        )
        self._batches.append(manifest)
        self._next = manifest.next
        self._at_step("manifest")
        self._commit_group(self._next, now)
        self._at_step("group")
        return True

    def _last_batch(self) -> BatchManifest | None:
        try:
            numbers = manifest_numbers(self._files, self._topic)
            return read_manifest(self._files, self._topic, numbers[-1]) if numbers else None
        except (ManifestError, OSError) as error:
            raise JobError(f"the archive cannot be continued: {error}") from error

    def _check_same_log(self, last: BatchManifest, now: TopicsNow) -> None:
        vhost = self._context.connection.vhost
        if last.vhost != vhost:
            raise JobError(
                f"{self._files.root} has topic '{self._topic}' of virtual host '{last.vhost}', and "
                f"not of '{vhost}': use another directory"
            )
        if last.log != now.logs[self._topic]:
            raise JobError(
                f"topic '{self._topic}' was deleted and declared again since it was archived: its "
                "offsets are others now. Use another directory"
            )

    def _start(self, last: BatchManifest | None, now: TopicsNow) -> TopicOffsets:
        """Return where the next batch begins: a new archive where the log does."""
        partitions = now.partitions[self._topic]
        if last is None:
            places = {number: each.first for number, each in partitions.items()}
        else:
            places = {**dict.fromkeys(partitions, 0), **last.next}  # new ones begin with 0
        return TopicOffsets({self._topic: places}, now.logs)

    def _plan(self, start: TopicOffsets, now: TopicsNow, until: TopicOffsets) -> list[OffsetRange]:
        """Return the ranges of the next batch. Raises JobError."""
        given, topic = self._context.arguments, self._topic
        # Partitions that are gone have nothing more, and those that are newer wait.
        ends = {
            number: at
            for number, at in until.by_topic[topic].items()
            if number in now.partitions[topic]
        }
        end = TopicOffsets({topic: ends}, now.logs)
        try:
            end = limit_offsets(start, end, given.batch_rows)
            end = limit_offsets(start, end, given.batch_bytes, now.message_bytes())
            return ranges_between(start, end)
        except ValueError as error:
            raise JobError(
                f"the log ends before what is archived: {error}. Messages were lost by the broker; "
                "use another directory"
            ) from None

    def _without_lost(self, ranges: list[OffsetRange], now: TopicsNow) -> list[ArchivedRange]:
        """Return ranges with how much of each is lost. Raises JobError unless that is accepted."""
        archived = []
        for topic, number, first, end in ranges:
            bounds = now.get(topic, number)
            assert bounds is not None, "partitions that are gone are not planned"
            lost = max(0, min(bounds.first, end) - first)
            if lost and not self._context.arguments.accept_loss:
                raise JobError(
                    f"topic '{topic}', partition {number}: offsets {first} to {first + lost} were "
                    "deleted before they were archived. With --accept-loss the rest is archived; "
                    f'x-retention-waits-for: ["{self._context.arguments.group}"] makes a topic\'s '
                    "retention wait for the archive"
                )
            archived.append(ArchivedRange(number, first, end, lost))
        return archived

    def _written(
        self, number: int, now: TopicsNow, ranges: Sequence[ArchivedRange]
    ) -> BatchManifest:
        """Write the files of a batch, read them back, and return its manifest."""
        self._clean(number)
        self._at_step("cleaned")
        there = [each for each in ranges if each.first + each.lost < each.end]
        written = self._write(number, there, self._tasks(there, now))
        self._at_step("written")
        if self._look_up().logs != now.logs:
            raise JobError(f"topic '{self._topic}' was deleted and declared again meanwhile")
        facts = file_facts(
            self._context.spark, self._files, self._directory, self._directories(number)
        )
        self._check(number, written, facts)
        self._files.sync([f"{self._directory}/{each.path}" for each in facts])
        self._at_step("safe")
        return BatchManifest(
            topic=self._topic,
            vhost=self._context.connection.vhost,
            log=now.logs[self._topic],
            batch=number,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            next={**self._next, **{each.partition: each.end for each in ranges}},
            ranges=tuple(ranges),
            files=tuple(facts),
        )

    def _directories(self, number: int) -> list[str]:
        """Return the directories of a batch: one for each date."""
        batch = batch_directory(number)
        return [
            f"{date}/{batch}"
            for date in self._files.names(self._directory)
            if date.startswith("date=") and batch in self._files.names(f"{self._directory}/{date}")
        ]

    def _clean(self, number: int) -> None:
        """Delete what a run that was ended has left of a batch."""
        for directory in self._directories(number):
            self._files.delete(f"{self._directory}/{directory}")

    def _tasks(self, ranges: Sequence[ArchivedRange], now: TopicsNow) -> int:
        """Return how many files a batch shall have, about."""
        weights = now.message_bytes()
        counts = {each.partition: each.end - each.first - each.lost for each in ranges}
        size = sum(
            count * weights.get((self._topic, number), 0) for number, count in counts.items()
        )
        return max(-(-sum(counts.values()) // TASK_ROWS), int(size) // TASK_BYTES)

    def _write(self, number: int, ranges: Sequence[ArchivedRange], tasks: int) -> int:
        """Write the files of a batch in about so many tasks. Returns the number of rows."""
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import Observation  # noqa: PLC0415
        from pyspark.sql import functions as f  # noqa: PLC0415

        if not ranges:
            return 0
        places: dict[str, dict[str, int]] = defaultdict(dict)
        for each in ranges:
            places["startingOffsets"][str(each.partition)] = each.first + each.lost
            places["endingOffsets"][str(each.partition)] = each.end
        spark, counted = self._context.spark, Observation()
        table = (
            spark.read.format("leveret")
            .options(**self._context.source_options(), includeRecord="true", includeHeaders="true")
            .option("assign", json.dumps({self._topic: [each.partition for each in ranges]}))
            .options(**{side: json.dumps({self._topic: at}) for side, at in places.items()})
            .option("minPartitions", str(tasks))
            .load()
            .select(*COLUMNS)
            .withColumn("date", f.date_format("timestamp", "yyyy-MM-dd"))
            .withColumn("batch", f.lit(f"{number:08}"))
            .observe(counted, f.count(f.lit(1)).alias("rows"))
        )
        writer = table.write.mode("append").partitionBy("date", "batch")
        writer = writer.option("compression", "zstd")
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        try:
            writer.parquet(f"{self._files.root}/{self._directory}")
        except PySparkException as error:
            if DataLossError.__name__ in str(error):  # of a worker: only its text comes here
                raise DataLossError(str(error)) from error
            raise
        return counted.get["rows"]

    def _check(self, number: int, written: int, facts: Sequence[ArchivedFile]) -> None:
        """Raise JobError unless the files have what was written."""
        found = sum(each.rows for each in facts)
        if found != written or len({each.path for each in facts}) != len(facts):
            raise JobError(
                f"batch {number} of topic '{self._topic}' has {found} messages in its files, and "
                f"{written} were written: does another job write to {self._files.root}?"
            )

    def _commit_group(self, places: dict[int, int], now: TopicsNow) -> None:
        """Move the consumer group on: retention may delete what is archived. Raises JobError."""
        group = self._context.arguments.group
        there = {number: at for number, at in places.items() if now.get(self._topic, number)}
        for pause_s in COMMIT_PAUSES_S:
            failure = self._committed(group, there)
            if failure is None:
                return
            time.sleep(pause_s)
        raise JobError(
            f"group '{group}' of topic '{self._topic}' cannot be moved on: {failure}. The archive "
            "is complete up to there; run the job again"
        ) from failure

    def _committed(self, group: str, places: dict[int, int]) -> Exception | None:
        """Commit offsets, one try. Returns why it has failed, None if it has not."""
        try:
            self._context.broker.commit_offsets(self._topic, group, places)
        except (OSError, http.client.HTTPException, ReadRefusedError) as error:
            return error
        return None


JOB: Final = SparkJob("archive topics in Parquet files, batch by batch", _add_arguments, _run)
