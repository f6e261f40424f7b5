"""A cluster to try: `python -m tests.cluster_processes [DIR]` (make cluster), until Ctrl-C.

Clients connect with the proxy, which passes each of them on to a node in turn. A node that was
killed can be started again, in another terminal, with the command that is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from pathlib import Path

from tests.cluster_processes.launcher import HOST, LocalCluster
from tests.cluster_processes.proxy import RoundRobinProxy

CHECK_SECONDS = 0.5


async def run(cluster: LocalCluster, port: int) -> int:
    """Run a cluster, with a proxy on `port`, until a signal. Returns the exit status."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    # All of them: one that was killed may have been started again by hand.
    proxy = RoundRobinProxy(lambda: [node.amqp for node in cluster.nodes.values()])
    try:
        address = await proxy.start(HOST, port)
    except OSError as error:
        print(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port")
        return 1
    try:
        print("starting ZooKeeper and the nodes", flush=True)
        await asyncio.to_thread(cluster.start)
        _tell(cluster, address)
        await _watch(cluster, stopping)
        print("stopping", flush=True)
        statuses = await asyncio.to_thread(cluster.stop)
        return 1 if any(statuses.values()) else 0
    except AssertionError as error:
        print(error)
        return 1
    finally:
        await proxy.close()
        await asyncio.to_thread(cluster.kill)


def _tell(cluster: LocalCluster, address: tuple[str, int]) -> None:
    print(f"\nAMQP by the proxy: amqp://guest:guest@{address[0]}:{address[1]}/")
    print(f"ZooKeeper: {cluster.zookeeper.address}")
    for node in cluster.nodes.values():
        ports = node.ports
        print(f"\nnode {node.number}, process {node.process.pid}, log {node.log}")
        print(
            f"  AMQP amqp://guest:guest@{HOST}:{ports.amqp}/, management http://{HOST}:{ports.http}/"
        )
        print(f"  {shlex.join(node.command())}")
    print("\nCtrl-C ends all of them.", flush=True)


async def _watch(cluster: LocalCluster, stopping: asyncio.Event) -> None:
    """Wait for a signal; tell of nodes that end before it."""
    told: set[int] = set()
    while not stopping.is_set():
        for node in cluster.nodes.values():
            if not node.is_running and node.number not in told:
                told.add(node.number)
                status = node.process.returncode
                print(f"node {node.number} has ended with status {status}: {node.log}", flush=True)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await stopping.wait()
        except TimeoutError:
            continue


def main(arguments: list[str]) -> int:
    """Run a cluster as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster_processes", description="A cluster on this machine."
    )
    parser.add_argument("directory", nargs="?", type=Path, default=Path("var-cluster"))
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (3)")
    parser.add_argument("--port", type=int, default=5672, help="the proxy's AMQP port (5672)")
    given = parser.parse_args(arguments)
    cluster = LocalCluster(given.directory.absolute(), given.nodes, session_timeout_ms=3000)
    return asyncio.run(run(cluster, given.port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
