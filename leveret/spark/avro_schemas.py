"""Avro schemas: checked for what a body could do harm with, and the Arrow types that they mean.

Logical types but decimals are taken out of a schema before bodies are read by it: the numbers that
remain are what Arrow's times and dates are.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

__all__ = ["AvroSchemaError", "arrow_type", "parsed_schema", "schema_of_text"]

PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
RECORDS: Final = ("record", "error")
PRECISION_MAX: Final = 38  # Spark's


class AvroSchemaError(ValueError):
    """A schema is no Avro, or has a part that is not supported."""


def schema_of_text(text: str) -> Any:
    """Return a schema as JSON has it. Raises AvroSchemaError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AvroSchemaError(f"it is no JSON: {error}") from None


def parsed_schema(schema: Any) -> Any:
    """Return a schema as fastavro reads bodies by it. Raises AvroSchemaError.

    A recursive schema is refused, as is an array of items that take no bytes: a short body could
    be nested without an end, or have more items than there is memory.
    """
    try:
        parsed = parse_schema(_without_logical_types(schema))
        SchemaWalk().may_be_empty(parsed)
    except RecursionError:
        raise AvroSchemaError("it is nested too deeply") from None
    except (SchemaParseException, UnknownType) as error:
        raise AvroSchemaError(f"it is no Avro schema: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, AvroSchemaError):
            raise
        raise AvroSchemaError(f"it is no Avro schema: {error!r}") from None
    return parsed


def arrow_type(schema: Any) -> pa.DataType:
    """Return the type of what is read by a schema, with times in the schema's units.

    `schema` is one that `parsed_schema` takes. Raises AvroSchemaError for a union of more than one
    type and null.
    """
    return SchemaWalk().type_of(parse_schema(schema))


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_number = schema.get("logicalType") not in {None, "decimal"}
    return {
        name: each if name == "default" else _without_logical_types(each)
        for name, each in schema.items()
        if not (name == "logicalType" and is_number)
    }


class SchemaWalk:
    """One walk through a parsed schema, in which a named type is defined before it is used."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def _use(self, name: str) -> Any:
        """Return what was found for a named type. Raises AvroSchemaError while it is walked."""
        found = self._named.get(name)
        if found is None:
            raise AvroSchemaError(f"its type '{name}' is recursive, which is not supported")
        return found

    def may_be_empty(self, schema: Any) -> bool:
        """Whether values of a schema may take no bytes. Raises AvroSchemaError."""
        if isinstance(schema, list):
            for each in schema:
                self.may_be_empty(each)
            return False  # the branch's number is a byte
        if isinstance(schema, str):
            return schema == "null" or (schema not in PRIMITIVES and self._use(schema))
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.may_be_empty(kind)
        is_empty = self._kind_may_be_empty(kind, schema)
        if "name" in schema:
            self._named[schema["name"]] = is_empty
        return is_empty

    def _kind_may_be_empty(self, kind: str, schema: Any) -> bool:
        if kind == "array":
            if self.may_be_empty(schema["items"]):
                raise AvroSchemaError("it has an array of items that take no bytes")
            return False  # the count of items is a byte
        if kind == "map":
            self.may_be_empty(schema["values"])
            return False
        if kind in RECORDS:
            fields = [self.may_be_empty(each["type"]) for each in schema["fields"]]
            return all(fields)
        return schema["size"] <= 0 if kind == "fixed" else self.may_be_empty(kind)

    def type_of(self, schema: Any) -> pa.DataType:
        """Return the Arrow type of values of a schema. Raises AvroSchemaError."""
        if isinstance(schema, list):
            parts = [each for each in schema if each not in ("null", {"type": "null"})]
            if len(parts) != 1:
                raise AvroSchemaError("it has a union of other types than one and null")
            return self.type_of(parts[0])
        if schema == "null":
            raise AvroSchemaError("it has a null that is not in a union with a type")
        if isinstance(schema, str):
            return PRIMITIVES[schema] if schema in PRIMITIVES else self._use(schema)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.type_of(kind)
        found = self._type_of_kind(kind, schema)
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _type_of_kind(self, kind: str, schema: Any) -> pa.DataType:
        if kind == "array":
            return pa.list_(self.type_of(schema["items"]))
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(schema["values"]))
        if kind in RECORDS:
            fields = [
                pa.field(each["name"], self.type_of(each["type"])) for each in schema["fields"]
            ]
            return pa.struct(fields)
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            if schema["precision"] > PRECISION_MAX:
                raise AvroSchemaError(f"it has a decimal of more than {PRECISION_MAX} digits")
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        return LOGICAL.get((kind, logical)) or self.type_of(kind)
