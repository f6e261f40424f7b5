"""`python -m bench.cluster`: three nodes of Leveret beside three of RabbitMQ, quorum queues.

    python -m bench.cluster [--rounds 9] [--seconds 4] [ROWS]

Both clusters run the whole time on the same processors, none of them pinned, and are read in turns;
ZooKeeper runs beside Leveret's. Queues are quorum queues with a copy on each node: a publish is
confirmed once it is flushed by RabbitMQ's majority, and by all that are in sync in Leveret (`acks`
is `all`, durability `fsync`). Clients connect to the node that leads the queue, and in the rows
`…-elsewhere` to another one. Printed are medians over the rounds, and of the ratios the quartiles
as well.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pika
import typer

from bench.measure import perf
from bench.processes import BenchError, allow_files, free_port
from bench.rabbitmq import RabbitMqCluster
from bench.rows import CONFIRMED, words
from examples.cluster.nodes import COUNT, LocalCluster, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "leveret-perf.00000000"  # the first queue of `leveret perf`
LOOK_SECONDS = 0.2
SYNC_SECONDS_MAX = 60.0
WAITING = "--persistent --confirms 1 --consumers 0"


@dataclass(frozen=True)
class Row:
    """A workload: options of `leveret perf`, the figure, and whether another node is used."""

    title: str
    options: tuple[str, ...]
    figure: str
    elsewhere: bool = False


ROWS = {
    "quorum": Row("16 B, 2,000 unconfirmed", words(CONFIRMED), "consumed_per_s"),
    "1-kib": Row("1 KiB", words(f"{CONFIRMED} --size 1024"), "consumed_per_s"),
    "1-waiting": Row("one confirm at a time", words(WAITING), "published_per_s"),
    "50-waiting": Row(
        "50 connections, each one confirm at a time",
        words(f"{WAITING} --publishers 50"),
        "published_per_s",
    ),
    "quorum-elsewhere": Row("16 B, 2,000 unconfirmed", words(CONFIRMED), "consumed_per_s", True),
    "1-waiting-elsewhere": Row("one confirm at a time", words(WAITING), "published_per_s", True),
}


@dataclass
class Target:
    """A node under load, as `perf` takes it, and the node where the queue is declared."""

    uri: str
    pid: int
    leader_uri: str
    core: int | None = None


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; all when none.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Readings of each cluster.")] = 9,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured time of a reading.")] = 4.0,
) -> None:
    """Load both clusters in turns, and print medians and ratios."""
    if unknown := set(names or []) - ROWS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not one of {', '.join(ROWS)}")
    allow_files()
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as name,
        leveret_cluster(Path(name) / "leveret") as ours,
        _rabbitmq(Path(name) / "rabbitmq") as theirs,
    ):
        print(f"RabbitMQ {theirs.nodes[0].version}, {COUNT} nodes each\n")
        print(f"{'row':<20} {'RabbitMQ/s':>11} {'Leveret/s':>11}   ratio (quartiles)")
        for row in names or ROWS:
            _compare(row, _targets(ours, theirs, ROWS[row]), rounds, seconds)


@contextmanager
def leveret_cluster(directory: Path, **settings: str) -> Iterator[LocalCluster]:
    """Start nodes with variables of their environment, and yield them when all are in sync."""
    ports = [Ports(free_port(), free_port(), -1, free_port()) for _ in range(COUNT)]
    with LocalCluster(directory, free_port(), ports, settings) as cluster:
        deadline = time.monotonic() + SYNC_SECONDS_MAX
        while not cluster.is_in_sync:
            if time.monotonic() > deadline:
                raise BenchError(f"nodes are not in sync: {cluster.members()}")
            time.sleep(LOOK_SECONDS)
        yield cluster


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[RabbitMqCluster]:
    cluster = RabbitMqCluster(directory, COUNT)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _targets(ours: LocalCluster, theirs: RabbitMqCluster, row: Row) -> tuple[Target, Target]:
    """Return RabbitMQ's and Leveret's, each with the node of the queue's leader before it."""
    leader = ours.leader()
    if leader is None:
        raise BenchError(f"no node leads: {ours.members()}")
    other = next(node for node in ours.nodes if node is not leader)
    used = (theirs.nodes[1], other) if row.elsewhere else (theirs.nodes[0], leader)
    return (
        Target(used[0].uri, used[0].pid, theirs.nodes[0].uri),
        Target(used[1].uri, used[1].pid, leader.uri),
    )


def _compare(name: str, targets: tuple[Target, Target], rounds: int, seconds: float) -> None:
    """Read both in turns, and print the row."""
    row = ROWS[name]
    pairs = []
    for turn in range(rounds):
        pair = [0.0, 0.0]
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            pair[which] = _read(row, targets[which], seconds)
        pairs.append(pair)
    ratios = [ours / theirs for theirs, ours in pairs]
    theirs, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
    lower, ratio, upper = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    print(
        f"{name:<20} {theirs:>11,.0f} {ours:>11,.0f}   {ratio:.2f} ({lower:.2f} to {upper:.2f})",
        flush=True,
    )


def _read(row: Row, target: Target, seconds: float) -> float:
    """Return messages a second; the queue is led by the node that it is declared at."""
    with pika.BlockingConnection(pika.URLParameters(target.leader_uri)) as connection:
        connection.channel().queue_declare(
            QUEUE, durable=True, arguments={"x-queue-type": "quorum"}
        )
    options = ("--queue-type", "quorum", "--duration", f"{seconds:g}", "--warm-up", "1")
    result = perf(target, *row.options, *options)
    if not result["ok"]:
        raise BenchError(f"{row.title}: messages were left behind at {target.uri}: {result}")
    return float(result[row.figure])


if __name__ == "__main__":
    typer.run(main)
