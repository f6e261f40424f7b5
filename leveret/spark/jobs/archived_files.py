"""Facts about Parquet files of an archive, read from the files themselves.

`archive` puts them into the manifest, and `verify` compares them with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.spark.archive_manifest import ArchivedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from leveret.spark.archive_files import ListedFiles

__all__ = ["COLUMNS", "HASHED", "file_facts", "read_files", "record_hash", "record_size"]

# Of an archive's files, in this order. All of a record is in the last four and `value`; the others
# are for readers that know nothing of AMQP.
COLUMNS: Final = (
    *("partition", "offset", "timestamp", "key", "value", "headers"),
    *("flags", "exchange", "routing_key", "header"),
)
SCHEMA: Final = (
    "partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, "
    "flags int, exchange string, routing_key string, header binary"
)
HASHED: Final = ("offset", "timestamp", "flags", "exchange", "routing_key", "header", "value")
RELATIVE: Final = r"(date=[^/]*/batch=[^/]*/[^/]+)$"
UNSIGNED: Final = (1 << 64) - 1


def record_hash() -> Column:
    """Return the column with the hash of a record."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return f.xxhash64(*HASHED)


def record_size() -> Column:
    """Return the column with the bytes of a record's header and body."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return f.octet_length("value") + f.octet_length("header")


def read_files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of files, or of directories of them, by their whole paths."""
    return spark.read.schema(SCHEMA).parquet(*paths)


def file_facts(
    spark: SparkSession, files: ListedFiles, directory: str, paths: Sequence[str]
) -> list[ArchivedFile]:
    """Return what files of a topic's directory hold, those without rows left out.

    `paths` are files, or directories of them, below the topic's directory. A file has rows of one
    partition, or appears once for each. Raises OSError.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    if not paths:
        return []
    table = read_files(spark, [f"{files.root}/{directory}/{path}" for path in paths])
    return _grouped(table, f.regexp_extract(f.input_file_name(), RELATIVE, 1), files, directory)


def _grouped(
    table: DataFrame, path: Column, files: ListedFiles, directory: str
) -> list[ArchivedFile]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    rows = (
        table.withColumn("path", path)
        .groupBy("path", "partition")
        .agg(
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.count(f.lit(1)).alias("rows"),
            f.sum(record_size()).alias("record_bytes"),
            f.unix_millis(f.min("timestamp")).alias("first_time"),
            f.unix_millis(f.max("timestamp")).alias("last_time"),
            f.bit_xor(record_hash()).alias("hash"),
        )
        .collect()
    )
    found = []
    for row in rows:
        told: dict[str, Any] = row.asDict()
        told["hash"] = f"{told['hash'] & UNSIGNED:016x}"
        size = files.size(f"{directory}/{row.path}")
        if size is None:
            raise FileNotFoundError(f"{files.root}/{directory}/{row.path} is gone")
        found.append(ArchivedFile(bytes=size, **told))
    return sorted(found, key=lambda each: (each.partition, each.first, each.path))
