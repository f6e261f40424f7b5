"""How a streaming query grows with partitions: checkpoint, driver, time of a micro-batch.

    python -m bench.spark_partitions [--partitions 1 10 100 250] [--batches 20] [--rows 10]

For each number of partitions a topic is made, and a query reads it into the noop sink in so many
micro-batches, with ten messages of each partition in each, unless told. Printed are, of the last
half of the micro-batches:

    offsets        bytes of the offsets of a micro-batch in the checkpoint
    checkpoint     bytes and files of all of it at the end; Spark keeps the last 100 micro-batches
                   (spark.sql.streaming.minBatchesToRetain), so it grows no further after these
    latestOffset   milliseconds in which the broker is asked for all ends
    trigger        milliseconds of a micro-batch, most of which are the tasks': one for a partition
    driver         MB of the process that plans (Python), and of the JVM
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.leveret import Leveret
from bench.management import http_of
from bench.spark import fill, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MB = 1 << 20


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def processes_below(pid: int) -> dict[int, str]:
    """Return the command lines of all descendants of a process."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        parents[int(entry.name)] = int(stat[1])

    def is_below(each: int) -> bool:
        while each in parents:
            each = parents[each]
            if each == pid:
                return True
        return False

    return {each: command for each, command in commands.items() if is_below(each)}


def driver_mb() -> tuple[float, float]:
    """Return the memory of the process that plans, and of the JVM."""
    below = processes_below(os.getpid())
    jvm = max((resident_mb(each) for each, text in below.items() if "java" in text), default=0.0)
    planner = [
        resident_mb(each) for each, text in below.items() if "streaming_source_runner" in text
    ]
    return max(planner, default=0.0), jvm


def run(
    spark: SparkSession, options: dict[str, str], checkpoint: Path
) -> tuple[StreamingQuery, tuple[float, float]]:
    """Run a query to its end; return it, and the most memory of its driver."""
    table = spark.readStream.format("leveret").options(**options).load()
    writer = table.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    planner = jvm = 0.0
    while query.isActive:
        now = driver_mb()
        planner, jvm = max(planner, now[0]), max(jvm, now[1])
        time.sleep(0.5)
    query.awaitTermination()
    return query, (planner, jvm)


def measure(
    spark: SparkSession, node: Leveret, directory: Path, count: int, asked: argparse.Namespace
) -> None:
    """Print how a query over a topic of `count` partitions does."""
    topic, checkpoint = f"bench-partitions-{count}", directory / f"checkpoint-{count}"
    messages = count * asked.rows * asked.batches
    fill(
        node, topic, messages,
        *("--queue-argument", f"x-partitions={count}"),
        *("--queue-argument", "x-partition-by=round-robin"),
    )  # fmt: skip
    options = {
        "servers": http_of(node).removeprefix("http://"),
        "subscribe": f"{topic}.00000000",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(count * asked.rows),
    }
    query, (planner, jvm) = run(spark, options, checkpoint)
    done = [each for each in query.recentProgress if each.numInputRows]
    rows = sum(each.numInputRows for each in done)
    assert rows == messages, f"{rows} rows of {messages}"
    late = done[len(done) // 2 :]
    files = [each for each in checkpoint.rglob("*") if each.is_file()]
    offsets = max(each.stat().st_size for each in (checkpoint / "offsets").iterdir())
    latest, trigger = (
        statistics.median(each.durationMs[name] for each in late)
        for name in ("latestOffset", "triggerExecution")
    )
    print(
        f"{count} partitions: offsets {offsets:,} bytes; checkpoint {len(files)} files, "
        f"{sum(each.stat().st_size for each in files):,} bytes after {len(done) + 1} batches; "
        f"latestOffset {latest:.0f} ms, trigger {trigger:.0f} ms; driver {planner:.0f} MB, JVM "
        f"{jvm:.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Streaming queries by number of partitions.")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 10, 100, 250])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=10)
    asked = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        node = Leveret(place / "node", "os")
        node.start()
        try:
            spark = session(place)
            for count in asked.partitions:
                measure(spark, node, place, count, asked)
        finally:
            node.stop()


if __name__ == "__main__":
    main()
