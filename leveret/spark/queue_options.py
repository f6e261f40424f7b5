"""Options of a stream that consumes a queue: `consume` in place of `subscribe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leveret.spark.connection_options import read_connection
from leveret.spark.option_reader import OptionError, OptionReader
from leveret.spark.read_options import BATCH_ROWS, read_columns
from leveret.spark.value_options import read_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.spark.connection_options import ConnectionOptions
    from leveret.spark.read_options import ColumnsWanted
    from leveret.spark.value_formats import ValueOptions

__all__ = ["CONSUME", "QueueOptions", "consumes", "read_queue_options", "refuse_batch"]

CONSUME: Final = "consume"
MESSAGES_PER_TRIGGER: Final = 100_000  # what a batch has is withheld from the queue's consumers
LEASE_TIMEOUT_S: Final = 600.0
LEASE_TIMEOUT_S_MIN: Final = 1.0
LEASE_TIMEOUT_S_MAX: Final = 24 * 3600.0
# Options of topics, which are read by offset and lose nothing by it.
OF_TOPICS: Final = (
    *("subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxRecordsPerPartition", "failOnDataLoss", "group", "filterTags", "filter"),
)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a stream that consumes a queue. A limit of 0 is none."""

    connection: ConnectionOptions
    queue: str
    max_messages: int
    max_bytes: int
    min_partitions: int
    batch_rows: int
    lease_timeout_ms: int
    columns: ColumnsWanted
    values: ValueOptions


def consumes(options: Mapping[str, str]) -> bool:
    """Whether these options consume a queue."""
    return any(name.lower() == CONSUME for name in options)


def refuse_batch() -> OptionError:
    """Return the error for a table, which has no end of a batch at which messages are settled."""
    return OptionError(
        f"option '{CONSUME}' is for streams (spark.readStream), which settle messages once they "
        "are written; with trigger(availableNow=True) a stream takes what is there, and ends"
    )


def read_queue_options(options: Mapping[str, str]) -> QueueOptions:
    """Return the options of a stream that consumes a queue. Raises OptionError."""
    given = OptionReader(options)
    queue = given.needed(CONSUME, "the name of a queue")
    for name in OF_TOPICS:
        if given.is_given(name):
            raise OptionError(
                f"option '{name}' is for topics that are read, and option '{CONSUME}' takes the "
                "messages of a queue away: one of them must do"
            )
    timeout_s = given.duration_s("leaseTimeout", LEASE_TIMEOUT_S)
    if not LEASE_TIMEOUT_S_MIN <= timeout_s <= LEASE_TIMEOUT_S_MAX:
        raise OptionError(f"option 'leaseTimeout' is {timeout_s:g} s, and must be from 1s to 24h")
    found = QueueOptions(
        connection=read_connection(given),
        queue=queue,
        max_messages=given.integer("maxOffsetsPerTrigger", MESSAGES_PER_TRIGGER),
        max_bytes=given.integer("maxBytesPerTrigger", 0),
        min_partitions=given.integer("minPartitions", 0, high=100_000),
        batch_rows=given.integer("batchRows", BATCH_ROWS, 1, 1_000_000),
        lease_timeout_ms=int(timeout_s * 1000),
        columns=read_columns(given),
        values=read_values(given),
    )
    given.end()
    return found
