"""Bodies of JSON as Arrow values: in blocks where they are as most are, one by one where not.

pyarrow parses a block of bodies at once, without an object for each, but it is made for files of
one writer: it does not tell bodies from each other, one wrong body fails the block, and a document
that is no object ends the process. So it is only given bodies that are plain, one object each
(leveret.spark.json_shape), and only fields that it reads as leveret.spark.json_rows does. A block
that it refuses is halved until few bodies are left, which are read one by one. What becomes of a
body never depends on its neighbours.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as kinds

from leveret.spark.decoded_bodies import DecodedBodies
from leveret.spark.json_rows import NESTING_MAX, JsonRowReader
from leveret.spark.json_shape import plain_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JsonDecoder"]

# A call of the parser costs as much as so many rows one by one, in the worst case about.
BLOCK_ROWS_MIN: Final = 256


class JsonDecoder:
    """Decodes bodies to values of an Arrow type. `zone` is that of times that do not name one.

    Raises SourceError if the type has a part that is not read of JSON.
    """

    def __init__(self, wanted: pa.DataType, zone: dt.tzinfo = dt.UTC) -> None:
        self._type = wanted
        self._rows = JsonRowReader(wanted, zone)
        self._block_schema = _block_schema(wanted, zone)

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        """Return the values; those of malformed bodies are null, or what could be read."""
        plain = b""
        if self._block_schema is not None:
            _, table, values = bodies.buffers()
            places = memoryview(table).cast("i")[bodies.offset :]
            data = memoryview(b"" if values is None else values).cast("B")
            plain = plain_objects(data, places, len(bodies), NESTING_MAX)
        malformed: dict[int, str] = {}
        pieces = list(self._pieces(bodies, plain, 0, malformed))
        values = pa.concat_arrays(pieces) if pieces else pa.array([], self._type)
        return DecodedBodies(values, malformed)

    def _pieces(
        self, bodies: pa.Array, plain: bytes, first: int, malformed: dict[int, str]
    ) -> Iterator[pa.Array]:
        """Yield the values of bodies, in order; `first` is the first one's row."""
        rows = len(bodies)
        if rows <= BLOCK_ROWS_MIN or self._block_schema is None:
            yield self._one_by_one(bodies, first, malformed)
            return
        if 0 not in plain[first : first + rows]:
            block = self._parse(bodies)
            if block is not None:
                yield block
                return
        half = rows // 2
        yield from self._pieces(bodies[:half], plain, first, malformed)
        yield from self._pieces(bodies[half:], plain, first + half, malformed)

    def _one_by_one(self, bodies: pa.Array, first: int, malformed: dict[int, str]) -> pa.Array:
        values = []
        for row, body in enumerate(bodies, first):
            value, problem = self._rows.read(body.as_py())
            values.append(value)
            if problem is not None:
                malformed[row] = problem
        return pa.array(values, self._type)

    def _parse(self, bodies: pa.Array) -> pa.Array | None:
        """Return the values of plain bodies, or None if one of them is not read in a block."""
        ends = pa.array([0, len(bodies)], pa.int32())
        joined = pc.binary_join(pa.ListArray.from_arrays(ends, bodies), b"\n")
        text = joined[0].as_buffer()
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1)
        parsing = pyarrow.json.ParseOptions(
            explicit_schema=self._block_schema,
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )
        try:
            joined.cast(pa.string())  # the parser does not look whether it is UTF-8
            table = pyarrow.json.read_json(pa.BufferReader(text), reading, parsing)
            if table.num_rows != len(bodies):
                return None
            (block,) = table.to_struct_array().chunks
            return block.cast(self._type)
        except pa.ArrowException:
            return None


def _block_schema(wanted: pa.DataType, zone: dt.tzinfo) -> pa.Schema | None:
    """Return the schema with which a block of bodies is parsed, if there is one."""
    if not kinds.is_struct(wanted) or not wanted.num_fields:
        return None
    types = [_block_type(each.type, zone) for each in wanted]
    if None in types or len({each.name for each in wanted}) < len(types):
        return None
    return pa.schema([pa.field(part.name, kind) for part, kind in zip(wanted, types, strict=True)])


def _block_type(wanted: pa.DataType, zone: dt.tzinfo) -> pa.DataType | None:
    """Return the type that the parser reads and that is cast to the wanted one, if there is one."""
    if kinds.is_struct(wanted):
        schema = _block_schema(wanted, zone)
        return None if schema is None else pa.struct(list(schema))
    if kinds.is_list(wanted):
        part = _block_type(wanted.value_type, zone)
        return None if part is None else pa.list_(wanted.value_field.with_type(part))
    if kinds.is_timestamp(wanted) and wanted.tz is not None and zone is not dt.UTC:
        return None
    for is_kind, read_as in BLOCK_TYPES:
        if is_kind(wanted):
            return read_as(wanted)
    return None


def _same(wanted: pa.DataType) -> pa.DataType:
    return wanted


def _time_type(wanted: pa.DataType) -> pa.DataType:
    return (
        pa.string() if wanted.tz is None else wanted
    )  # the parser drops offsets, and casts do not


BLOCK_TYPES: Final = (
    (kinds.is_string, _same),
    (kinds.is_boolean, _same),
    (kinds.is_signed_integer, _same),
    (kinds.is_timestamp, _time_type),
    # Rounded once, as one by one.
    (kinds.is_floating, lambda _: pa.float64()),
    # The parser does not look at the precision.
    (kinds.is_decimal128, lambda wanted: pa.decimal128(38, wanted.scale)),
    # The parser takes numbers.
    (kinds.is_date32, lambda _: pa.string()),
)
