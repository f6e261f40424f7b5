"""Rows of the benchmark: one row for each workload that has a target in the performance budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["FLOOR", "FLOORS", "LAVINMQ", "POLLING_FLOOR", "ROWS", "Bound", "Kind", "Row", "Target"]

# What rows of single requests are measured beside, beyond RabbitMQ.
FLOOR, POLLING_FLOOR, LAVINMQ = "Floor", "Polling floor", "LavinMQ"
FLOORS = (FLOOR, POLLING_FLOOR)


class Kind(StrEnum):
    """How a row is measured; measure.py has a function for each."""

    FLOW = "flow"  # publish and consume for some seconds
    GET = "get"  # fill a queue, then empty it with basic.get
    BACKLOG = "backlog"  # fill, restart, drain
    IDLE = "idle"  # hold connections
    START = "start"  # start with an empty data directory
    PARTITIONS = "partitions"  # a flow into a queue with partitions, and one into one without
    STREAM = "stream"  # fill a stream, then read it with one consumer and with ten
    DELAY = "delay"  # leave messages pending, then delay others for some seconds


class Bound(StrEnum):
    """Kind of bound that a target's number is."""

    TIMES_AT_LEAST = "≥ {} times"  # ours divided by theirs
    TIMES_AT_MOST = "≤ {} times"
    AT_MOST = "≤ {}"  # ours alone
    SHOWN = ""  # no number is demanded


@dataclass(frozen=True)
class Target:
    """One figure of a row: what it is, in which unit, and what it must reach."""

    metric: str
    label: str
    bound: Bound
    number: float = 0

    @property
    def text(self) -> str:
        """The demand as it stands in the table."""
        return self.bound.value.format(f"{self.number:g}")


@dataclass(frozen=True)
class Row:
    """A workload: options of `leveret perf`, what Leveret's durability is, and the targets.

    `messages` and `messages_theirs` are for kinds that are measured by count: ours, RabbitMQ's.
    `yardsticks` are measured beside RabbitMQ and Leveret. `any_core` lets brokers and client run
    where the system puts them, as LavinMQ needs it: its threads wait for one another.
    """

    name: str
    title: str
    targets: tuple[Target, ...]
    options: tuple[str, ...] = ()
    kind: Kind = Kind.FLOW
    durability: str = "os"
    settings: tuple[str, ...] = ()  # of Leveret, beyond its defaults: LEVERET_NAME=value
    queue_type: str = "classic"
    messages: int = 0
    messages_theirs: int = 0
    once: bool = False
    yardsticks: tuple[str, ...] = ()
    any_core: bool = False
    limited_by: str = ""  # what was found to limit a row that misses its target


def throughput(times: float) -> Target:
    """Messages consumed a second, against RabbitMQ's."""
    return Target("consumed_per_s", "messages/s", Bound.TIMES_AT_LEAST, times)


def efficiency(times: float) -> Target:
    """Messages for each second of the broker's processor time, against RabbitMQ's."""
    return Target("per_cpu_s", "messages/s of broker CPU", Bound.TIMES_AT_LEAST, times)


def words(text: str) -> tuple[str, ...]:
    """Options as they are typed."""
    return tuple(text.split())


def published(times: float) -> Target:
    """Messages published a second and answered for, against RabbitMQ's."""
    return Target("published_per_s", "messages published/s", Bound.TIMES_AT_LEAST, times)


CONFIRMED = "--persistent --confirms 2000 --ack-every 100 --prefetch 2000"
ONE_BY_ONE = "--ack-every 1 --ack-frames each"
THIRD = round(1 / 3, 3)

ROWS = (
    Row(
        "transient",
        "16 B, transient, no confirms, auto-ack",
        (throughput(20), efficiency(30)),
    ),
    Row(
        "persistent",
        "16 B, persistent, 2,000 unconfirmed, acks by the hundred, prefetch 2,000",
        (throughput(20), efficiency(30)),
        words(CONFIRMED),
    ),
    Row(
        "quorum",
        "the same, quorum queue, fsync",
        (throughput(10),),
        words(CONFIRMED),
        durability="fsync",
        queue_type="quorum",
    ),
    Row(
        "1-kib",
        "1 KiB, persistent, confirmed",
        (throughput(6),),
        words(f"{CONFIRMED} --size 1024"),
    ),
    Row(
        "64-kib",
        "64 KiB, persistent, confirmed (100 unconfirmed, prefetch 100)",
        (throughput(1.5),),
        words("--persistent --confirms 100 --ack-every 10 --prefetch 100 --size 65536"),
    ),
    Row(
        "latency",
        "2,000 messages/s, persistent, confirmed, acked one by one",
        (
            Target("p50_ms", "p50, ms", Bound.TIMES_AT_MOST, THIRD),
            Target("p99_ms", "p99, ms", Bound.TIMES_AT_MOST, THIRD),
            Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
        ),
        words(f"--rate 2000 --persistent --confirms 2000 {ONE_BY_ONE} --prefetch 2000 --spin"),
        yardsticks=FLOORS,
        limited_by=(
            "between two messages the node sleeps. The floor, which sleeps as well, is itself near "
            "a third of RabbitMQ's p50 or beyond it (above). The row below does not sleep, at the "
            "price of a whole core; that is not a default."
        ),
    ),
    Row(
        "latency-polling",
        "the same, the node never sleeping between messages",
        (
            Target("p50_ms", "p50, ms", Bound.TIMES_AT_MOST, THIRD),
            Target("p99_ms", "p99, ms", Bound.TIMES_AT_MOST, THIRD),
            Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
        ),
        words(f"--rate 2000 --persistent --confirms 2000 {ONE_BY_ONE} --prefetch 2000 --spin"),
        settings=("LEVERET_BUSY_POLL_MICROSECONDS=1000",),
        yardsticks=FLOORS,
        limited_by=(
            "not known yet beyond this: of 6,000 messages a reading, 60 make its p99, and it moves "
            "by a factor of two and more between readings, of either broker (below)."
        ),
    ),
    Row(
        "latency-sleeping",
        "2,000 messages/s acked one by one by a client that sleeps as well",
        (
            Target("p50_ms", "p50, ms", Bound.SHOWN),
            Target("p99_ms", "p99, ms", Bound.SHOWN),
            Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
        ),
        words(f"--rate 2000 --persistent --confirms 2000 {ONE_BY_ONE} --prefetch 2000"),
        yardsticks=(*FLOORS, LAVINMQ),
        any_core=True,
    ),
    Row(
        "fanout",
        "fanout to 10 queues, 10 consumers (messages consumed)",
        (throughput(8),),
        words(f"{CONFIRMED} --fanout 10 --consumers 10"),
    ),
    Row(
        "topic",
        "topic exchange, 10,000 bindings to 10 queues, random keys",
        (throughput(8),),
        words(
            f"{CONFIRMED} --exchange-type topic --bindings 10000 --queues 10 --random-keys"
            " --binding-key *.{}.# --routing-key perf.{}"
        ),
    ),
    Row(
        "three-consumers",
        "3 consumers on one queue",
        (throughput(8),),
        words(f"{CONFIRMED} --consumers 3"),
    ),
    Row(
        "200-queues",
        "200 queues at once, one publisher, one consumer",
        (throughput(8),),
        words(f"{CONFIRMED} --queues 200"),
    ),
    Row(
        "100-publishers",
        "100 publishers (100 unconfirmed each) and 100 consumers on one queue",
        (throughput(8),),
        words(
            "--publishers 100 --consumers 100 --persistent --confirms 100"
            " --ack-every 10 --prefetch 100"
        ),
    ),
    Row(
        "ack-each",
        "16 B, persistent, confirmed, acks one by one",
        (throughput(8),),
        words(f"--persistent --confirms 2000 {ONE_BY_ONE} --prefetch 2000"),
    ),
    Row(
        "confirm-each",
        "50 connections that wait for each confirm, one consumer acking one by one",
        (throughput(3),),
        words(f"--publishers 50 --persistent --confirms 1 {ONE_BY_ONE} --prefetch 2000"),
    ),
    *(
        Row(
            f"{count}-waiting{suffix}",
            f"{what} for each confirm, nobody consumes, {durability}",
            (published(times), Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN)),
            words(f"--publishers {count} --persistent --confirms 1 --consumers 0"),
            durability=durability,
            yardsticks=(*FLOORS, LAVINMQ),
            any_core=True,
        )
        for durability, suffix, times in (("os", "", 3), ("fsync", "-fsync", 1))
        for count, what in ((1, "1 connection that waits"), (50, "50 connections that wait"))
    ),
    Row(
        "priorities",
        "x-max-priority 10, random priorities",
        (throughput(3),),
        words(f"{CONFIRMED} --queue-argument x-max-priority=10 --priority-max 10"),
    ),
    Row(
        "queue-ttl",
        "x-message-ttl of a minute (nothing expires)",
        (throughput(3),),
        words(f"{CONFIRMED} --queue-argument x-message-ttl=60000"),
    ),
    Row(
        "message-ttl",
        "an expiration of a minute on every message (nothing expires)",
        (throughput(3),),
        words(f"{CONFIRMED} --expiration 60000"),
    ),
    Row(
        "dead-letters",
        "every message rejected into a dead-letter queue and consumed there",
        (throughput(3),),
        words(f"{CONFIRMED} --dead-letters --rejecters 1"),
    ),
    Row(
        "expired",
        "every message expired at once (x-message-ttl 0) into a dead-letter queue, consumed there",
        (throughput(3),),
        words(f"{CONFIRMED} --dead-letters --queue-argument x-message-ttl=0"),
    ),
    Row(
        "drop-head",
        "x-max-length 1,000 and nobody to consume: every message drops another",
        (published(3),),
        words(f"{CONFIRMED} --consumers 0 --queue-argument x-max-length=1000"),
    ),
    Row(
        "reject-publish",
        "x-max-length 1,000 with reject-publish, 2,000 unconfirmed, one consumer",
        (published(3), Target("consumed_per_s", "messages accepted/s", Bound.SHOWN)),
        words(
            f"{CONFIRMED} --queue-argument x-max-length=1000"
            " --queue-argument x-overflow=reject-publish"
        ),
    ),
    Row(
        "get",
        "basic.get one by one, acked",
        (throughput(3), Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN)),
        words(f"--get {ONE_BY_ONE} --spin"),
        kind=Kind.GET,
        messages=20_000,
        messages_theirs=20_000,
        yardsticks=FLOORS,
        limited_by=(
            "a request and the acknowledgement before it are one packet, and nothing shares its "
            "cost with others: besides what the floor does (above), some thirty calls of the "
            "broker's own Python (counted with sys.setprofile), from connection through channel "
            "and queue to turn."
        ),
    ),
    Row(
        "get-sleeping",
        "basic.get one by one, acked, by a client that sleeps until it is answered",
        (
            Target("consumed_per_s", "messages/s", Bound.SHOWN),
            Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
        ),
        words(f"--get {ONE_BY_ONE}"),
        kind=Kind.GET,
        messages=50_000,
        messages_theirs=50_000,
        yardsticks=(*FLOORS, LAVINMQ),
        any_core=True,
    ),
    Row(
        "backlog",
        "10 million ready messages of 100 bytes (RabbitMQ: half a million)",
        (
            Target("growth_mb", "MB more memory than empty", Bound.AT_MOST, 200),
            Target("restart_s", "s to restart", Bound.AT_MOST, 5),
            Target("drain_per_s", "messages/s drained", Bound.SHOWN),
            Target("fill_per_s", "messages/s filled", Bound.SHOWN),
        ),
        words("--size 100 --persistent"),
        kind=Kind.BACKLOG,
        messages=10_000_000,
        messages_theirs=500_000,
        once=True,
    ),
    Row(
        "delay",
        "1 million pending delayed messages, and 20,000 others due each second (RabbitMQ has none)",
        (
            Target("growth_mb", "MB more memory than empty", Bound.AT_MOST, 200),
            Target("p99_ms", "p99 after they are due, ms", Bound.AT_MOST, 50),
            Target("p50_ms", "p50 after they are due, ms", Bound.SHOWN),
            Target("consumed_per_s", "messages/s", Bound.SHOWN),
            Target("fill_per_s", "messages/s taken in", Bound.SHOWN),
        ),
        words(
            "--rate 20000 --delay 5000 --size 100 --persistent --confirms 20000 --spin"
            " --drain-timeout 15"
        ),
        kind=Kind.DELAY,
        messages=1_000_000,
        once=True,
    ),
    Row(
        "partitions",
        "16 B, persistent, by 100 keys into 4 partitions, beside the same into one log",
        (
            Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
            Target("cpu_share", "CPU a message, of that without partitions", Bound.AT_MOST, 1.1),
        ),
        words("--persistent --exchange-type direct --bindings 100 --random-keys"),
        kind=Kind.PARTITIONS,
    ),
    Row(
        "stream",
        "a stream of messages of 100 B: written with confirms, read by one consumer, and by ten",
        (
            Target("published_per_s", "messages written/s", Bound.TIMES_AT_LEAST, 8),
            Target("one_per_s", "messages read/s by one", Bound.TIMES_AT_LEAST, 5),
            Target("ten_per_s", "messages read/s by ten together", Bound.TIMES_AT_LEAST, 5),
            Target("ten_cpu_share", "CPU a message of ten, of one's", Bound.AT_MOST, 2),
            Target("resident_mb", "MB of memory at most", Bound.SHOWN),
            Target("seek_ms", "ms to the first message from any offset or time", Bound.AT_MOST, 10),
        ),
        words("--size 100"),
        kind=Kind.STREAM,
        queue_type="stream",
        messages=10_000_000,
        messages_theirs=1_000_000,
        once=True,
    ),
    Row(
        "idle",
        "5,000 idle connections, a channel each",
        (Target("kb_each", "kB each", Bound.AT_MOST, 40),),
        kind=Kind.IDLE,
        messages=5_000,
        messages_theirs=5_000,
        once=True,
    ),
    Row(
        "start",
        "start to ready, empty",
        (Target("start_s", "s", Bound.AT_MOST, 1),),
        kind=Kind.START,
    ),
)
