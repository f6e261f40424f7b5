"""A streaming query from a topic into Parquet files or another topic, as a program that tests kill.

python -m spark_tests.copy_query SERVER TOPIC DIRECTORY [--into TOPIC] [--by SERVER] [--until-now]

SERVER may be several with commas, as the option `servers` has them; with `--by`, TOPIC is written
by another one.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_tests.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def main() -> None:
    """Run the query until it is killed, or up to what is there now."""
    asked = parse(sys.argv[1:])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    query = start(spark_session(Path(asked.directory)), asked)
    print("started", flush=True)
    query.awaitTermination()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the arguments of the program ask for."""
    parser = argparse.ArgumentParser()
    for name in ("server", "topic", "directory"):
        parser.add_argument(name)
    parser.add_argument("--into")
    parser.add_argument("--by")
    parser.add_argument("--until-now", action="store_true")
    return parser.parse_args(arguments)


def start(spark: SparkSession, asked: argparse.Namespace) -> StreamingQuery:
    """Start the query in a session."""
    options = {
        "servers": asked.server,
        "subscribe": asked.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3000",
        "minPartitions": "4",
        "group": "copy",
    }
    table = spark.readStream.format("leveret").options(**options).load()
    if asked.into is None:
        columns = table.selectExpr("cast(value as string) as body", "partition", "offset")
        writer = columns.writeStream.option("path", f"{asked.directory}/out")
    else:
        columns = table.selectExpr(
            "key", "concat(string(value), '.', partition, '.', offset) as value"
        )
        writer = columns.writeStream.format("leveret")
        writer = writer.options(servers=asked.by or asked.server, topic=asked.into)
    writer = writer.option("checkpointLocation", f"{asked.directory}/checkpoint")
    if asked.until_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


if __name__ == "__main__":
    main()
