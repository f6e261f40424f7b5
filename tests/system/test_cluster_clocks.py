"""Clocks of machines that are set: nobody loses its lease, and nothing is lost."""

from __future__ import annotations

import mmap
import struct
import subprocess
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.confirmed_publisher import ConfirmedPublisher
from tests.support.cluster_processes import ProcessCluster
from tests.support.http import HttpClient
from tests.support.waiting import LIMIT_SECONDS
from tests.support.zookeeper import HOST

if TYPE_CHECKING:
    from tests.support.cluster_processes import ClusterNodeProcess

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

SOURCE = Path(__file__).parent.parent / "support" / "set_clock.c"
OFFSET = struct.Struct("=q")
HOUR = 3600
STEPS = [(HOUR, 0), (HOUR, -HOUR), (-HOUR, HOUR), (-30 * 24 * HOUR, 365 * 24 * HOUR), (0, 0)]


class SettableClocks(ProcessCluster):
    """A cluster whose nodes have wall clocks of their own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory_of_clocks = directory
        self._library = directory / "set_clock.so"
        compile_it = ["cc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE]
        subprocess.run(compile_it, check=True, timeout=LIMIT_SECONDS)

    def prepare(self, node: ClusterNodeProcess) -> None:
        file = self._file_of(node)
        file.write_bytes(OFFSET.pack(0))
        node.environment = {"LD_PRELOAD": str(self._library), "CLOCK_FILE": str(file)}

    def _file_of(self, node: ClusterNodeProcess) -> Path:
        return self._directory_of_clocks / f"clock{node.number}"

    def set_clock(self, node: ClusterNodeProcess, seconds: int) -> None:
        """Set a node's clock to so many seconds ahead of this machine's."""
        with self._file_of(node).open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            shared[:] = OFFSET.pack(seconds)

    @staticmethod
    def ahead(node: ClusterNodeProcess) -> float:
        """Return by how many seconds the clock of a node that leads is ahead of this machine's."""
        with HttpClient(f"{HOST}:{node.http_port}") as client:
            told = client.get("/api/health/checks/is-in-service").headers["date"]
        return parsedate_to_datetime(told).timestamp() - time.time()


def test_clocks_that_are_set_change_nothing(tmp_path: Path) -> None:
    with SettableClocks(tmp_path) as cluster:
        before = cluster.wait_in_sync()
        leader, followers = cluster.leader(), cluster.followers()
        with ConfirmedPublisher(cluster.ports, "numbers", 10) as publisher:
            publisher.wait_for_more()
            for of_leader, of_followers in STEPS:
                cluster.set_clock(leader, of_leader)
                for node in followers:
                    cluster.set_clock(node, of_followers)
                publisher.wait_for_more(200)
                assert abs(cluster.ahead(leader) - of_leader) < LIMIT_SECONDS
            assert cluster.wait_in_sync() == before, "nobody has left the set, or was elected"
            assert publisher.events == []
            cluster.set_clock(leader, HOUR)
            leader.kill()
            publisher.wait_for_more()
            leader.start()
            cluster.wait_in_sync()
        assert publisher.read_all() >= set(publisher.confirmed)
        assert cluster.troubles() == []
