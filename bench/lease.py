"""`python -m bench.lease`: whether a leader under full load keeps its lease.

    python -m bench.lease [--minutes 10] [--session-ms 4000]

Three nodes and ZooKeeper share this machine with a client that publishes confirmed messages to a
quorum queue as fast as it can. Five times a second the leader is asked for how long its lease still
runs: half a session when it has just been renewed, nothing when the node must stop serving. Printed
are the least and the median of what was left, and how often a node began anew; any is a failure.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from bench.cluster import leveret_cluster
from bench.processes import BenchError
from bench.rows import CONFIRMED, words

LOOK_SECONDS = 0.2
BEGINS_ANEW = "begins anew"  # in the log of a node whose reign has ended


def main(
    minutes: Annotated[float, typer.Option(min=0.1)] = 10.0,
    session_ms: Annotated[int, typer.Option(min=2000, help="cluster_session_ms")] = 4000,
) -> None:
    """Load a cluster, watch the lease of its leader, and print what was left of it."""
    left: list[int] = []
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as name,
        leveret_cluster(Path(name), LEVERET_CLUSTER_SESSION_MS=str(session_ms)) as cluster,
    ):
        leader = cluster.leader()
        if leader is None:
            raise BenchError(f"no node leads: {cluster.members()}")
        command = [sys.executable, "-m", "leveret", "perf", "--uri", leader.uri]
        command += [*words(CONFIRMED), "--queue-type", "quorum", "--duration", f"{minutes * 60:g}"]
        with subprocess.Popen(command) as load:
            while load.poll() is None:
                own = [each for each in leader.members() if each["is_this"]]
                left += [each["lease_ms"] for each in own]
                time.sleep(LOOK_SECONDS)
        begun = sum(node.log.read_text().count(BEGINS_ANEW) for node in cluster.nodes)
    print(
        f"sessions of {session_ms} ms, {len(left)} looks in {minutes:g} minutes: left of the lease "
        f"{min(left)} ms at least, {statistics.median(left):.0f} ms in the median; "
        f"{begun} times a node began anew"
    )
    if begun or load.returncode or not min(left):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
