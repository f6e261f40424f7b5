"""Messages made of the rows that a query writes: record batches become chunks to be staged.

    value, topic or exchange and routing_key          as they lie
    key, headers, tags, delay, properties             content headers (HeaderPacker)

Columns have the names that a read has; those that only a read can have are passed over.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from leveret.batch_writer import PERSISTENT_HEADER, RowBytes, pack_chunk, repeated
from leveret.spark.content_headers import HeaderPacker, ListColumn, NumberColumn, TextColumn
from leveret.spark.errors import SourceError
from leveret.spark.property_columns import STRINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.spark.content_headers import ArrowColumn
    from leveret.spark.write_options import WriteOptions

__all__ = ["MessageColumns"]

CHUNK_BYTES: Final = 1 << 20  # of values, about
CHUNK_BYTES_MAX: Final = 8 << 20  # of all columns, unless it is one row
SHORT_STRING_MAX: Final = 255
MICROSECONDS: Final = 1000  # of a millisecond

TEXTS: Final = (StringType, BinaryType)
INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
# Of each column: the types that it may have, and how they are told in an error.
WRITTEN: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": (TEXTS, "binary or string"),
    "key": (TEXTS, "binary or string"),
    "topic": ((StringType,), "string"),
    "exchange": ((StringType,), "string"),
    "routing_key": ((StringType,), "string"),
    "headers": ((ArrayType, MapType), "array<struct<key string, value binary>> or a map"),
    "tags": ((ArrayType, StringType), "array<string> or string"),
    "delay": (INTEGERS, "int or long: milliseconds"),
    "deliver_at": ((TimestampType,), "timestamp"),
    "priority": (INTEGERS, "int"),
    "header": ((BinaryType,), "binary"),
    **dict.fromkeys(STRINGS, ((StringType,), "string")),
}
READ_ONLY: Final = frozenset({"partition", "offset", "timestamp", "timestampType", "flags"})


class MessageColumns:
    """Columns of the rows that a query writes, checked once. Raises SourceError."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        self._names = [each.name for each in schema if each.name not in READ_ONLY]
        for field in schema:
            _check_column(field.name, field.dataType)
        if "value" not in self._names:
            raise SourceError("the rows have no column 'value': it is the body of the message")
        self._key_column = self._check_destination()
        # With a content header as it was read, there is nothing left to be made one of.
        made = () if "header" in self._names else HEADER_COLUMNS
        self._made_of = [name for name in self._names if name in made]

    def _check_destination(self) -> str | None:
        """Return the column with the routing key, None if all rows have the same one."""
        options, names = self._options, self._names
        if options.exchange is None and {"topic", "exchange"} <= set(names):
            raise SourceError(
                "the rows have both columns 'topic' and 'exchange': give the option 'topic' or "
                "'exchange', or drop one of them"
            )
        if options.exchange is None and "topic" in names and options.routing_key is None:
            return "topic"
        if options.exchange is None and "exchange" not in names:
            raise SourceError(
                "where the rows go is not known: give the option 'topic', or 'exchange', or a "
                "column of that name"
            )
        if options.routing_key is not None:
            return None
        if "routing_key" not in names:
            raise SourceError(
                "an exchange needs routing keys: give the option 'routingKey' or the column "
                "'routing_key'"
            )
        return "routing_key"

    def chunks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Yield chunks with the rows of a batch, in order. Raises SourceError."""
        columns = {name: batch.column(name) for name in self._names}
        values = _bytes(columns["value"])
        table = memoryview(values.buffers()[1]).cast("B").cast("i")
        table = table[values.offset : values.offset + batch.num_rows + 1]
        packer = self._packer(columns)
        first = 0
        while first < batch.num_rows:
            stop = max(bisect_right(table, table[first] + CHUNK_BYTES) - 1, first + 1)
            yield from self._packed(columns, packer, first, stop)
            first = stop

    def _packer(self, columns: dict[str, pa.Array]) -> HeaderPacker | None:
        """Return what makes content headers, None where none must be made."""
        if not self._made_of and self._options.persistent:
            return None
        made = {name: _made_of(name, columns[name]) for name in self._made_of}
        return HeaderPacker(made, persistent=self._options.persistent)

    def _packed(
        self, columns: dict[str, pa.Array], packer: HeaderPacker | None, first: int, stop: int
    ) -> Iterator[bytes]:
        """Yield rows `first` to `stop` as chunks, of which none is too large."""
        rows = {name: each.slice(first, stop - first) for name, each in columns.items()}
        try:
            chunk = pack_chunk(
                stop - first,
                exchange=self._exchange(rows, stop - first),
                routing_key=self._routing_key(rows, stop - first),
                header=self._header(rows, packer, first, stop),
                value=_row_bytes(rows["value"]),
            )
        except ValueError as error:
            raise SourceError(f"a row cannot be written: {error}") from None
        if len(chunk) <= CHUNK_BYTES_MAX or stop - first == 1:
            yield chunk
            return
        middle = (first + stop) // 2
        yield from self._packed(columns, packer, first, middle)
        yield from self._packed(columns, packer, middle, stop)

    def _exchange(self, rows: dict[str, pa.Array], count: int) -> RowBytes:
        if self._options.exchange is not None:
            return repeated(self._options.exchange.encode(), count)
        if self._key_column == "topic":
            return repeated(b"", count)
        return _short_bytes("exchange", rows["exchange"])

    def _routing_key(self, rows: dict[str, pa.Array], count: int) -> RowBytes:
        if self._key_column is not None:
            return _short_bytes(self._key_column, rows[self._key_column])
        assert self._options.routing_key is not None, "checked when the columns were"
        return repeated(self._options.routing_key.encode(), count)

    @staticmethod
    def _header(
        rows: dict[str, pa.Array], packer: HeaderPacker | None, first: int, stop: int
    ) -> RowBytes:
        if "header" in rows:
            given = rows["header"]
            return _row_bytes(pc.fill_null(given, PERSISTENT_HEADER) if given.null_count else given)
        if packer is None:
            return repeated(PERSISTENT_HEADER, stop - first)
        packer.pack(first, stop)
        return RowBytes(packer.table, packer.values)


HEADER_COLUMNS: Final = frozenset(
    {"key", "headers", "tags", "delay", "deliver_at", "priority", *STRINGS}
)


def _check_column(name: str, of: DataType) -> None:
    """Raise SourceError unless a column can be written."""
    if name in READ_ONLY:
        return
    if name not in WRITTEN:
        raise SourceError(
            f"column '{name}' is no part of a message: there are {', '.join(sorted(WRITTEN))}"
        )
    types, told = WRITTEN[name]
    is_right = isinstance(of, types)
    if isinstance(of, MapType):
        is_right = _are_texts(of.keyType, of.valueType)
    elif isinstance(of, ArrayType):
        entry = of.elementType
        is_right = _are_texts(entry) if name == "tags" else _is_header(entry)
    if not is_right:
        raise SourceError(f"column '{name}' is {of.simpleString()}, and must be {told}")


def _is_header(entry: DataType) -> bool:
    """Whether the entries of an array are keys and values."""
    if not isinstance(entry, StructType) or entry.names != ["key", "value"]:
        return False
    return _are_texts(*(each.dataType for each in entry.fields))


def _are_texts(*types: DataType) -> bool:
    return all(isinstance(each, TEXTS) for each in types)


def _bytes(array: pa.Array) -> pa.Array:
    """Return strings or bytes as `binary`, whatever Spark has sent."""
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _row_bytes(array: pa.Array) -> RowBytes:
    """Return a column of a chunk; null is empty."""
    array = _bytes(array)
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, table, values = array.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, table], offset=array.offset)
    if array.offset:  # a slice: its table does not begin with 0
        first, stop = offsets[0].as_py(), offsets[len(array)].as_py()
        offsets = pc.subtract(offsets, pa.scalar(first, pa.int32()))
        values = b"" if values is None else memoryview(values).cast("B")[first:stop]
    return RowBytes(_ints(offsets), b"" if values is None else values)


def _short_bytes(name: str, array: pa.Array) -> RowBytes:
    """Return a column of a chunk that is an address. Raises SourceError for what cannot be one."""
    if array.null_count:
        raise SourceError(f"column '{name}' is null in a row: where it goes is not known")
    size = pc.max(pc.binary_length(array)).as_py()
    if size > SHORT_STRING_MAX:
        raise SourceError(f"column '{name}' has {size} bytes where AMQP has room for 255")
    return _row_bytes(array)


def _made_of(name: str, array: pa.Array) -> ArrowColumn:
    """Return a column as the packer of content headers takes it."""
    if name == "headers":
        return _entries(array)
    if name == "tags":
        return _list(array) if pa.types.is_list(array.type) else _single(array)
    if name == "deliver_at":
        micros = array.cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
        return _numbers(pc.divide(micros, MICROSECONDS))
    if name in {"delay", "priority"}:
        return _numbers(array)
    return _texts(array)


def _view(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _valid(array: pa.Array) -> memoryview | None:
    bits = array.buffers()[0]
    return None if bits is None or not array.null_count else _view(bits)


def _ints(array: pa.Array) -> memoryview:
    """Return 32-bit integers that begin where the array does."""
    view = _view(array.buffers()[1])
    return view[4 * array.offset : 4 * (array.offset + len(array))].cast("i")


def _texts(array: pa.Array) -> TextColumn:
    array = _bytes(array)
    _, table, values = array.buffers()
    end = array.offset + len(array) + 1 if len(array) else 0
    offsets = _view(table)[: 4 * end].cast("i")
    return TextColumn(array.offset, _valid(array), offsets, _view(values))


def _numbers(array: pa.Array) -> NumberColumn:
    array = array.cast(pa.int64())
    numbers = _view(array.buffers()[1])[: 8 * (array.offset + len(array))].cast("q")
    return NumberColumn(array.offset, _valid(array), numbers)


def _list(array: pa.Array) -> ListColumn:
    offsets = _view(array.buffers()[1])[: 4 * (array.offset + len(array) + 1)].cast("i")
    return ListColumn(array.offset, _valid(array), offsets, _texts(array.values))


def _single(array: pa.Array) -> ListColumn:
    """Return a column of strings as one of lists with one string each, or none."""
    texts = _texts(array)
    offsets: Any = memoryview(pa.array(range(len(array) + 1), pa.int32()).buffers()[1])
    valid = None
    if array.null_count:
        valid = _view(pc.is_valid(array).buffers()[1])
    return ListColumn(0, valid, offsets.cast("B").cast("i"), texts)


def _entries(array: pa.Array) -> ListColumn:
    """Return headers: lists of keys and values, or maps."""
    if pa.types.is_map(array.type):
        names, items = array.keys, array.items
    else:
        names, items = array.values.flatten()
    offsets = _view(array.buffers()[1])[: 4 * (array.offset + len(array) + 1)].cast("i")
    return ListColumn(array.offset, _valid(array), offsets, _texts(items), _texts(names))
