"""A streaming query that consumes a queue, as a program that tests kill.

python -m spark_tests.queue_query SERVER QUEUE DIRECTORY [--until-now]

Each micro-batch is a directory of its own, which is overwritten when the batch is written again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_tests.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    """Run the query until it is killed, or until what is there now is taken."""
    server, queue, directory, *rest = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = spark_session(Path(directory))
    options = {
        "servers": server,
        "consume": queue,
        "maxOffsetsPerTrigger": "20000" if rest else "300",
        "minPartitions": "2",
    }
    table = spark.readStream.format("leveret").options(**options).load()

    def write(batch: DataFrame, number: int) -> None:
        """Write a micro-batch, in place of an earlier try."""
        batch.write.mode("overwrite").parquet(f"{directory}/out/batch={number}")

    writer = table.selectExpr("cast(value as string) as body").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    if rest:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
