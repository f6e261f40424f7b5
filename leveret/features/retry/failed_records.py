"""Records that failed, and their copies with the history of their failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.queues.discarding import BatchSlice
from leveret.ports.contents import with_properties
from leveret.ports.records import BatchBuilder, RecordFlag
from leveret.ports.tables import encode_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FailedRecord", "exhausted", "failed_records"]


class FailedRecord(NamedTuple):
    """Failed record, with its decoded fields."""

    offset: int
    flags: int
    time: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes


def failed_records(part: BatchSlice) -> Iterator[FailedRecord]:
    """Yield the records of a slice."""
    batch, first, stop = part
    if stop - first == 1:
        yield FailedRecord(first, *batch.record(first))
        return
    for record in batch.records():
        if first <= record[0] < stop:
            yield FailedRecord(*record)


def exhausted(record: FailedRecord, headers: Mapping[str, object]) -> BatchSlice:
    """Return a copy of a record with other headers, to be dead-lettered."""
    builder = BatchBuilder()
    builder.add(
        record.flags | RecordFlag.HAS_HEADERS,
        record.time,
        record.exchange,
        record.routing_key,
        with_properties(record.header, table=encode_table(dict(headers))),
        record.body,
    )
    return BatchSlice(builder.seal(record.offset), record.offset, record.offset + 1)
