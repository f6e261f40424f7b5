"""Exactly once over a cluster whose leaders are killed, one after another.

Publishers with confirms go on all the time. In the end each record of the log is in the sink once,
and each confirmed message is in the log.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise

import pytest

from spark_tests.copy_query import parse, start
from spark_tests.test_kills import batches, bodies
from tests.cluster_processes.account import Account, MessageId
from tests.cluster_processes.clients import PikaPublisher, RobustPublisher, pika_connection
from tests.cluster_processes.launcher import LocalCluster
from tests.cluster_processes.partitions import leaders_of, wait_until_in_sync
from tests.support.waiting import wait_until

KILLS = 4
TOPIC = {"x-queue-type": "stream", "x-partitions": 3, "x-replicas": 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, session_timeout_ms=3000) as cluster:
        yield cluster


@pytest.fixture
def declare(cluster):
    """Return a function that declares topics with replicas on all nodes."""

    def declare(*names):
        with pika_connection(cluster.nodes[1]) as connection:
            for name in names:
                connection.channel().queue_declare(name, durable=True, arguments=TOPIC)
        wait_until_in_sync(cluster)

    return declare


def server_of(node):
    """Return a node as the option `servers` has it."""
    return f"127.0.0.1:{node.ports.http}"


def servers_of(cluster):
    """Return all nodes as the option `servers` has them."""
    return ",".join(map(server_of, cluster.nodes.values()))


@contextmanager
def published(cluster, topic):
    """Have two publishers at work; yield their account."""
    account = Account([topic])
    seed = random.randrange(1 << 32)
    publishers = [
        kind(cluster, account, topic, seed + number, publisher=number)
        for number, kind in enumerate((PikaPublisher, RobustPublisher))
    ]
    for each in publishers:
        each.start()
    try:
        yield account
    finally:
        for each in publishers:
            each.join()


@contextmanager
def running(spark, *arguments):
    """Run a query of copy_query; at the end, it has read what is there by then."""
    query = start(spark, parse([str(each) for each in arguments]))
    try:
        yield query
        query.processAllAvailable()
    finally:
        query.stop()


def wait_for_batches(query, directory, count):
    """Wait until the query has made so many batches more than there were."""
    wanted = batches(directory) + count
    wait_until(lambda: not query.isActive or batches(directory) >= wanted, "micro-batches")
    assert query.isActive, query.exception()


def kill_leaders(cluster, topic, query, directory, *, waits=False):
    """Kill one leader of the topic after another. The query goes on, or `waits` for the node."""
    wait_for_batches(query, directory, 2)
    began = time.time()
    for kill in range(KILLS):
        leaders = leaders_of(cluster, topic)
        node = cluster.nodes[leaders[kill % len(leaders)]]
        node.kill()
        if not waits:
            wait_for_batches(query, directory, 2)
        node.start()
        wait_until_in_sync(cluster)
        wait_for_batches(query, directory, 1)
    seconds = longest_pause(directory, began)
    print(f"{batches(directory)} batches, the longest pause {seconds:.1f} s")


def check_log(account, topic, stored):
    """Check that each confirmed message is in the log, on every partition."""
    assert not account.troubles
    found = {MessageId.of(row.body.encode()) for row in stored}
    assert found >= account.queues[topic].confirmed
    assert {row.partition for row in stored} == {0, 1, 2}


def longest_pause(directory, began):
    """Return the longest time between two micro-batches since a time, in seconds."""
    commits = (directory / "checkpoint" / "commits").glob("[0-9]*")
    times = sorted(found for each in commits if (found := each.stat().st_mtime) >= began)
    return max(after - before for before, after in pairwise(times))


@pytest.mark.timeout(600)
def test_each_message_is_in_the_files_once(spark, cluster, declare, tmp_path):
    topic, servers = "read", servers_of(cluster)
    declare(topic)
    with running(spark, servers, topic, tmp_path) as query, published(cluster, topic) as account:
        kill_leaders(cluster, topic, query, tmp_path)
    stored = bodies(spark, servers, topic)
    check_log(account, topic, stored)
    table = spark.read.parquet(str(tmp_path / "out"))
    written = Counter(map(tuple, table.select("body", "partition", "offset").collect()))
    assert written == Counter(map(tuple, stored))
    assert set(written.values()) == {1}


@pytest.mark.timeout(600)
def test_each_message_is_written_once_by_one_node(spark, cluster, declare, tmp_path):
    topic, target, servers = "copied", "copies", servers_of(cluster)
    declare(topic, target)
    options = [servers, topic, tmp_path, "--into", target, "--by", server_of(cluster.nodes[1])]
    with running(spark, *options) as query, published(cluster, topic) as account:
        kill_leaders(cluster, target, query, tmp_path, waits=True)
    stored = bodies(spark, servers, topic)
    check_log(account, topic, stored)
    copies = (row.body.rsplit(".", 2) for row in bodies(spark, servers, target))
    written = Counter((body, int(part), int(offset)) for body, part, offset in copies)
    assert written == Counter(map(tuple, stored))
    assert set(written.values()) == {1}
