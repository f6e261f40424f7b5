"""A full disk of one node of a cluster: nothing is lost, and it goes on when there is space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.confirmed_publisher import ConfirmedPublisher
from tests.harness.small_disk import fill_up, small_disk
from tests.support.cluster_processes import COUNT, ProcessCluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.cluster_processes import ClusterNodeProcess

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("processes")]

DISK_BYTES = 96 << 20
TOLD_MAX = 3
FULL = "No space left on device; the disk is full: free space or enlarge it"


LIMITED = 0  # the node that has the small disk


class SmallDiskCluster(ProcessCluster):
    """A cluster of which one node has its data on a small disk."""

    def __init__(self, directory: Path, disk: Path) -> None:
        super().__init__(directory)
        self._disk = disk

    def prepare(self, node: ClusterNodeProcess) -> None:
        if node.number == LIMITED:
            node.data = self._disk / "data"


@pytest.fixture
def disk(tmp_path: Path, processes: None) -> Iterator[Path]:
    with small_disk(tmp_path / "small", DISK_BYTES) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, disk: Path, processes: None) -> Iterator[SmallDiskCluster]:
    with SmallDiskCluster(tmp_path, disk) as made:
        yield made


def test_who_follows_leaves_the_in_sync_set(cluster: SmallDiskCluster, disk: Path) -> None:
    limited = cluster.nodes[LIMITED]
    cluster.have_lead(cluster.nodes[1])
    with ConfirmedPublisher(cluster.ports, "numbers") as publisher:
        publisher.wait_for_more()
        ballast = fill_up(disk)
        wait_until(lambda: LIMITED not in cluster.in_sync(), "the end of its membership")
        publisher.wait_for_more()
        assert FULL in limited.log()
        ballast.unlink()
        wait_until(lambda: LIMITED in cluster.in_sync(), "its return")
        publisher.wait_for_more()
    assert limited.log().count(FULL) < TOLD_MAX, "what fails again and again is told once a minute"
    assert publisher.events == []
    cluster.have_lead(limited)
    assert publisher.read_all() >= set(publisher.confirmed)


def test_who_leads_blocks_publishers(cluster: SmallDiskCluster, disk: Path) -> None:
    limited = cluster.nodes[LIMITED]
    cluster.have_lead(limited)
    with ConfirmedPublisher(cluster.ports, "numbers") as publisher:
        publisher.wait_for_more()
        ballast = fill_up(disk)
        wait_until(lambda: "publishers are blocked" in limited.log(), "an alarm")
        confirmed = len(publisher.confirmed)
        assert cluster.leader() is limited
        assert len(cluster.in_sync()) == COUNT
        assert len(publisher.confirmed) == confirmed
        ballast.unlink()
        publisher.wait_for_more()
    assert set(publisher.events) <= {"refused", "blocked"}
    cluster.have_lead(cluster.nodes[1])
    assert publisher.read_all() >= set(publisher.confirmed)
