"""Three nodes and a ZooKeeper, under load, with faults of all kinds: nothing confirmed is lost."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack

import pika
import pytest

from tests.cluster_processes.clients import QUEUES, WORK, pika_connection
from tests.cluster_processes.faults import KINDS, RECOVERY_SECONDS_MAX, under_load
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.network import ClusterNetwork
from tests.harness.broker import MIB
from tests.harness.small_disk import small_disk

SETTINGS = {"disk_free_bytes_min": 0, "segment_bytes_max": MIB}
SESSION_MS = 3000


def make_seed() -> int:
    """From TEST_SEED, to have the same faults again; else any. A failure shows it."""
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TEST_SEED={seed}")
    return seed


def make_cluster(tmp_path) -> LocalCluster:
    return LocalCluster(
        tmp_path / "cluster",
        settings=SETTINGS,
        session_timeout_ms=SESSION_MS,
        network=ClusterNetwork(),
    )


def survive(cluster: LocalCluster, kinds) -> None:
    with under_load(cluster, make_seed()) as rounds:
        for kind in kinds(rounds.rng):
            rounds.run(kind)
        rounds.finish()


@pytest.mark.timeout(600)
def test_a_killed_and_a_paused_node_lose_nothing_confirmed(tmp_path):
    survive(make_cluster(tmp_path), lambda _rng: ["kill", "pause"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thirty_faults_lose_nothing_confirmed(tmp_path):
    survive(make_cluster(tmp_path), lambda rng: rng.choices(KINDS, k=30))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_full_disks_lose_nothing_confirmed(tmp_path):
    cluster = make_cluster(tmp_path)
    with ExitStack() as disks:
        for node in cluster.nodes.values():
            disks.enter_context(small_disk(node.data, 64 * MIB))
        survive(cluster, lambda _rng: ["fill_disk"] * 4)


@pytest.mark.timeout(600)
def test_without_zookeeper_queues_go_on_and_declares_are_refused(tmp_path):
    with under_load(make_cluster(tmp_path), make_seed()) as rounds:
        nodes = rounds.cluster.nodes.values()
        rounds.cluster.stop_zookeeper()
        rounds.faults += len(nodes)
        time.sleep(SESSION_MS / 1000)
        for node in nodes:
            with pika_connection(node) as connection:
                connection.channel().queue_declare(WORK, durable=True, arguments=QUEUES[WORK])
        for node in nodes:
            with pika_connection(node) as connection:
                channel = connection.channel()
                with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
                    channel.queue_declare("another", durable=True)
            assert refused.value.reply_code == 541
            assert "definitions cannot be changed now" in refused.value.reply_text
        rounds.await_progress()
        rounds.cluster.start_zookeeper()
        for node in nodes:
            declare_once_possible(node, "another")
        rounds.finish()


def declare_once_possible(node, queue: str) -> None:
    deadline = time.monotonic() + RECOVERY_SECONDS_MAX
    while True:
        try:
            with pika_connection(node) as connection:
                connection.channel().queue_declare(queue, durable=True)
        except pika.exceptions.ConnectionClosedByBroker:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return
