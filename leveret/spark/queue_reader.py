"""Streams that consume a queue: `spark.readStream.format("leveret").option("consume", …)`.

A micro-batch is a batch lease of the queue. Spark asks for the next one when the last one was
written by the sink: then that is settled in the broker. After a crash Spark reads an unfinished
batch once more, and its lease still has the same messages, or leases them again.
"""

from __future__ import annotations

import http.client
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from leveret.range_reader import LeasedOffsets, LeaseLostError, LeaseName, ReadRefusedError
from leveret.spark.arrow_batches import BatchMaker
from leveret.spark.offsets import OffsetRange
from leveret.spark.queue_batches import LeasedRanges, QueueBatch, divide_lease
from leveret.spark.schema import columns_read
from leveret.spark.servers import servers_of
from leveret.spark.value_columns import body_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leveret.spark.queue_options import QueueOptions
    from leveret.spark.servers import BrokerServers

__all__ = ["LeasedPartition", "LeveretQueueReader", "read_leased"]

logger = logging.getLogger(__name__)

# The default trigger asks for the next batch all the time: the broker waits while there is none.
WAIT_MS: Final = 200
MESSAGES_MAX: Final = 100_000_000  # the most that a lease can be asked for


class LeasedPartition(InputPartition):
    """A part of a lease, which one task reads."""

    def __init__(self, name: LeaseName, log: str, part: LeasedRanges) -> None:
        super().__init__((tuple(name), log, tuple(part)))

    @property
    def name(self) -> LeaseName:
        """The lease."""
        return LeaseName(*self.value[0])

    @property
    def log(self) -> str:
        """Number of the queue's log."""
        return str(self.value[1])

    @property
    def part(self) -> LeasedRanges:
        """The offsets."""
        return LeasedRanges(*self.value[2])


class LeveretQueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Consumes a queue in micro-batches, each leased, and settled when it was written."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._has_begun = False
        # Whether an earlier run of the query may have leased messages which Spark knows nothing of.
        self._may_have_leased = True
        self._settled: int | None = None  # number of the last lease that was settled
        self._planned: int | None = None  # number of the last lease that this run has planned
        self._holder = ""
        self._left: int | None = None  # with AvailableNow: messages until the query ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a batch with nothing, of a new holder (see pyspark)."""
        if self._initial is None:  # it is asked for twice
            self._initial = QueueBatch(uuid.uuid4().hex).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch (see pyspark)."""
        return ReadMaxRows(self._options.max_messages or MESSAGES_MAX)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how many messages are ready: the query takes so many, and ends (see pyspark)."""
        self._left = self._servers.ready(self._options.queue)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settle what was written, and lease the next micro-batch (see pyspark).

        The first batch of a query is empty: its end, which Spark writes down, has the name of the
        holder, by which leases are found again after a crash. Trigger.Once has no second batch.
        Raises SourceError.
        """
        if start == self._initial and not self._has_begun and isinstance(limit, ReadMaxRows):
            self._has_begun, self._may_have_leased = True, False
            return start
        written = QueueBatch.from_json(start)
        self._settle(written)
        messages = limit.max_rows if isinstance(limit, ReadMaxRows) else MESSAGES_MAX
        if self._left is not None and not self._may_have_leased:
            messages = min(messages, self._left)
        if not messages:
            self._release()  # nobody may tell it that the query has ended
            return start
        batch = self._lease(QueueBatch(written.holder, written.number + 1), messages)
        count = batch.leased.messages
        if self._left is not None:
            self._left = self._left_after(count, self._left)
        if self._left == 0 and not count:
            self._release()
        return batch.to_json() if count else start

    def _left_after(self, leased: int, left: int) -> int:
        """Return how many messages are left to lease, when so many of `left` were leased now.

        What an earlier run of the query had leased was not ready when this one began, and it is
        leased first: so the rest is counted after that.
        """
        if not leased:
            return 0
        if self._may_have_leased:
            self._may_have_leased = False
            return self._servers.ready(self._options.queue)
        return max(0, left - leased)

    def _settle(self, written: QueueBatch) -> None:
        """Settle a batch that the sink has written, and all before it."""
        self._holder = written.holder
        if written.number == self._settled or not written.leased.ranges:
            return
        queue = self._options.queue
        try:
            told = self._servers.settle(written.name(queue), written.leased)
        except LeaseLostError as error:
            logger.warning("batch %d is not settled: %s", written.number, error.reason)
        else:
            # What an earlier run of the query has settled itself is missing as well.
            if told.missing and written.number == self._planned:
                logger.warning(
                    "%d messages of queue '%s' had gone back to it before they were settled, and "
                    "others have taken them as well: see option 'leaseTimeout'",
                    *(told.missing, queue),
                )
        self._settled = written.number

    def _lease(self, batch: QueueBatch, messages: int) -> QueueBatch:
        """Return a batch with the next messages, without any if there are none."""
        options = self._options
        wish = {
            "messages_max": min(messages, MESSAGES_MAX),
            "bytes_max": options.max_bytes or None,
            "wait_ms": WAIT_MS if self._left is None else 0,
            "idle_ms": options.lease_timeout_ms,
        }
        leased = self._servers.lease(batch.name(options.queue), wish)
        return QueueBatch(batch.holder, batch.number, leased)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a micro-batch (see pyspark). Raises SourceError.

        Its messages are leased already, unless it is read again after a crash: then they are leased
        once more. What others have taken meanwhile is read all the same, unless they have settled
        it: so everything that is settled for this batch later was in it.
        """
        batch, queue = QueueBatch.from_json(end), self._options.queue
        if start == end or not batch.leased.ranges:
            return []
        self._planned = batch.number
        name, timeout_ms = batch.name(queue), self._options.lease_timeout_ms
        leased = _lease_again(self._servers, name, batch.leased, timeout_ms)
        return [
            LeasedPartition(name, batch.leased.log, part)
            for part in divide_lease(leased, self._options.min_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part, in a worker (see pyspark). Raises SourceError.

        Where there are no parts at all, Spark asks for a partition of its own, which has none.
        """
        if isinstance(partition, LeasedPartition):
            yield from read_leased(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next batch settles this one (see pyspark)."""

    def stop(self) -> None:
        """Close the connection (see pyspark)."""
        self._servers.close()

    def _release(self) -> None:
        """End the holder, one try: nothing is leased that was not written."""
        if self._holder:
            try:
                self._servers.release(self._options.queue, self._holder)
            except (OSError, http.client.HTTPException, ReadRefusedError) as error:
                logger.info("the broker notes later that the query has ended: %s", error)

    @property
    def _servers(self) -> BrokerServers:
        return servers_of(self._options.connection)


def read_leased(
    partition: LeasedPartition, options: QueueOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part of a lease. Raises SourceError.

    When the broker does not know the lease any more, what is left of the part is leased again.
    """
    servers, names = servers_of(options.connection), columns_read(columns.names)
    name, part = partition.name, partition.part
    schema = to_arrow_schema(columns, timezone="UTC")
    bodies = body_columns(columns, options.values)
    maker = BatchMaker(schema, name.queue, options.batch_rows, bodies)
    rest = OffsetRange(name.queue, part.partition, part.ranges[0][0], part.ranges[-1][1])
    left: Sequence[tuple[int, int]] = part.ranges
    while left:
        try:
            for chunk in servers.leased_chunks(name, rest, names):
                if chunk.missing:
                    logger.warning("%d messages of %s cannot be read", chunk.missing, rest)
                rest = rest._replace(first=chunk.next_offset)
                yield from maker.batches(chunk, rest.end)
        except LeaseLostError:
            wanted = LeasedOffsets(partition.log, {part.partition: _from(left, rest.first)})
            found = _lease_again(servers, name, wanted, options.lease_timeout_ms)
            left = found.ranges.get(part.partition, ())
        else:
            return


def _from(ranges: Sequence[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """Return what ranges have from an offset on."""
    return [(max(first, offset), end) for first, end in ranges if end > offset]


def _lease_again(
    servers: BrokerServers, name: LeaseName, wanted: LeasedOffsets, idle_ms: int
) -> LeasedOffsets:
    """Lease what a batch had, and warn of what others have settled. Raises SourceError."""
    try:
        found = servers.lease_again(name, wanted, idle_ms)
    except LeaseLostError as error:
        logger.warning("batch %d cannot be read again: %s", name.number, error.reason)
        return LeasedOffsets(wanted.log)
    if found.missing:
        logger.warning(
            "%d messages of batch %d went back to queue '%s', and others have settled them since",
            *(found.missing, name.number, name.queue),
        )
    return found
