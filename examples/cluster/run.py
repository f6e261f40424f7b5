"""Three nodes and a ZooKeeper on this machine, until Ctrl-C: `make cluster`.

    python -m examples.cluster.run [--data var-cluster] [--port 5672]

It says which node leads and which are in sync, each time that changes. A node that ends is started
again after ten seconds, as a service manager would do it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from examples.cluster.nodes import COUNT, LocalCluster, Ports

if TYPE_CHECKING:
    from examples.cluster.nodes import ClusterNode

__all__ = ["main"]

LOOK_SECONDS = 0.5
RESTART_SECONDS = 10.0
START_SECONDS_MAX = 60.0
LOG_LINES = 5


class Watch:
    """Watch over a cluster, which says what changes and starts nodes again that have ended."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._said = ""
        self._restarts: dict[ClusterNode, float] = {}

    def look(self) -> None:
        """Say what has changed, and start nodes again that have ended."""
        now = time.monotonic()
        for node in self._cluster.nodes:
            if node not in self._restarts and node.process and node.process.poll() is not None:
                self._restarts[node] = now + RESTART_SECONDS
                status = node.process.returncode
                why = signal.Signals(-status).name if status < 0 else f"status {status}"
                say(
                    f"node {node.number} has ended ({why}); it is started again in "
                    f"{RESTART_SECONDS:.0f} seconds"
                )
        for node in [node for node, due in self._restarts.items() if now >= due]:
            del self._restarts[node]
            node.start()
            say(f"node {node.number} is started again, as process {node.pid}")
        self._say_roles()

    def _say_roles(self) -> None:
        members = self._cluster.members()
        leaders = [each["node"] for each in members if each["role"] == "leader" and each["is_live"]]
        in_sync = [str(each["node"]) for each in members if each["is_in_sync"]]
        leads = f"node {leaders[0]} leads" if leaders else "no node leads"
        said = f"{leads}; in sync: {', '.join(in_sync) or 'none'}"
        if said != self._said:
            self._said = said
            say(said)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    """Start everything, say what happens, and stop everything at a signal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("var-cluster"), help="directory of all")
    parser.add_argument("--port", type=int, default=5672, help="AMQP port of the first node")
    parser.add_argument("--zookeeper-port", type=int, default=2181)
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C
    ports = [
        Ports(
            given.port + n,
            given.port + 10_000 + n,
            given.port + 10_020 + n,
            given.port + 20_000 + n,
        )
        for n in range(COUNT)
    ]
    print(
        f"Starting ZooKeeper and {COUNT} nodes; their data and logs are in {given.data}.\n",
        flush=True,
    )
    try:
        with LocalCluster(given.data.absolute(), given.zookeeper_port, ports) as cluster:
            wait_until_ready(cluster)
            for node in cluster.nodes:
                print(
                    f"node {node.number}: amqp://localhost:{node.ports.amqp}  "
                    f"http://localhost:{node.ports.http}  process {node.pid}"
                )
            print("\nClients may connect to any of them. Ctrl-C stops all.\n", flush=True)
            watch = Watch(cluster)
            while True:
                watch.look()
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        print("\nAll are stopped.")
    except RuntimeError as error:
        sys.exit(str(error))


def wait_until_ready(cluster: LocalCluster) -> None:
    """Return once all nodes are in sync. Raises RuntimeError if one ends, or after a minute."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not cluster.is_in_sync:
        for node in cluster.nodes:
            if node.process is not None and node.process.poll() is not None:
                last = "\n".join(node.log.read_text().splitlines()[-LOG_LINES:])
                raise RuntimeError(f"node {node.number} has ended; the end of {node.log}:\n{last}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the nodes are not in sync after {START_SECONDS_MAX:.0f} seconds")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
