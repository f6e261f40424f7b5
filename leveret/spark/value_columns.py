"""Columns of decoded bodies: their types as users write them, and who decodes to them."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from leveret.spark.body_columns import BodyColumns
from leveret.spark.decoded_bodies import TextDecoder
from leveret.spark.option_reader import OptionError
from leveret.spark.value_formats import MalformedMode, ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from leveret.spark.decoded_bodies import BodyDecoder
    from leveret.spark.value_formats import ValueOptions

__all__ = ["body_columns", "decoded_columns"]

# The DDL of a type is one word, and more of it in brackets; that of fields has a type after a name.
WHOLE_TYPE: Final = re.compile(r"\s*(?:array|map|struct)\s*<.*>\s*", re.IGNORECASE | re.DOTALL)
FIXED_TYPES: Final = {ValueFormat.RAW: BinaryType(), ValueFormat.TEXT: StringType()}
JSON_TYPES: Final[dict[str, Any]] = {"struct": StructType, "array": ArrayType, "map": MapType}


def decoded_columns(columns: StructType, options: ValueOptions) -> StructType | str:
    """Return the columns of a table with `value` as it is decoded, and one for malformed bodies.

    They are DDL, which Spark parses, if the user's schema is: a data source cannot, as it has no
    session. Raises OptionError.
    """
    if options.format is ValueFormat.RAW:
        return columns
    value = _value_type(options)
    fields = [
        StructField("value", StringType() if isinstance(value, str) else value)
        if each.name == "value"
        else each
        for each in columns
    ]
    if options.mode is MalformedMode.PERMISSIVE:
        if options.corrupt_column in columns.names:
            raise OptionError(
                f"option 'columnNameOfCorruptRecord' is '{options.corrupt_column}', which is the "
                "name of another column"
            )
        fields.append(StructField(options.corrupt_column, BinaryType()))
    if not isinstance(value, str):
        return StructType(fields)
    types = {each.name: each.dataType.simpleString() for each in fields} | {"value": value}
    return ", ".join(f"{_quoted(name)} {of}" for name, of in types.items())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _value_type(options: ValueOptions) -> DataType | str:
    """Return the type of decoded bodies, as DDL if it is given so."""
    if options.format is ValueFormat.TEXT:
        return StringType()
    schema = options.schema
    if schema is None:
        raise OptionError(
            f"option 'valueSchema' is missing: format={options.format.value} needs one"
        )
    if options.format is ValueFormat.AVRO:
        return _type_of_avro(schema)
    if schema.lstrip().startswith("{"):
        return _type_of_json(schema)
    return schema if WHOLE_TYPE.fullmatch(schema) else f"struct<{schema}>"


def _type_of_json(text: str) -> DataType:
    """Return the type that Spark has written as JSON."""
    try:
        found = json.loads(text)
        return JSON_TYPES[found["type"]].fromJson(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(
            "option 'valueSchema' is neither DDL, as 'id long, name string', nor what "
            f"StructType.json() returns: {error!r}"
        ) from None


def _type_of_avro(schema: str) -> DataType:
    # Only who reads Avro needs its library.
    from leveret.spark.avro_schemas import AvroSchemaError  # noqa: PLC0415
    from leveret.spark.avro_values import value_type  # noqa: PLC0415

    try:
        return from_arrow_type(value_type(schema), prefer_timestamp_ntz=True)
    except AvroSchemaError as error:
        raise OptionError(f"option 'valueSchema' has an Avro schema: {error}") from None


def body_columns(columns: StructType, options: ValueOptions) -> BodyColumns | None:
    """Return what makes the columns of decoded bodies, or None where bodies stay what they are.

    Raises OptionError or SourceError if the table's columns do not fit the options.
    """
    is_decoded = options.format is not ValueFormat.RAW
    if "value" not in columns.names:
        if is_decoded and options.corrupt_column in columns.names:
            raise OptionError(
                f"the column '{options.corrupt_column}' needs the column 'value' beside it"
            )
        return None
    value = columns["value"].dataType
    if options.format in FIXED_TYPES and value != FIXED_TYPES[options.format]:
        raise OptionError(
            f"the column 'value' is {FIXED_TYPES[options.format].simpleString()} with "
            f"format={options.format.value}, and not {value.simpleString()}"
        )
    if not is_decoded:
        return None
    corrupt = options.corrupt_column if options.corrupt_column in columns.names else None
    if corrupt is not None and columns[corrupt].dataType != BinaryType():
        raise OptionError(f"the column '{corrupt}' of malformed bodies must be binary")
    return BodyColumns(_decoder(value, options), options.mode, corrupt)


def _decoder(value: DataType, options: ValueOptions) -> BodyDecoder:
    if options.format is ValueFormat.TEXT:
        return TextDecoder()
    if not _is_nullable(value):
        raise OptionError(
            "the schema of bodies has NOT NULL: leave it out, as any message may miss any field"
        )
    if options.format is ValueFormat.AVRO:
        return _avro_decoder(value, options)
    from leveret.spark.json_values import JsonDecoder  # noqa: PLC0415 - needed here only

    if not isinstance(value, StructType | ArrayType | MapType):
        raise OptionError(
            "the schema of JSON bodies is a struct, an array or a map, and not "
            f"{value.simpleString()}"
        )
    zone: dt.tzinfo = dt.UTC if options.time_zone == "UTC" else ZoneInfo(options.time_zone)
    return JsonDecoder(_arrow_type(value), zone)


def _avro_decoder(value: DataType, options: ValueOptions) -> BodyDecoder:
    # Only who reads Avro needs its library.
    from leveret.spark.avro_schemas import AvroSchemaError  # noqa: PLC0415
    from leveret.spark.avro_values import AvroDecoder  # noqa: PLC0415
    from leveret.spark.schema_ids import schema_ids_of  # noqa: PLC0415

    known = _value_type(options)
    if value != known:
        raise OptionError(
            f"the column 'value' is {value.simpleString()}, and option 'valueSchema' has another "
            "schema"
        )
    try:
        ids = None if options.schema_ids is None else schema_ids_of(options.schema_ids)
        return AvroDecoder(options.schema or "", _arrow_type(value), ids)
    except AvroSchemaError as error:
        raise OptionError(f"the schemas of bodies cannot be used: {error}") from None


def _arrow_type(value: DataType) -> pa.DataType:
    (field,) = to_arrow_schema(StructType([StructField("value", value)]), timezone="UTC")
    return field.type


def _is_nullable(kind: DataType) -> bool:
    """Whether all fields, elements and map values of a type may be null."""
    if isinstance(kind, StructType):
        return all(each.nullable and _is_nullable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return kind.containsNull and _is_nullable(kind.elementType)
    if isinstance(kind, MapType):
        return kind.valueContainsNull and _is_nullable(kind.valueType)
    return True
