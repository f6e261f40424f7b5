"""Whole nodes of a cluster in one event loop, with a coordinator in memory, and real clients."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import shutil
import socket
import threading
import time
from functools import partial

import pika
import pytest
from pika.exceptions import AMQPError, NackError

from leveret.cli.health import probe
from leveret.cluster.client_proxy import ClientProxy
from leveret.cluster.coordination import zookeeper
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator, boottime_ms
from leveret.cluster.entries import CONTROLLER
from leveret.cluster.member import ClusterMember
from leveret.config import Configuration
from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import request
from leveret.node import clustered, serving
from leveret.node.clustered import serve_in_cluster
from leveret.node.process import Process
from leveret.node.reign import NodeReign
from leveret.node.zookeeper import connect_zookeeper
from leveret.ports.coordinator import CoordinatorUnavailableError
from leveret.storage import cluster_file
from leveret.storage.cluster_file import refuse_member
from leveret.storage.lock import DirectoryLock
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.snapshot import SNAPSHOT
from tests.cluster.replicating import NEVER_MS, LoopTime
from tests.support import coordinator
from tests.support.command_line import FREE_PORTS, CommandLine
from tests.support.coordinator import FakeEnsemble
from tests.support.http import HttpClient, http_text
from tests.support.node import node_in_thread
from tests.support.ports import free_ports
from tests.support.waiting import LIMIT_SECONDS, eventually

COUNT = 3
HOST = "127.0.0.1"


async def until(ask, is_so):
    """Ask again and again, until the answer is so."""
    while True:
        answer = await ask()
        if is_so(answer):
            return answer
        await asyncio.sleep(0.01)


class TestedProcess(Process):
    """A process that ends where a real one would begin anew."""

    __test__ = False
    began_anew = ""

    def begin_anew(self, reason):
        self.began_anew = reason
        self.stopping.set()


class BootTime(LoopTime):
    """The time that leases are measured by."""

    def seconds(self) -> float:
        return boottime_ms() / 1000


class Nodes:
    """Nodes by their numbers, each with a directory of its own."""

    def __init__(self, path):
        self.ensemble = FakeEnsemble(BootTime(), session_ms=2 * NEVER_MS)
        self.is_reachable = True
        self.clients = {}
        self.path = path
        self.ports = free_ports(4 * COUNT)
        self.running: dict[int, tuple[TestedProcess, asyncio.Task]] = {}

    def configuration(self, number, **settings):
        links, amqp, http = self.ports[3 * number : 3 * number + 3]
        return Configuration(
            data_dir=self.path / str(number),
            cluster="nowhere/tested",
            node_id=number,
            advertise=f"{HOST}:{links}",
            port=amqp,
            http_port=http,
            prometheus_port=self.ports[3 * COUNT + number],
            busy_poll_microseconds=0,
            **settings,
        )

    def start(self, number, **settings):
        configuration = self.configuration(number, **settings)
        configuration.data_dir.mkdir(exist_ok=True)
        task = asyncio.get_running_loop().create_task(self._run(configuration, number))
        self.running[number] = None, task
        return task

    async def _run(self, configuration, number):
        async def connect(process):
            await eventually(lambda: self.is_reachable or process.stopping.is_set())
            self.clients[number] = self.ensemble.client()
            return None if process.stopping.is_set() else self.clients[number]

        with DirectoryLock(configuration.data_dir) as lock:
            async with asyncio.TaskGroup() as tasks:
                process = TestedProcess(configuration, tasks)
                self.running[number] = process, self.running[number][1]
                await serve_in_cluster(process, lock, time.monotonic(), connect)
                process.cancel_tasks()

    async def stop(self, number):
        process, task = self.running.pop(number)
        process.stopping.set()
        await task
        return process

    async def ask(self, number, operation="cluster.nodes", **parameters):
        """Return the answer to a command at a node."""
        path = self.path / str(number) / "control.sock"
        while True:
            await eventually(path.exists)
            with contextlib.suppress(StorageError):  # hung up: it begins to lead
                return await asyncio.to_thread(
                    request, path, operation, parameters, seconds_max=LIMIT_SECONDS
                )

    async def members(self):
        """Return what a node tells of all, once one of them leads."""
        while True:
            for number in list(self.running):
                answer = await self.ask(number)
                if answer["ok"] and any(each["role"] == "leader" for each in answer["result"]):
                    return {each["node"]: each for each in answer["result"]}
            await asyncio.sleep(0.01)

    async def leader(self):
        """Return the number of the node that leads and serves."""
        members = await self.members()
        number = next(node for node, each in members.items() if each["role"] == "leader")
        await until(partial(self.ask, number, "user.list"), lambda answer: answer["ok"])
        return number

    async def in_sync(self, count):
        await until(
            self.members,
            lambda members: (
                count == sum(each["is_in_sync"] and each["is_live"] for each in members.values())
            ),
        )

    def connect(self, number):
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                HOST,
                self.ports[3 * number + 1],
                heartbeat=0,
                socket_timeout=LIMIT_SECONDS,
                stack_timeout=LIMIT_SECONDS,
                blocked_connection_timeout=LIMIT_SECONDS,
            )
        )

    def publish(self, number, first, count, window=None, headers=None):
        """Publish confirmed messages over a node, whichever leads."""
        arguments = {"x-queue-type": "quorum"}
        if window is not None:
            arguments["x-dedup-window"] = window
        with self.connect(number) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments=arguments)
            for body in range(first, first + count):
                properties = pika.BasicProperties(
                    delivery_mode=2, message_id=str(body), headers=headers
                )
                channel.basic_publish("", "q", b"%d" % body, properties)

    def drain(self, number):
        with self.connect(number) as connection:
            channel = connection.channel()
            found = []
            while True:
                _, _, body = channel.basic_get("q", auto_ack=True)
                if body is None:
                    return found
                found.append(int(body))


@pytest.fixture
async def nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "start_collector", lambda _: None)  # garbage is the tests' own
    monkeypatch.setattr(serving, "collect_garbage", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(coordinator, "REREAD_MS", 1_000)  # hints may get lost
    made = Nodes(tmp_path)
    async with asyncio.timeout(LIMIT_SECONDS):
        yield made
        for number in list(made.running):
            await made.stop(number)


async def started(nodes):
    for number in range(COUNT):
        nodes.start(number)
    leader = await nodes.leader()
    await nodes.in_sync(COUNT)
    return leader, [number for number in range(COUNT) if number != leader]


async def test_clients_of_any_node_are_served_and_find_all_at_the_next_leader(nodes):
    first, others = await started(nodes)
    await asyncio.to_thread(nodes.publish, others[0], 0, 20, NEVER_MS)
    answer = await nodes.ask(first, "user.add", name="ada", password="secret", tags=[])
    assert answer["ok"], answer
    process = await nodes.stop(first)
    assert process.began_anew == ""
    second = await nodes.leader()
    assert second in others
    third = next(number for number in others if number != second)
    await asyncio.to_thread(nodes.publish, third, 10, 30, NEVER_MS)  # ten of them are there already
    users = await nodes.ask(second, "user.list")
    assert "ada" in {user["name"] for user in users["result"]}
    nodes.start(first)
    await nodes.in_sync(COUNT)
    assert await asyncio.to_thread(nodes.drain, first) == list(range(40))


async def test_pages_and_api_are_those_of_the_leader(nodes):
    first, others = await started(nodes)

    def get(port, path):
        with HttpClient(f"{HOST}:{port}") as client:
            answer = client.get(path)
            return answer.json() if path.startswith("/api") else answer.text

    rows = await asyncio.to_thread(get, nodes.ports[3 * others[0] + 2], "/api/nodes")
    assert [row["member"]["node"] for row in rows] == [0, 1, 2]
    assert [row["running"] for row in rows] == [True] * 3
    assert rows[first]["member"]["role"] == "leader"
    assert "mem_limit" in rows[first]
    assert rows[others[0]]["member"]["messages_behind"] == 0
    for number in range(COUNT):
        metrics = await asyncio.to_thread(get, nodes.ports[3 * COUNT + number], "/metrics")
        assert f'leveret_cluster_node_leads{{member="{first}"}} 1' in metrics
        told = r'^leveret_cluster_node_lease_seconds\{member="(\d)"\} (\S+)$'
        leases = dict(re.findall(told, metrics, re.MULTILINE))
        assert {node for node, left in leases.items() if left.lower() != "nan"} == {str(number)}
        assert float(leases[str(number)]) > 0
    metrics = await asyncio.to_thread(get, nodes.ports[3 * COUNT + first], "/metrics")
    assert f'leveret_cluster_node_leads{{member="{others[0]}"}} 0' in metrics
    assert f'leveret_cluster_node_seconds_behind{{member="{others[0]}"}} 0' in metrics


async def test_a_client_that_comes_before_anybody_leads_is_held_and_then_served(nodes):
    nodes.is_reachable = False
    nodes.start(0, cluster_hold_ms=int(LIMIT_SECONDS * 1000))
    # Its ports are open before it answers.
    assert (await nodes.ask(0, "user.list"))["error"] == "not_leading"
    publishing = asyncio.get_running_loop().create_task(asyncio.to_thread(nodes.publish, 0, 0, 5))
    await asyncio.sleep(0.1)
    assert not publishing.done()
    nodes.is_reachable = True
    await publishing
    assert await asyncio.to_thread(nodes.drain, 0) == list(range(5))


async def test_a_client_that_was_held_for_long_enough_is_told(nodes):
    nodes.is_reachable = False
    nodes.start(0, cluster_hold_ms=1)

    def refused():
        with pytest.raises(AMQPError) as caught:
            nodes.connect(0)
        return repr(caught.value)

    assert (await nodes.ask(0, "user.list"))["error"] == "not_leading"  # its ports are open
    assert "no node of the cluster leads" in await asyncio.to_thread(refused)


async def test_a_client_that_the_leader_does_not_take_is_told_so(nodes, monkeypatch):
    monkeypatch.setattr(ClusterMember, "take_clients", lambda *_: None)
    nodes.start(0)
    await nodes.leader()
    nodes.start(1, cluster_hold_ms=1)
    await nodes.in_sync(2)

    def refused():
        with pytest.raises(AMQPError) as caught:
            nodes.connect(1)
        with HttpClient(f"{HOST}:{nodes.ports[3 + 2]}") as client:
            answer = client.get("/api/nodes")
            return repr(caught.value), answer.status_code, answer.json()["reason"]

    told = "a node leads, but did not take this client in time: try again in some seconds"
    in_amqp, *in_http = await asyncio.to_thread(refused)
    assert told in in_amqp
    assert in_http == [503, told]


async def test_who_follows_answers_few_commands(nodes):
    first, others = await started(nodes)
    health = await nodes.ask(others[0], "node.health")
    assert health["result"] == {"serving": True, "alarms": []}
    asked = nodes.path / str(others[0]), LIMIT_SECONDS
    assert await asyncio.to_thread(probe, *asked, as_json=False, in_sync=True) == 0
    refused = await nodes.ask(others[0], "queue.list")
    assert refused["error"] == "not_leading"
    assert f"node {first} at {HOST}" in refused["explanation"]
    _, task = nodes.running.pop(others[0])
    assert (await nodes.ask(others[0], "node.stop"))["ok"]
    await task
    await nodes.in_sync(COUNT - 1)


async def test_a_node_that_has_not_reached_zookeeper_tells_of_itself(nodes):
    nodes.is_reachable = False
    nodes.start(1)
    (own,) = (await nodes.ask(1))["result"]
    assert (own["node"], own["is_live"], own["lease_ms"]) == (1, False, 0)
    metrics = await asyncio.to_thread(
        http_text, f"http://{HOST}:{nodes.ports[3 * COUNT + 1]}/metrics"
    )
    assert 'leveret_cluster_node_leads{member="1"} 0' in metrics


@contextlib.asynccontextmanager
async def connecting(path, port):
    """A process whose ZooKeeper is at a port."""
    configuration = Configuration(
        data_dir=path, cluster=f"{HOST}:{port}/x", node_id=0, advertise=f"{HOST}:1"
    )
    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as tasks:
        yield TestedProcess(configuration, tasks)


async def test_a_node_is_stopped_while_it_connects_to_zookeeper(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(zookeeper, "START_SECONDS", NEVER_MS)
    monkeypatch.setattr(zookeeper, "CLOSE_SECONDS", NEVER_MS)
    loop, before = asyncio.get_running_loop(), set(threading.enumerate())
    with socket.create_server((HOST, 0)) as silent:
        silent.setblocking(False)
        async with connecting(tmp_path, silent.getsockname()[1]) as process:
            found = loop.create_task(connect_zookeeper(process))
            connection, _ = await loop.sock_accept(silent)
            with connection:
                process.stopping.set()
                assert await found is None
    await eventually(lambda: before.issuperset(threading.enumerate()), "the end of all threads")
    assert caplog.messages == []


async def test_a_node_that_is_to_stop_does_not_try_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("leveret.node.zookeeper.RETRY_SECONDS", 0.01)
    failures = iter(["no session.", "none either"])

    async def fail(_coordinator):
        failure = next(failures)
        if failure == "none either":
            process.stopping.set()
        raise CoordinatorUnavailableError(failure)

    monkeypatch.setattr(ZooKeeperCoordinator, "start", fail)
    async with connecting(tmp_path, 1) as process:
        assert await connect_zookeeper(process) is None
    assert caplog.messages == ["no session. This node tries again"]


async def test_a_quorum_queue_refuses_what_only_one_node_would_have(nodes):
    first, others = await started(nodes)
    await asyncio.to_thread(nodes.publish, first, 0, 5)
    for number in others:
        await nodes.stop(number)
    await nodes.in_sync(1)
    for headers in (None, {"x-delay": 1}, {"x-prepare": True}):
        with pytest.raises(NackError):
            await asyncio.to_thread(nodes.publish, first, 5, 1, headers=headers)
    assert await asyncio.to_thread(nodes.drain, first) == list(range(5))


async def test_logs_and_notes_of_them_are_listed_in_threads(nodes, monkeypatch):
    listing = {}

    def tell(name, work):
        def told(*arguments, **options):
            listing.setdefault(name, []).append(threading.current_thread())
            return work(*arguments, **options)

        return told

    for name in ("list_logs", "newest_epoch", "ReplicaStore"):
        monkeypatch.setattr(clustered, name, tell(name, getattr(clustered, name)))
    topics = nodes.path / "0" / "topics"
    (topics / "%2F" / f"q~~{16 * '0'}" / "0").mkdir(parents=True)
    nodes.start(0)
    await nodes.leader()
    assert set(listing) == {"list_logs", "newest_epoch", "ReplicaStore"}
    assert threading.current_thread() not in itertools.chain(*listing.values())


async def test_who_loses_its_lease_begins_anew(nodes):
    first, others = await started(nodes)
    process, task = nodes.running[first]
    nodes.ensemble.expire(nodes.clients[first].session)
    await task
    assert "session" in process.began_anew
    del nodes.running[first]
    assert await nodes.leader() in others


async def test_a_member_whose_disk_hangs_begins_anew(nodes, monkeypatch):
    """With its session: it may be the controller, without which nobody is elected."""
    _, (other, _) = await started(nodes)
    process, task = nodes.running[other]
    closes, answers, ended = ReplicaStore.close, threading.Event(), []

    async def hang(store):
        ended.append(await store._run(partial(answers.wait, LIMIT_SECONDS)))
        await closes(store)

    with monkeypatch.context() as patched:
        patched.setattr(clustered, "CLOSE_SECONDS", 0.01)
        patched.setattr(ReplicaStore, "close", hang)
        nodes.ensemble.expire(nodes.clients[other].session)
        await process.stopping.wait()  # a real process is gone by now
        assert not ended
        answers.set()
        await task
    assert process.began_anew == "its disk hangs"
    del nodes.running[other]


def filling(directory):
    """Return what writes a cluster's file as a full disk does, of one node; and its refusals."""
    refusals, write = [], cluster_file.write_file

    def fill(files, path, *content, **options):
        if path.parent == directory:
            refusals.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(files, path, *content, **options)

    return fill, refusals


async def test_a_member_whose_disk_is_full_follows_again_once_there_is_space(
    nodes, monkeypatch, caplog
):
    monkeypatch.setattr(clustered, "RETRY_SECONDS", 0.01)
    first, (other, _) = await started(nodes)
    process, task = nodes.running[other]
    own = nodes.path / str(other)
    fill, refusals = filling(own)

    with monkeypatch.context() as patched:
        patched.setattr(cluster_file, "write_file", fill)
        nodes.ensemble.expire(nodes.clients[other].session)
        await eventually(lambda: len(refusals) > 2 or task.done(), "some attempts")
        assert not task.done()
        assert (await nodes.ask(other, "user.list"))["error"] == "not_leading"
        publishing = asyncio.get_running_loop().create_task(
            asyncio.to_thread(nodes.publish, other, 0, 5)
        )
        await nodes.in_sync(COUNT - 1)
    await publishing  # was held
    await nodes.in_sync(COUNT)
    assert nodes.running[other][0] is process
    assert process.began_anew == ""
    (told,) = (line for line in caplog.messages if os.strerror(errno.ENOSPC) in line)
    assert told == (
        f"cannot write {own / 'cluster.json'}: No space left on device; the disk is full: free "
        "space or enlarge it; this node follows again by itself once there is space"
    )
    assert await asyncio.to_thread(nodes.drain, first) == list(range(5))


async def test_a_controller_that_waits_for_space_is_none(nodes, monkeypatch):
    """Its member may have ended within a session, with which the controller's entry would stay."""
    monkeypatch.setattr(clustered, "RETRY_SECONDS", 0.01)
    members, begin = {}, ClusterMember.start

    async def start(member):
        await begin(member)
        members[member.node] = member

    monkeypatch.setattr(ClusterMember, "start", start)
    first, (other, third) = await started(nodes)
    session = nodes.clients[other].session
    entries = nodes.ensemble.entries
    entries[CONTROLLER] = entries[CONTROLLER]._replace(owner=session)
    fill, _ = filling(nodes.path / str(other))
    with monkeypatch.context() as patched:
        patched.setattr(cluster_file, "write_file", fill)
        members[other]._end("its disk is full")
        await eventually(lambda: not nodes.ensemble.owns(session, CONTROLLER), "another one")
        await nodes.stop(first)
        assert await nodes.leader() == third
    await nodes.in_sync(2)


async def test_a_member_whose_disk_fails_otherwise_ends(nodes, monkeypatch):
    _, (other, _) = await started(nodes)
    own, write = nodes.path / str(other), cluster_file.write_file

    def fail(files, path, *content, **options):
        if path.parent == own:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(files, path, *content, **options)

    _, task = nodes.running.pop(other)
    with monkeypatch.context() as patched:
        patched.setattr(cluster_file, "write_file", fail)
        nodes.ensemble.expire(nodes.clients[other].session)
        with pytest.raises(ExceptionGroup, match="unhandled") as caught:
            await task
    assert "reports an error" in str(caught.value.exceptions[0])


async def test_who_leads_no_more_is_cut_off_before_it_begins_anew(nodes):
    nodes.start(0, handshake_timeout_seconds=NEVER_MS)
    await nodes.leader()
    process, _ = nodes.running[0]
    client = await asyncio.open_connection(HOST, nodes.ports[1])

    def begin_anew(reason):
        raise BrokenPipeError(reason)

    process.begin_anew = begin_anew
    nodes.ensemble.expire(nodes.clients[0].session)
    async with asyncio.timeout(LIMIT_SECONDS):
        assert await client[0].read() == b""
    client[1].close()


async def test_who_leads_again_counts_no_usage_of_other_reigns(nodes):
    async def led_by(leader, other):
        """Return the messages that a node has counted, after it has led and two more came."""
        await until(nodes.leader, lambda number: number == leader)
        nodes.start(other)
        await nodes.in_sync(2)
        await asyncio.to_thread(nodes.publish, leader, 0, 2)
        asked = {"since": 0, "until": 1 << 40, "subject": "queue", "name": "q"}
        rows = (await nodes.ask(leader, "usage.list", **asked))["result"]
        await nodes.stop(leader)
        return sum(row["messages_in"] for row in rows)

    nodes.start(0)
    counted = [await led_by(leader, 1 - leader) for leader in (0, 1, 0)]
    assert counted == [2, 2, 4]


@pytest.mark.parametrize("has_ports", [False, True])
async def test_a_reign_that_ends_before_it_serves_takes_no_client(nodes, monkeypatch, has_ports):
    monkeypatch.setattr("leveret.node.reign.RESIGN_SECONDS", NEVER_MS)
    take_ports, reigns, served = NodeReign.take_ports, [], []

    async def end(reign):
        taken = await take_ports(reign) if has_ports else None
        reign.end("its disk has failed")
        reigns.append(reign)
        return taken if has_ports else await take_ports(reign)

    monkeypatch.setattr(NodeReign, "take_ports", end)
    monkeypatch.setattr(ClientProxy, "serve_here", lambda *_: served.append(True))
    task = nodes.start(0, cluster_hold_ms=1)
    await eventually(lambda: reigns, "a reign")
    with pytest.raises(AMQPError):
        await asyncio.to_thread(nodes.connect, 0)
    process, _ = nodes.running.pop(0)
    process.stopping.set()
    await task
    assert not served


async def test_a_node_that_has_left_its_cluster_has_all_definitions_or_does_not_start(nodes):
    nodes.start(0)
    await nodes.leader()
    await asyncio.to_thread(nodes.publish, 0, 0, 3)
    await nodes.stop(0)
    left = nodes.path / "0"
    (left / "cluster.json").unlink()
    half = nodes.path / "half"  # of a backup: the definitions come last
    shutil.copytree(left / "topics", half / "topics")
    damaged = nodes.path / "damaged"
    shutil.copytree(left, damaged)
    (log,) = damaged.glob("topics/%/leveret.definitions~~*/0/*.log")
    content = bytearray(log.read_bytes())
    content[len(content.rstrip(b"\0")) // 2] ^= 1
    log.write_bytes(content)

    def start(data, **settings):
        with node_in_thread(data, **settings):
            return len(list(data.glob("topics/%2F/q~~*/0/*.log")))

    for data, told in ((half, "leveret.db is missing"), (damaged, "log of definitions in")):
        with pytest.raises(StorageError, match=told):
            await asyncio.to_thread(start, data)
    assert await asyncio.to_thread(start, damaged, accept_loss=["definitions"]) == 1
    assert await asyncio.to_thread(start, left) == 1
    assert not list(left.glob("topics/%/leveret.definitions~~*/0"))


async def test_who_does_not_lead_has_no_snapshot_of_its_last_reign(nodes):
    snapshot = nodes.path / "0" / SNAPSHOT
    (snapshot / "topics").mkdir(parents=True)
    nodes.is_reachable = False
    nodes.start(0)
    await eventually(lambda: not snapshot.exists())


@pytest.mark.usefixtures("processes")  # LMDB may kill the one that reads its file
async def test_nothing_is_wrong_with_members_that_are_stopped(nodes):
    first, others = await started(nodes)
    await asyncio.to_thread(nodes.publish, others[0], 0, 5)
    for number in (*others, first):
        await nodes.stop(number)
        data = nodes.path / str(number)
        data.chmod(0o700)
        told = CommandLine(data, "doctor", **FREE_PORTS)("--deep")
        assert told == (
            f"{data}, whose node is stopped, and whose definitions are in its cluster's log, so "
            "that logs were not compared with queues: nothing is wrong\n"
        )


async def test_a_directory_of_a_cluster_is_that_of_its_node(nodes):
    nodes.start(0)
    await nodes.leader()
    await nodes.stop(0)
    with pytest.raises(StorageError, match="node 0 of cluster"):
        refuse_member(nodes.path / "0", "do something")
    (nodes.path / "0").rename(nodes.path / "1")
    with pytest.raises(ExceptionGroup) as caught:
        await nodes.start(1)
    assert "that of node 0" in str(caught.value.exceptions[0])
    del nodes.running[1]
