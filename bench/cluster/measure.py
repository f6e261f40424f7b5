"""Takes one reading of a row from one cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.cluster.interruption import interruptions
from bench.cluster.rows import ClusterKind
from bench.measure import PERF_TIMEOUT_S, Reading
from bench.processes import BenchError, client_core, pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.cluster.clusters import BenchCluster
    from bench.cluster.rows import ClusterRow

__all__ = ["ClusterTiming", "measure"]

LEADER, OTHER = 1, 2
QUEUE_NUMBER = ".00000000"  # of a client's first queue


class ClusterTiming(NamedTuple):
    """Seconds of each flow and before it, and how often a leader is killed."""

    seconds: float
    warm_up: float
    rounds: int


def measure(row: ClusterRow, cluster: BenchCluster, timing: ClusterTiming) -> Reading:
    """One reading; what goes wrong is part of the result and ends nothing else."""
    kinds: dict[ClusterKind, Callable[[ClusterRow, BenchCluster, ClusterTiming], Reading]] = {
        ClusterKind.REPLICAS: _replicas,
        ClusterKind.FORWARDED: _forwarded,
        ClusterKind.NODES: _nodes,
        ClusterKind.INTERRUPTION: _interruption,
    }
    try:
        return kinds[row.kind](row, cluster, timing)
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        return Reading(failure=str(error).strip()[-500:])


class ClusterClient:
    """`leveret perf` with the queue of a node, as a process on the client's core."""

    def __init__(
        self,
        row: ClusterRow,
        cluster: BenchCluster,
        timing: ClusterTiming,
        *,
        node: int,
        queue: str,
        pids: Sequence[int],
    ) -> None:
        command = [sys.executable, "-m", "leveret", "perf", "--json", "--uri", cluster.uri(node)]
        command += ["--pid", ",".join(map(str, pids)), "--existing", "--name", queue]
        command += [*row.row.options, "--queue-type", row.row.queue_type]
        command += ["--duration", f"{timing.seconds:g}", "--warm-up", f"{timing.warm_up:g}"]
        with pinned(client_core()):
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )

    def result(self) -> dict[str, Any]:
        """Wait for the figures."""
        with self._process as process:
            try:
                output, errors = process.communicate(timeout=PERF_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if not output.strip():
            raise BenchError(errors.decode(errors="replace"))
        result: dict[str, Any] = json.loads(output)
        return result


def _replicas_of(row: ClusterRow) -> int:
    return 3 if row.row.queue_type == "quorum" else 1


def _declare(row: ClusterRow, cluster: BenchCluster, queue: str, leader: int) -> None:
    cluster.declare(queue + QUEUE_NUMBER, row.row.queue_type, _replicas_of(row), leader)


def _per_cpu_s(result: dict[str, Any]) -> float:
    cpu_us: float = result["broker_cpu_us_per_message"]
    return 1_000_000 / cpu_us if cpu_us else 0.0


def _replicas(row: ClusterRow, cluster: BenchCluster, timing: ClusterTiming) -> Reading:
    _declare(row, cluster, row.name, LEADER)
    client = ClusterClient(row, cluster, timing, node=LEADER, queue=row.name, pids=cluster.pids())
    result = client.result()
    figures = {"consumed_per_s": result["consumed_per_s"], "per_cpu_s": _per_cpu_s(result)}
    return Reading(figures, incomplete=not result["ok"])


def _forwarded(row: ClusterRow, cluster: BenchCluster, timing: ClusterTiming) -> Reading:
    _declare(row, cluster, row.name, LEADER)
    local, other = (
        ClusterClient(row, cluster, timing, node=node, queue=row.name, pids=cluster.pids()).result()
        for node in (LEADER, OTHER)
    )
    figures = {
        "consumed_per_s": other["consumed_per_s"],
        "per_cpu_s": _per_cpu_s(other),
        "cpu_share": _per_cpu_s(local) / _per_cpu_s(other),
    }
    return Reading(figures, incomplete=not (local["ok"] and other["ok"]))


def _nodes(row: ClusterRow, cluster: BenchCluster, timing: ClusterTiming) -> Reading:
    figures: dict[str, float] = {}
    incomplete = False
    pids = cluster.pids()
    for count in range(1, len(pids) + 1):
        clients = []
        for node in range(1, count + 1):
            queue = f"{row.name}-{node}"
            _declare(row, cluster, queue, node)
            clients.append((queue, node))
        begun = [
            ClusterClient(row, cluster, timing, node=node, queue=queue, pids=[pids[node - 1]])
            for queue, node in clients
        ]
        results = [client.result() for client in begun]
        incomplete |= not all(each["ok"] for each in results)
        used = [each["broker_cpu_us_per_message"] * each["consumed_per_s"] for each in results]
        figures[f"cpu_us_{count}"] = sum(used) / sum(each["consumed_per_s"] for each in results)
    figures["cpu_share"] = figures[f"cpu_us_{len(pids)}"] / figures["cpu_us_1"]
    return Reading(figures, incomplete=incomplete)


def _interruption(row: ClusterRow, cluster: BenchCluster, timing: ClusterTiming) -> Reading:
    _declare(row, cluster, row.name, LEADER)
    confirms, deliveries = interruptions(cluster, row.name + QUEUE_NUMBER, timing.rounds)
    figures = {}
    for name, found in (("confirm", sorted(confirms)), ("deliver", sorted(deliveries))):
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1)):
            # The nearest rank: of few rounds, p99 is the longest.
            rank = min(len(found) - 1, int(share * len(found)))
            figures[f"{name}_{label}_ms"] = found[rank] * 1000
    return Reading(figures)
