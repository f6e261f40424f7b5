"""All of it: a node, the shop, the query and the page, for some seconds.

python -m examples.orders.run [--seconds 120] [--to DIR]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pika
from pyspark.sql import SparkSession

from examples.orders.figures import by_minute, start_query
from examples.orders.page import page_of
from examples.orders.shop import PAYMENTS, Shop
from leveret.range_reader import RangeReader
from leveret.spark.source import LeveretDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "Addresses",
    "dead_letters",
    "make_page",
    "running_node",
    "shop_at_work",
    "spark_session",
]

STOP_SECONDS_MAX = 30
LAST_RETRIES_SECONDS = 3.0  # after the last order: retries and dead letters are done by then


class Addresses(NamedTuple):
    """Where a node is reached."""

    amqp: pika.ConnectionParameters
    http: str  # HOST:PORT


@contextmanager
def running_node(directory: Path) -> Iterator[Addresses]:
    """Start a node on free ports, yield its addresses, and stop it."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(directory)]
    command += ["--port", "0", "--http-port", "0", "--prometheus-port", "-1"]
    with (
        (directory / "node.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as node,
    ):
        try:
            ready = node.stdout.readline().split() if node.stdout else []
            if ready[:1] != ["ready"]:
                sys.exit(f"the node has not started: {log.name} says why")
            told = dict(word.split("=", 1) for word in ready[1:])
            port = int(told["amqp"].rpartition(":")[2])
            yield Addresses(
                pika.ConnectionParameters("127.0.0.1", port),
                f"127.0.0.1:{told['http'].rpartition(':')[2]}",
            )
        finally:
            node.terminate()
            node.wait(STOP_SECONDS_MAX)


def spark_session() -> SparkSession:
    """Return a Spark session on this machine, with the data source."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("orders")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(LeveretDataSource)
    return session


@contextmanager
def shop_at_work(shop: Shop) -> Iterator[None]:
    """Have payments taken in a thread, until the end of the block and of the last retries."""
    stopping = threading.Event()
    worker = threading.Thread(target=shop.work, args=(stopping,))
    worker.start()
    try:
        yield
        time.sleep(LAST_RETRIES_SECONDS)
    finally:
        stopping.set()
        worker.join()


def dead_letters(server: str) -> Mapping[str, int]:
    """Return the number of failed payments by the reason of their death."""
    with RangeReader(f"http://{server}", "guest", "guest") as reader:
        queues = reader.resource("queues", "/")
        if f"{PAYMENTS}.dlq" not in {queue["name"] for queue in queues}:
            return {}
        found = reader.resource("leveret", "dead-letters", "/", f"{PAYMENTS}.dlq", limit=1000)
    counts: dict[str, int] = {}
    for row in found["rows"]:
        counts[row["reason"]] = counts.get(row["reason"], 0) + 1
    return counts


def make_page(spark: SparkSession, shop: Shop, server: str, directory: Path) -> Path:
    """Write the page; return where it is."""
    page = directory / "orders.html"
    rows = by_minute(spark, directory).collect()
    page.write_text(page_of(rows, shop.counts, dead_letters(server)), encoding="utf-8")
    return page


def main() -> None:
    """Run everything, and print where the page is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="for how long orders come")
    parser.add_argument("--to", type=Path, help="directory of the page and the figures")
    given = parser.parse_args()
    directory = given.to or Path(tempfile.mkdtemp(prefix="orders-"))
    with ExitStack() as parts:
        node = parts.enter_context(running_node(directory / "node"))
        spark = spark_session()
        parts.callback(spark.stop)
        shop = Shop(node.amqp)
        shop.declare()
        query = start_query(spark, node.http, directory)
        parts.callback(query.stop)
        print(f"selling for {given.seconds:g} seconds", flush=True)
        with shop_at_work(shop):
            shop.sell(given.seconds)
        query.processAllAvailable()
        page = make_page(spark, shop, node.http, directory)
        print(", ".join(f"{count} {name}" for name, count in sorted(shop.counts.items())))
    print(f"the page: {page}")


if __name__ == "__main__":
    main()
