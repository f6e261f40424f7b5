"""Files of a report in one directory: a table as Parquet and as CSV, and a page.

    DIR/NAME.parquet/   all rows
    DIR/NAME.csv        the same for a spreadsheet, up to the rows that one has
    DIR/NAME.html       to look at

A report that is made again replaces the one that is there. DIR may be a URI that Hadoop knows.
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from leveret.spark.archive_files import local_path
from leveret.spark.jobs.hadoop_files import HadoopFiles
from leveret.spark.jobs.job import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CSV_ROWS_MAX", "csv_text", "write_table", "write_text"]

CSV_ROWS_MAX: Final = 1_048_575  # of a sheet in today's spreadsheets, without the heading
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV (RFC 4180), in UTF-8 as spreadsheets recognise it.

    A text that a spreadsheet would take for a formula gets an apostrophe in front: names of queues
    and routing keys are foreign.
    """
    text = io.StringIO()
    text.write("\ufeff")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, datetime):  # as Spark returns it: without a zone, in the machine's
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, str):
        # Half of a surrogate pair has no UTF-8.
        text = value.encode(errors="replace").decode()
        return f"'{text}" if text.startswith(FORMULA_STARTS) else text
    return value


def write_table(directory: str, name: str, table: DataFrame) -> list[tuple[Any, ...]]:
    """Write a table as Parquet and CSV; return its first rows, as many as the CSV has."""
    path = f"{directory.rstrip('/')}/{name}.parquet"
    table.write.mode("overwrite").parquet(path)
    rows = [tuple(row) for row in table.limit(CSV_ROWS_MAX).toLocalIterator()]
    write_text(table.sparkSession, directory, f"{name}.csv", csv_text(table.columns, rows))
    return rows


def write_text(spark: SparkSession, directory: str, name: str, text: str) -> None:
    """Write a file, in place of one of its name. Raises JobError."""
    data = text.encode(errors="replace")
    try:
        local = local_path(directory)
        if local is None:
            files = HadoopFiles(spark, directory)
            files.delete(name)
            files.write(name, data)
            return
        local.mkdir(parents=True, exist_ok=True)
        temporary = local / f".{name}.tmp"
        temporary.write_bytes(data)
        temporary.replace(local / name)
    except OSError as error:
        raise JobError(f"{directory}/{name} cannot be written: {error}") from error
