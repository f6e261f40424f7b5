"""Job `export`: topics as files with plain columns, for people and their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.spark.jobs.job import SparkJob
from leveret.spark.option_reader import OptionError, time_ms

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import DataFrame

    from leveret.spark.jobs.job import JobContext, JobSummary

__all__ = ["JOB", "add_topics"]

FORMATS: Final = ("parquet", "csv", "json")
PROPERTIES: Final = (
    *("exchange", "routing_key", "content_type", "content_encoding", "message_id"),
    *("correlation_id", "type", "app_id", "reply_to", "expiration", "user_id", "priority"),
)


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Add the argument TOPIC,… to a job's."""
    parser.add_argument("topics", metavar="TOPIC[,…]", help="topics, with commas")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topics(parser)
    parser.add_argument("--to", required=True, metavar="DIR", help="directory, or Hadoop URI")
    parser.add_argument(
        "--format", choices=FORMATS, default="parquet", help="[default: %(default)s]"
    )
    parser.add_argument("--from-time", metavar="TIME", help="only what was stored then or later")
    parser.add_argument("--until-time", metavar="TIME", help="only what was stored before")
    parser.add_argument("--files", type=int, metavar="NUMBER", help="how many files, about")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in DIR")


def _run(context: JobContext) -> JobSummary:
    from pyspark.errors import AnalysisException  # noqa: PLC0415
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    given = context.arguments
    for topic in given.topics.split(","):
        context.broker.topic(topic.strip())  # an error before Spark is started
    source = {
        **context.source_options(),
        "subscribe": given.topics,
        "includeHeaders": "true",
        "includeProperties": "true",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    if given.from_time:
        source["startingTimestamp"] = str(time_ms(given.from_time))
    if given.until_time:
        source["endingTimestamp"] = str(time_ms(given.until_time))
    table = context.spark.read.format("leveret").options(**source).load()
    counted = Observation()
    plain = _plain_columns(table, given.format).observe(counted, f.count(f.lit(1)).alias("rows"))
    if given.files:
        plain = plain.coalesce(given.files)
    writer = plain.write.format(given.format).mode("overwrite" if given.overwrite else "error")
    if given.format == "csv":
        # As RFC 4180 has it, which other programs read; Spark escapes with backslashes.
        writer = writer.options(header="true", escape='"', emptyValue="")
    context.report(f"exporting {given.topics}", always=True)
    try:
        writer.save(given.to)
    except AnalysisException as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise OptionError(
                f"{given.to} exists: choose another directory, or --overwrite"
            ) from None
        raise
    return {"messages": counted.get["rows"], "format": given.format, "directory": given.to}


def _plain_columns(table: DataFrame, form: str) -> DataFrame:
    """Return the table with texts in place of bytes; bodies that are no text are in base64."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    body = f.col("value").cast("string")
    is_text = f.is_valid_utf8(body)
    headers = f.transform(
        "headers",
        lambda each: f.struct(each.key.alias("key"), each.value.cast("string").alias("value")),
    )
    return table.select(
        *("topic", "partition", "offset", "timestamp"),
        f.col("key").cast("string").alias("key"),
        *PROPERTIES,
        (f.to_json(headers) if form == "csv" else headers).alias("headers"),
        f.when(is_text, body).alias("body"),
        f.when(~is_text, f.base64("value")).alias("body_base64"),
    )


JOB: Final = SparkJob(
    "write topics into files with plain columns: Parquet, CSV or JSON", _add_arguments, _run
)
