"""The Spark data source: rows a second into sinks, what the broker spends, what others feel of it.

    python -m bench.spark [messages] [--rounds 3] [--only NAME …]

A stream of two partitions is filled with messages of 100 bytes, 10 million unless told, and read by
a Spark of two cores, into the noop sink and into Parquet files. In the same run, as yardsticks:

    ready       the same sinks, fed by a data source whose record batches are ready-made: what Spark
                and the machine can take
    write       rows of Spark written into a topic of two partitions
    today       what people do without a data source, on fewer messages: pika into a Parquet file,
                and RabbitMQ's stream, over AMQP with pika, into Spark by `foreachBatch`
    neighbour   a publisher and a consumer with 2,000 messages a second, beside a query, and while
                that stands still; and beside one of ready-made rows, which no broker serves

Broker, Spark's JVM and its workers share all cores. For `neighbour`, the broker has one of them,
and Spark is the one that waits (SCHED_IDLE, see sched(7)) on the client's, for in production it
runs elsewhere. CPU is the broker's, user and system, of the whole read. Medians of the rounds; a
first round is not counted, since the JVM has not compiled its code yet. Needs `make spark` for
pyspark, and RabbitMQ for `today`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.leveret import Leveret
from bench.management import http_of
from bench.measure import perf
from bench.processes import broker_core, client_core, pinned
from bench.rabbitmq import RabbitMq
from bench.range_reads import p99_ms
from leveret.spark.source import LeveretDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from bench.processes import Broker

MESSAGES = 10_000_000
MESSAGES_TODAY = 200_000  # of what takes 10 µs and more for each
PARTITIONS = 2
BATCH_ROWS = 10_000
TOPIC, TARGET = "bench-spark.00000000", "bench-spark-target"
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
NAMES = ("noop", "parquet", "stream", "write", "today", "neighbour")


class ReadyReader(DataSourceReader):
    """Reads `rows` ready-made rows, in as many partitions as the topic has."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return the partitions (see pyspark)."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the same record batch again and again (see pyspark)."""
        count = BATCH_ROWS
        batch = pa.record_batch(
            [
                pa.array([b"key-1"] * count, pa.binary()),
                pa.array([b"x" * 100] * count, pa.binary()),
                pa.array(["topic"] * count, pa.string()),
                pa.array([partition.value] * count, pa.int32()),
                pa.array(range(count), pa.int64()),
                pa.array([0] * count, pa.timestamp("us", tz="UTC")),
                pa.array([1] * count, pa.int32()),
            ],
            names=[field.split()[0] for field in SCHEMA.split(", ")],
        )
        for _ in range(self._rows // PARTITIONS // count):
            yield batch


class ReadySource(DataSource):
    """Ready-made record batches like those of the data source `leveret`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002
        """Return a reader of `rows` rows."""
        return ReadyReader(int(self.options["rows"]))


def session(directory: Path) -> SparkSession:
    """Return a session of two cores."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for source in (LeveretDataSource, ReadySource):
        spark.dataSource.register(source)
    return spark


def cpu_seconds(pid: int) -> float:
    """Return the seconds that a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


class Bench:
    """One node with a full topic, and one Spark."""

    def __init__(self, spark: SparkSession, node: Leveret, directory: Path, rounds: int) -> None:
        self.spark, self.node, self._directory, self._rounds = spark, node, directory, rounds
        self.broker = {"servers": http_of(node).removeprefix("http://"), "subscribe": TOPIC}

    @property
    def out(self) -> str:
        """A directory to write into, which is empty."""
        shutil.rmtree(self._directory / "out", ignore_errors=True)
        return str(self._directory / "out")

    def topic(self) -> DataFrame:
        """Return the topic as a table."""
        return self.spark.read.format("leveret").options(**self.broker).load()

    def ready(self, rows: int) -> DataFrame:
        """Return ready-made rows."""
        return self.spark.read.format("ready").option("rows", rows).load()

    def rate(self, rows: int, run: Callable[[], object]) -> tuple[float, float]:
        """Run several times; return rows a second, and the broker's microseconds a row."""
        rates, cpu = [], []
        for _ in range(self._rounds + 1):
            before, begun = cpu_seconds(self.node.pid), time.perf_counter()
            run()
            rates.append(rows / (time.perf_counter() - begun))
            cpu.append((cpu_seconds(self.node.pid) - before) / rows * 1e6)
        told = ", ".join(f"{each:,.0f}" for each in rates[1:])
        print(f"    {told}", flush=True)
        return statistics.median(rates[1:]), statistics.median(cpu[1:])


def to_noop(table: DataFrame) -> None:
    """Write a table nowhere."""
    table.write.format("noop").mode("overwrite").save()


def compare(bench: Bench, messages: int, name: str) -> None:
    """Print what a sink takes of the topic, and of ready-made rows."""

    def write(table: DataFrame) -> None:
        if name == "noop":
            to_noop(table)
        else:
            table.write.parquet(bench.out)

    read, cpu = bench.rate(messages, lambda: write(bench.topic()))
    ready, _ = bench.rate(messages, lambda: write(bench.ready(messages)))
    print(
        f"{name}: {read:,.0f} rows/s, ready-made {ready:,.0f}, ratio {read / ready:.2f}; "
        f"broker {cpu:.2f} µs a row",
        flush=True,
    )


def compare_stream(bench: Bench, messages: int) -> None:
    """Print how fast the micro-batches of a query read the topic, into the noop sink."""
    rates: list[float] = []

    def run() -> None:
        table = bench.spark.readStream.format("leveret").options(**bench.broker)
        table = table.options(startingOffsets="earliest", maxOffsetsPerTrigger=messages // 2)
        writer = table.load().writeStream.format("noop").option("checkpointLocation", bench.out)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [each for each in query.recentProgress if each.numInputRows]
        rows = sum(each.numInputRows for each in done)
        assert rows == messages, f"{rows} rows of {messages}"
        rates.append(rows / sum(each.durationMs["triggerExecution"] for each in done) * 1000)

    whole, cpu = bench.rate(messages, run)
    print(
        f"stream: {statistics.median(rates[1:]):,.0f} rows/s in its micro-batches, {whole:,.0f} "
        f"with the query's start and end; broker {cpu:.2f} µs a row",
        flush=True,
    )


def compare_write(bench: Bench, messages: int) -> None:
    """Print how fast rows are written into a topic."""
    with pika.BlockingConnection(pika.URLParameters(bench.node.uri)) as connection:
        connection.channel().queue_declare(
            TARGET, durable=True, arguments={"x-queue-type": "stream", "x-partitions": PARTITIONS}
        )
    options = {"servers": bench.broker["servers"], "topic": TARGET}

    def write(table: DataFrame) -> None:
        table.write.format("leveret").options(**options).mode("append").save()

    plain, cpu = bench.rate(messages, lambda: write(bench.ready(messages).select("value")))
    keyed, keyed_cpu = bench.rate(messages, lambda: write(bench.ready(messages)))
    print(
        f"write: {plain:,.0f} rows/s, {keyed:,.0f} with keys and the topic as a column; broker "
        f"{cpu:.2f} and {keyed_cpu:.2f} µs a row",
        flush=True,
    )


def bodies(broker: Broker, queue: str, count: int, *, is_stream: bool) -> Iterator[bytes]:
    """Yield the first messages of a queue as pika brings them."""
    with pika.BlockingConnection(pika.URLParameters(broker.uri)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2000)
        arguments = {"x-stream-offset": "first"} if is_stream else {}
        consumed = channel.consume(queue, arguments=arguments)
        for read, (method, _, body) in enumerate(consumed, 1):
            yield body
            if read % 1000 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if read == count:
                channel.cancel()
                return


def fill(broker: Broker, queue: str, messages: int, *options: str) -> None:
    """Fill a stream with messages of 100 bytes."""
    perf(
        broker,
        *("--mode", "fill", "--messages", str(messages), "--size", "100", "--persistent"),
        *("--confirms", "2000", "--queue-type", "stream", "--name", queue, "--keep", *options),
    )


def compare_today(bench: Bench, directory: Path) -> None:
    """Print what people do today: pika into a file, and RabbitMQ's stream by `foreachBatch`."""
    fill(bench.node, "bench-today", MESSAGES_TODAY)
    broker = RabbitMq(directory / "rabbitmq")
    broker.start()
    try:
        fill(broker, "bench-today", MESSAGES_TODAY)
        for each in (bench.node, broker):
            rate = to_file(each, directory)
            print(f"today: {each.name} by pika into a Parquet file {rate:,.0f} rows/s", flush=True)
        rate = by_foreach_batch(bench, broker)
        print(f"today: RabbitMQ's stream by foreachBatch into files {rate:,.0f} rows/s", flush=True)
    finally:
        broker.stop()


def to_file(broker: Broker, directory: Path) -> float:
    """Write a stream's messages into a Parquet file; return rows a second."""
    begun = time.perf_counter()
    schema = pa.schema([("value", pa.binary())])
    with pq.ParquetWriter(directory / "today.parquet", schema) as writer:
        rows: list[bytes] = []
        for body in bodies(broker, "bench-today.00000000", MESSAGES_TODAY, is_stream=True):
            rows.append(body)
            if len(rows) == BATCH_ROWS:
                writer.write_batch(pa.record_batch([rows], schema=schema))
                rows = []
    return MESSAGES_TODAY / (time.perf_counter() - begun)


def by_foreach_batch(bench: Bench, broker: Broker) -> float:
    """Let a query pull from a stream by AMQP in `foreachBatch`; return rows a second."""
    source = bodies(broker, "bench-today.00000000", MESSAGES_TODAY, is_stream=True)
    path, rates = bench.out, []

    def pull(_table: DataFrame, number: int) -> None:
        begun, count = time.perf_counter(), MESSAGES_TODAY // 4
        rows = [next(source, None) for _ in range(count)]
        table = pa.table({"value": pa.array(rows, pa.binary())})
        bench.spark.createDataFrame(table).write.parquet(f"{path}/batch={number}")
        rates.append(count / (time.perf_counter() - begun))

    ticks = bench.spark.readStream.format("rate").load()
    query = ticks.writeStream.foreachBatch(pull).start()
    while len(rates) < 4 and query.exception() is None:
        time.sleep(0.1)
    query.stop()
    return statistics.median(rates[1:4])  # the first one starts what Spark needs


@contextmanager
def spark_beside(messages: int, server: str) -> Iterator[subprocess.Popen[str]]:
    """Let a Spark of its own, which waits for everybody else, read again and again.

    It reads the topic, or ready-made rows where `server` is empty.
    """
    command = [sys.executable, "-m", "bench.spark", str(messages), "--read-on", server]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the JVM is killed in the middle of something
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None, "it has a pipe"
    process.stdout.readline()  # it has read everything once
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        os.killpg(process.pid, signal.SIGCONT)
        process.wait()


def read_on(messages: int, server: str) -> None:
    """Read the topic or ready-made rows until killed, and print the seconds of each time."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with tempfile.TemporaryDirectory() as directory:
        spark = session(Path(directory))
        while True:
            begun = time.perf_counter()
            if server:
                reader = spark.read.format("leveret").options(servers=server, subscribe=TOPIC)
            else:
                reader = spark.read.format("ready").option("rows", messages)
            to_noop(reader.load())
            print(time.perf_counter() - begun, flush=True)


def compare_neighbour(bench: Bench, messages: int, rounds: int) -> None:
    """Print the p99 of a second client, beside a query and while that query stands still.

    The same beside a query of ready-made rows, which asks nothing of the broker, tells what the
    second client feels of a Spark on its own core.
    """
    os.sched_setaffinity(bench.node.pid, {broker_core()})
    for rows, server in (("the topic's", bench.broker["servers"]), ("ready-made", "")):
        alone, beside = [], []
        with pinned(client_core()), spark_beside(messages, server) as process:
            output: Any = process.stdout
            rate = messages / float(output.readline())
            for _ in range(rounds):  # in turn: so the machine's own neighbours are in both
                os.killpg(process.pid, signal.SIGSTOP)
                alone.append(p99_ms(bench.node))
                os.killpg(process.pid, signal.SIGCONT)
                beside.append(p99_ms(bench.node))
        quiet, busy = statistics.median(alone), statistics.median(beside)
        print(
            f"neighbour: p99 {quiet:.2f} ms alone, {busy:.2f} beside a query of {rate:,.0f} rows/s "
            f"({rows}), ratio {busy / quiet:.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The data source in a Spark of two cores.")
    parser.add_argument("messages", type=int, nargs="?", default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--read-on", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if asked.read_on is not None:
        read_on(asked.messages, asked.read_on)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        node = Leveret(place / "node", "os")
        node.start()
        try:
            os.sched_setaffinity(node.pid, os.sched_getaffinity(0))
            fill(
                node, TOPIC.partition(".")[0], asked.messages,
                *("--queue-argument", f"x-partitions={PARTITIONS}"),
                *("--queue-argument", "x-partition-by=round-robin"),
            )  # fmt: skip
            bench = Bench(session(place), node, place, asked.rounds)
            run(bench, asked.messages, asked.only, place)
        finally:
            node.stop()


def run(bench: Bench, messages: int, names: list[str], directory: Path) -> None:
    """Run the measurements that were asked for, the one that needs Spark quiet at last."""
    for name in ("noop", "parquet"):
        if name in names:
            compare(bench, messages, name)
    if "stream" in names:
        compare_stream(bench, messages)
    if "write" in names:
        compare_write(bench, messages // 5)
    if "today" in names:
        compare_today(bench, directory)
    bench.spark.stop()
    if "neighbour" in names:
        compare_neighbour(bench, messages, 2 * 3)


if __name__ == "__main__":
    main()
