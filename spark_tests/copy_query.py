"""A streaming query from a topic into Parquet files, as a program that tests kill.

python -m spark_tests.copy_query SERVER TOPIC DIRECTORY [--until-now]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spark_tests.session import spark_session


def main() -> None:
    """Run the query until it is killed, or up to what is there now."""
    server, topic, directory, *rest = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = spark_session(Path(directory))
    options = {
        "servers": server,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3000",
        "minPartitions": "4",
        "group": "copy",
    }
    table = spark.readStream.format("leveret").options(**options).load()
    columns = table.selectExpr("cast(value as string) as body", "partition", "offset")
    writer = columns.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
    if rest:
        writer = writer.trigger(availableNow=True)
    query = writer.option("path", f"{directory}/out").start()
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
