"""The figures: a streaming query that counts orders by minute, country and tag, into Parquet.

Each micro-batch writes the sums of its own orders into a directory with its number, in place of
what is there: a batch that is repeated after a crash changes nothing. Readers add the sums up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from examples.orders.shop import PLACED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["by_minute", "start_query"]

ORDER = "order long, country string, amount double, card string"


def start_query(spark: SparkSession, server: str, directory: Path) -> StreamingQuery:
    """Start the query. It goes on where an earlier one with this directory has ended."""
    orders = (
        spark.readStream.format("leveret")
        .options(servers=server, subscribe=PLACED, startingOffsets="earliest")
        .options(group="figures", includeHeaders="true")
        .load()
    )

    def write(batch: DataFrame, number: int) -> None:
        sums_of(batch).coalesce(1).write.mode("overwrite").parquet(
            str(directory / "orders" / f"batch={number}")
        )

    return (
        orders.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="2 seconds")
        .start()
    )


def sums_of(messages: DataFrame) -> DataFrame:
    """Return the number and the worth of orders by minute, country and kind."""
    order = f.from_json(f.col("value").cast("string"), ORDER).alias("order")
    tags = f.filter("headers", lambda header: header["key"] == "x-tags")[0]["value"].cast("string")
    return (
        messages.select("timestamp", order, tags.alias("tags"))
        .select(
            f.date_trunc("minute", "timestamp").alias("minute"),
            f.col("order.country").alias("country"),
            f.col("order.amount").alias("amount"),
            f.when(f.col("tags").contains('"express"'), "express")
            .otherwise("standard")
            .alias("kind"),
        )
        .groupBy("minute", "country", "kind")
        .agg(f.count(f.lit(1)).alias("orders"), f.sum("amount").alias("worth"))
    )


def by_minute(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the figures so far, from what the query has written."""
    return (
        spark.read.parquet(str(directory / "orders"))
        .groupBy("minute", "country", "kind")
        .agg(f.sum("orders").alias("orders"), f.sum("worth").alias("worth"))
        .orderBy("minute", "country", "kind")
    )
