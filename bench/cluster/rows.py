"""Rows of the cluster's benchmark: workloads, what is compared, and what must be reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bench.rows import CONFIRMED, Bound, Row, Target, efficiency, throughput, words

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ROWS", "ClusterKind", "ClusterRow"]


class ClusterKind(StrEnum):
    """How a row is measured; measure.py has a function for each."""

    REPLICAS = "replicas"  # publish and consume at the leader of a queue with three replicas
    FORWARDED = "forwarded"  # at a node that leads nothing, and at the leader
    NODES = "nodes"  # at one node, at two, at three, each leading a queue
    INTERRUPTION = "interruption"  # at another node, while the leader is killed


@dataclass(frozen=True)
class ClusterRow:
    """A workload and how it is measured."""

    kind: ClusterKind
    row: Row

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.row.name

    @property
    def brokers(self) -> tuple[str, ...]:
        """Brokers that the row is measured with: some figures compare Leveret with itself."""
        both = self.kind in (ClusterKind.REPLICAS, ClusterKind.INTERRUPTION)
        return ("RabbitMQ", "Leveret") if both else ("Leveret",)


LARGE = "--persistent --confirms 10000 --ack-every 1000 --prefetch 10000"
SIZES: Mapping[str, int] = {"16 B": 16, "1 KiB": 1024}
FORWARDED = (
    Target("per_cpu_s", "messages/s of broker CPU", Bound.SHOWN),
    Target("cpu_share", "CPU a message, of that of a client of the leader", Bound.AT_MOST, 1.5),
)

FORWARDED_LIMIT = (
    "a record goes through two sockets more, each way between two nodes: its bytes are given to "
    "the kernel and taken from it six times instead of twice. A record of a body of 16 B has about "
    "70 B with its keys and its content header. What the nodes do beside that is by the batch, or "
    "one pass over the records in compiled code."
)


def _name(title: str, size: str) -> str:
    return f"{title}-{size.replace(' ', '').lower()}"


def _milliseconds(metric: str, label: str) -> Target:
    return Target(metric, label, Bound.SHOWN)


ROWS = (
    *(
        ClusterRow(
            ClusterKind.REPLICAS,
            Row(
                _name("replicas", size),
                f"{size}, persistent, 2,000 unconfirmed, three replicas, acks of all",
                (throughput(5), efficiency(5)),
                words(f"{CONFIRMED} --size {count}"),
                durability="fsync",
                queue_type="quorum",
            ),
        )
        for size, count in SIZES.items()
    ),
    *(
        ClusterRow(
            ClusterKind.FORWARDED,
            Row(
                _name("forwarded", size),
                f"{size}, persistent, 10,000 unconfirmed, one replica, client of another node",
                FORWARDED,
                words(f"{LARGE} --size {count}"),
                limited_by=FORWARDED_LIMIT,
            ),
        )
        for size, count in SIZES.items()
    ),
    ClusterRow(
        ClusterKind.NODES,
        Row(
            "nodes",
            "16 B, persistent, 100,000 a second for each node, one replica, clients of the leaders",
            (
                *(
                    Target(f"cpu_us_{count}", f"µs of broker CPU a message, {name}", Bound.SHOWN)
                    for count, name in ((1, "one node"), (2, "two nodes"), (3, "three nodes"))
                ),
                Target("cpu_share", "CPU a message of three nodes, of one's", Bound.AT_MOST, 1.1),
            ),
            words(f"{CONFIRMED} --rate 100000"),
        ),
    ),
    ClusterRow(
        ClusterKind.INTERRUPTION,
        Row(
            "interruption",
            "one publish after the other, three replicas, acks of all, the leader killed",
            (
                _milliseconds("confirm_p50_ms", "ms without a confirm, p50"),
                _milliseconds("confirm_p99_ms", "ms without a confirm, p99"),
                _milliseconds("confirm_max_ms", "ms without a confirm, longest"),
                _milliseconds("deliver_p50_ms", "ms without a delivery, p50"),
                _milliseconds("deliver_p99_ms", "ms without a delivery, p99"),
                _milliseconds("deliver_max_ms", "ms without a delivery, longest"),
            ),
            durability="fsync",
            queue_type="quorum",
            once=True,
        ),
    ),
)
