"""Streaming reads: `spark.readStream.format("leveret")`.

Spark calls an instance of this on the driver, in a process of its own, and copies of it in its
workers. The offsets of a micro-batch are in the checkpoint before it is read: after a crash it is
read again with the same ones.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from leveret.spark.archive_reader import topics_of
from leveret.spark.errors import DataLossError
from leveret.spark.group_progress import GroupProgress
from leveret.spark.offsets import TopicOffsets, limit_offsets, ranges_between
from leveret.spark.partition_reader import plan_tasks, read_partition
from leveret.spark.places import (
    check_filters,
    check_present,
    look_up,
    offsets_at,
    start_of_new,
)
from leveret.spark.servers import servers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leveret.spark.places import TopicsNow
    from leveret.spark.read_options import ReadOptions
    from leveret.spark.servers import BrokerServers

__all__ = ["LeveretStreamReader"]

logger = logging.getLogger(__name__)

# The default trigger asks for the latest offsets all the time, while there is nothing new.
POLL_S: Final = 0.1
ROWS_UNLIMITED: Final = (1 << 63) - 1  # Spark's Trigger.Once is told by ReadAllAvailable


class LeveretStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics in micro-batches, each up to a limit."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._has_begun = False
        self._has_checked_filters = False
        self._polled: tuple[float, TopicsNow] | None = None
        self._seen: TopicOffsets | None = None  # the ends, as they were last
        self._until: TopicOffsets | None = None  # with AvailableNow: where the query ends
        self._warned = ""  # of which loss the log was told last
        self._batch_s = time.monotonic()  # when the last batch was planned
        self._progress = GroupProgress(options.group) if options.group else None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins (see pyspark). Raises SourceError."""
        if self._initial is None:  # it is asked for twice
            start = offsets_at(topics_of(self._options), self._options, self._options.starting)
            self._initial = start.to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch (see pyspark)."""
        count = self._options.max_offsets
        return ReadMaxRows(count or ROWS_UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now: the query reads up to that, and ends (see pyspark)."""
        self._until = self._now().ends

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all partitions, for the query's progress (see pyspark)."""
        return None if self._seen is None else self._seen.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends (see pyspark). Raises SourceError.

        The first one of a query is empty: its end, which Spark writes down, is where the query
        begins. Where a new query begins is not written down otherwise, and after a crash in the
        first batch it would begin elsewhere. Trigger.Once has no second batch.
        """
        if start == self._initial and not self._has_begun and isinstance(limit, ReadMaxRows):
            self._has_begun = True
            return start
        begun, now = TopicOffsets.from_json(start), self._now()
        if self._progress is not None:
            self._progress.note(self._servers, begun)
        self._check_present(begun, now)
        first, end = start_of_new(begun, now), now.ends
        self._seen = end
        if self._until is not None:
            end = _not_beyond(end, self._until, first)
        end = _not_before(end, first)
        if self._waits_for_more(first, end):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(first, end, limit.max_rows)
            if self._options.max_bytes:
                end = limit_offsets(first, end, self._options.max_bytes, now.message_bytes())
        self._batch_s = time.monotonic()
        return end.to_json()

    def _check_present(self, start: TopicOffsets, now: TopicsNow) -> None:
        try:
            check_present(start, now, self._seen)
        except DataLossError as error:
            if self._options.fails_on_data_loss:
                raise DataLossError(
                    f"{error}. With failOnDataLoss=false the rest is read"
                ) from None
            if str(error) != self._warned:  # a query that waits is asked all the time
                self._warned = str(error)
                logger.warning("%s; the rest is read", error)

    def _waits_for_more(self, start: TopicOffsets, end: TopicOffsets) -> bool:
        """Whether there are fewer messages than a batch shall have, and it has not waited long."""
        wanted = self._options.min_offsets
        if not wanted or self._until is not None:
            return False
        count = sum(each.end - each.first for each in ranges_between(start, end))
        return count < wanted and time.monotonic() - self._batch_s < self._options.max_delay_s

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch (see pyspark). Raises SourceError."""
        first, stop = TopicOffsets.from_json(start), TopicOffsets.from_json(end)
        if start == self._initial:
            stop = _not_before(stop, first)  # the first batch, again: it is empty
        is_known = all(first.get(topic, number) is not None for topic, number, _ in stop)
        if not is_known or not all(first.is_same_log(topic, stop) for topic in stop.logs):
            first = start_of_new(first, self._now())
        return plan_tasks(ranges_between(first, stop), stop.logs, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, in a worker (see pyspark). Raises SourceError."""
        return read_partition(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint is the truth (see pyspark)."""

    def stop(self) -> None:
        """Close the connection (see pyspark)."""
        self._servers.close()

    @property
    def _servers(self) -> BrokerServers:
        return servers_of(self._options.connection)

    def _now(self) -> TopicsNow:
        """Return the partitions as they are, or were a moment ago."""
        if self._polled is None or time.monotonic() - self._polled[0] > POLL_S:
            options = self._options
            found = look_up(topics_of(options), options.topics, sizes=bool(options.max_bytes))
            if not self._has_checked_filters:
                self._has_checked_filters = check_filters(
                    self._servers, found.ends, options.filters
                )
            self._polled = (time.monotonic(), found)
        return self._polled[1]


def _not_beyond(end: TopicOffsets, until: TopicOffsets, first: TopicOffsets) -> TopicOffsets:
    """Return ends up to other ones; partitions that these do not have are not read at all."""
    by_topic = {
        topic: {
            number: first.by_topic[topic][number]
            if (last := until.get(topic, number)) is None
            else min(offset, last)
            for number, offset in places.items()
        }
        for topic, places in end.by_topic.items()
    }
    return TopicOffsets(by_topic, end.logs)


def _not_before(end: TopicOffsets, first: TopicOffsets) -> TopicOffsets:
    """Return ends that are in no partition before where reading begins."""
    by_topic = {
        topic: {
            number: offset if (begin := first.get(topic, number)) is None else max(offset, begin)
            for number, offset in places.items()
        }
        for topic, places in end.by_topic.items()
    }
    return TopicOffsets(by_topic, end.logs)
