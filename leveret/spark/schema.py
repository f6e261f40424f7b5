"""Columns of a table of messages, and which columns of a range read they are made of.

The fixed ones are those of Spark's Kafka source. `includeHeaders`, `includeProperties` and
`includeRecord` add more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leveret.spark.option_reader import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.spark.read_options import ColumnsWanted

__all__ = ["HEADERS_TYPE", "PROPERTIES", "check_names", "columns_read", "table_schema"]

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
FIXED: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
PROPERTIES: Final = (
    *("content_type", "content_encoding", "message_id", "correlation_id", "type", "app_id"),
    *("reply_to", "expiration", "user_id"),
)
# What a record is in the log: all that is needed to publish it once more as it was.
RECORD: Final = (
    StructField("flags", IntegerType()),
    StructField("exchange", StringType()),
    StructField("routing_key", StringType()),
    StructField("header", BinaryType()),
)


def table_schema(wanted: ColumnsWanted) -> StructType:
    """Return the columns of the table."""
    fields = list(FIXED)
    if wanted.headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    if wanted.properties:
        fields += [StructField(name, StringType()) for name in ("exchange", "routing_key")]
        fields += [StructField(name, StringType()) for name in PROPERTIES]
        fields.append(StructField("priority", IntegerType()))
    if wanted.record:
        known = {each.name for each in fields}
        fields += [each for each in RECORD if each.name not in known]
    return StructType(fields)


def check_names(given: StructType, known: Iterable[str]) -> None:
    """Raise OptionError if columns that the user has named do not exist."""
    unknown = sorted(set(given.names) - set(known))
    if unknown:
        raise OptionError(
            f"the table has no column '{unknown[0]}'; with these options it has "
            + ", ".join(sorted(known))
        )


def columns_read(names: list[str]) -> list[str]:
    """Return the columns of a range read that columns of the table are made of."""
    direct = {"key", "value", "timestamp", "flags", "exchange", "routing_key", "header"}
    wanted = {name for name in names if name in direct} | {"offset"}
    if {"headers", "priority", *PROPERTIES} & set(names):
        wanted.add("header")
    return sorted(wanted)
