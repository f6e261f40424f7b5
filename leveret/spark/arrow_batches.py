"""Arrow record batches made of the chunks of a range read.

Columns that a chunk has as they are become arrays without being copied; what is made of content
headers is made by compiled code (leveret.spark.property_columns).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from leveret.spark.property_columns import PRIORITY, STRINGS, PropertyColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.range_reader import ChunkColumn, ReadChunk
    from leveret.spark.body_columns import BodyColumns, DecodedColumns

__all__ = ["BatchMaker"]

LOG_APPEND_TIME: Final = 1  # a timestamp's type, as in Kafka: the broker has set it
MICROSECONDS: Final = pa.scalar(1000, pa.int64())  # of a millisecond


class BatchMaker:
    """Makes record batches with the columns of `schema`, of at most `rows_max` rows.

    With `bodies`, the column `value` has what bodies are decoded to.
    """

    def __init__(
        self, schema: pa.Schema, topic: str, rows_max: int, bodies: BodyColumns | None = None
    ) -> None:
        self._schema = schema
        self._topic = topic
        self._rows_max = rows_max
        self._bodies = bodies
        self._properties = [name for name in schema.names if name in STRINGS or name == PRIORITY]
        self._has_headers = "headers" in schema.names

    def batches(self, chunk: ReadChunk, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk whose offsets are below `end`.

        Raises MalformedBodyError, if malformed bodies are to end the query.
        """
        offsets = chunk.columns["offset"].values
        rows = chunk.rows
        if rows and offsets[rows - 1] >= end:
            rows = bisect_left(offsets, end, hi=rows)
        if not rows:
            return
        properties = self._unpack(chunk, rows)
        decoded = self._decode(chunk, rows)
        made = {} if decoded is None else decoded.arrays
        arrays = [
            made[field.name] if field.name in made else self._array(field, chunk, properties, rows)
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if decoded is not None and decoded.kept is not None:
            batch = batch.filter(decoded.kept)
        for first in range(0, batch.num_rows, self._rows_max):
            yield batch.slice(first, self._rows_max)

    def _decode(self, chunk: ReadChunk, rows: int) -> DecodedColumns | None:
        if self._bodies is None:
            return None
        bodies = _bytes(chunk.columns["value"], rows, pa.binary())
        offsets = chunk.columns["offset"].values

        def place(row: int) -> str:
            return f"topic '{self._topic}', partition {chunk.partition}, offset {offsets[row]}"

        return self._bodies.decode(bodies, place)

    def _unpack(self, chunk: ReadChunk, rows: int) -> PropertyColumns | None:
        if not self._properties and not self._has_headers:
            return None
        header = chunk.columns["header"]
        assert header.table is not None, "a column of bytes has a table"
        columns = PropertyColumns(self._properties, self._has_headers)
        columns.add(header.values, header.table, 0, rows)
        return columns

    def _array(
        self, field: pa.Field, chunk: ReadChunk, properties: PropertyColumns | None, rows: int
    ) -> pa.Array:
        """Return one column of a batch."""
        name = field.name
        constants = {
            "topic": self._topic,
            "partition": chunk.partition,
            "timestampType": LOG_APPEND_TIME,
        }
        if name in constants:
            return pa.repeat(pa.scalar(constants[name], field.type), rows)
        if name == "timestamp":
            times = _numbers(chunk.columns[name], rows, pa.int64())
            return pc.multiply(times, MICROSECONDS).view(field.type)
        if properties is not None and name == "headers":
            return _headers(properties, rows, field.type)
        if properties is not None and (name in properties.strings or name == PRIORITY):
            made = properties.strings.get(name, properties.priorities)
            return pa.Array.from_buffers(field.type, rows, _wrapped(made.buffers), made.nulls)
        column = chunk.columns[name]
        make = _numbers if column.table is None else _bytes
        return make(column, rows, field.type)


def _wrapped(buffers: list[object]) -> list[pa.Buffer]:
    return [pa.py_buffer(each) for each in buffers]


def _numbers(column: ChunkColumn, rows: int, of: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(of, rows, [None, pa.py_buffer(column.values)], 0)


def _bytes(column: ChunkColumn, rows: int, of: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(column.table), pa.py_buffer(column.values)]
    return pa.Array.from_buffers(of, rows, buffers, 0)


def _headers(properties: PropertyColumns, rows: int, of: pa.DataType) -> pa.Array:
    keys, values = properties.keys, properties.values
    entry = of.value_type
    arrays = [
        pa.Array.from_buffers(kind.type, keys.rows, _wrapped(column.buffers), column.nulls)
        for kind, column in zip(entry, (keys, values), strict=True)
    ]
    entries = pa.StructArray.from_arrays(arrays, fields=list(entry))
    buffers = [None, pa.py_buffer(properties.ends)]
    return pa.Array.from_buffers(of, rows, buffers, 0, children=[entries])
