"""Bodies of Avro as Arrow values: one datum each, with Confluent's prefix or without."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from fastavro import schemaless_reader

from leveret.spark.avro_schemas import AvroSchemaError, arrow_type, parsed_schema, schema_of_text
from leveret.spark.decoded_bodies import DecodedBodies

if TYPE_CHECKING:
    from leveret.spark.schema_ids import SchemaIds

__all__ = ["AvroDecoder", "value_type"]

# Confluent's prefix: a byte 0, the schema's id in four bytes, big-endian.
PREFIX_BYTES: Final = 5


def value_type(schema: str) -> pa.DataType:
    """Return the type of bodies of a schema, with times in microseconds. Raises AvroSchemaError."""
    parsed_schema(schema_of_text(schema))
    return arrow_type(schema_of_text(schema))


class AvroDecoder:
    """Decodes bodies to the Arrow type `wanted`, by the schema `schema` as JSON.

    Bodies with a prefix are written by the schemas of `schema_ids`, and resolved to `schema` as
    Avro says. Raises AvroSchemaError.
    """

    def __init__(
        self, schema: str, wanted: pa.DataType, schema_ids: SchemaIds | None = None
    ) -> None:
        self._schema = parsed_schema(schema_of_text(schema))
        self._read = value_type(schema)
        self._wanted = wanted
        self._schema_ids = schema_ids

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        """Return the values; those of malformed bodies are null. Raises SourceError."""
        values: list[Any] = []
        malformed: dict[int, str] = {}
        for row, body in enumerate(bodies):
            try:
                values.append(self._value(body.as_py()))
            except AvroBodyError as error:
                values.append(None)
                malformed[row] = str(error)
        try:
            return DecodedBodies(self._array(values), malformed)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):  # not which one
            pass
        pieces = [self._array([])]
        for row, value in enumerate(values):
            try:
                pieces.append(self._array([value]))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                pieces.append(self._array([None]))
                malformed[row] = f"the body has a value that does not fit: {type(error).__name__}"
        return DecodedBodies(pa.concat_arrays(pieces), dict(sorted(malformed.items())))

    def _value(self, body: bytes) -> Any:
        """Return the value of a body. Raises AvroBodyError, and SourceError."""
        writer, reader, start = self._schema, None, 0
        if self._schema_ids is not None:
            if len(body) < PREFIX_BYTES or body[0]:
                raise AvroBodyError("the body does not begin with a byte 0 and a schema's id")
            try:
                writer = self._schema_ids.schema(int.from_bytes(body[1:PREFIX_BYTES], "big"))
            except AvroSchemaError as error:
                raise AvroBodyError(str(error)) from None
            reader, start = self._schema, PREFIX_BYTES
        data = io.BytesIO(body)
        data.seek(start)
        try:
            value = schemaless_reader(data, writer, reader)
        except Exception as error:  # noqa: BLE001 - the library does not tell which ones it raises
            raise AvroBodyError(
                f"the body is no Avro of its schema: {type(error).__name__}"
            ) from None
        if data.tell() < len(body):
            raise AvroBodyError(f"the body goes on after its value, at byte {data.tell()}")
        return value

    def _array(self, values: list[Any]) -> pa.Array:
        return pa.array(values, self._read).cast(self._wanted)


class AvroBodyError(Exception):
    """A body is malformed."""
