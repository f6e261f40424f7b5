"""Members of a cluster over real sockets and real files: one leads, dies, and another goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from leveret.cluster.entries import (
    CLUSTER,
    CONTROLLER,
    MalformedEntryError,
    ShardValue,
    node_path,
    parse_entry,
    shard_path,
)
from leveret.cluster.membership import Membership, MembershipError
from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports.coordinator import WriteOutcome
from leveret.ports.replication import LogFiles
from leveret.replication import codec
from leveret.replication.messages import Acknowledge, Attach, Attached
from leveret.replication.replica import Role
from leveret.storage.cluster_file import ClusterFile, refuse_member
from leveret.storage.files import RealFileSystem
from leveret.storage.segment import Segment
from tests.cluster.replicating import COUNT, NEVER_MS, FakeCluster, publish
from tests.storage.harness import bodies, put
from tests.support.ports import free_ports
from tests.support.waiting import eventually


@pytest.fixture
async def empty(tmp_path):
    cluster = FakeCluster(tmp_path, free_ports(COUNT + 1))
    yield cluster
    for node in list(cluster.nodes.values()):
        await node.stop()
    assert cluster.failures == []


@pytest.fixture
async def cluster(empty):
    for number in range(COUNT):
        await empty.start(number)
    return empty


async def test_another_node_goes_on_with_all_that_was_committed(cluster):
    first = await cluster.leader()
    await cluster.in_sync(3)
    await publish(first, 0, 500)
    await first.stop()
    second = await cluster.leader()
    assert second is not first
    await cluster.in_sync(2)
    await publish(second, 500, 500)
    await cluster.start(first.number)
    await cluster.in_sync(3)
    await second.stop()
    third = await cluster.leader()
    log = third.reign.log
    assert log.end == 1000
    assert list((await bodies(log)).values()) == [b"%d" % number for number in range(1000)]
    await publish(third, 1000, 10)
    await cluster.start(second.number)
    await cluster.in_sync(3)
    await publish(third, 1010, 10)
    wanted = cluster.content(third.number)
    assert len(wanted) == 3  # one for each reign that has written
    for number in range(COUNT):
        await eventually(lambda number=number: cluster.content(number) == wanted)


async def test_a_log_that_needs_two_copies_refuses_what_comes_to_one(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    log, refused = leader.reign.log, []
    log.require_copies(2)
    log.on_failure(refused.append)
    await publish(leader, 0, 20)
    others = [node for node in cluster.nodes.values() if node is not leader]
    await others[0].stop()
    await cluster.in_sync(2)
    await publish(leader, 20, 20)
    await others[1].stop()
    put(log, b"40")  # waits for a copy until it is known that there will be none
    await eventually(lambda: refused)
    assert log.committed == 40
    with pytest.raises(NotEnoughCopiesError, match="needs 2 nodes"):
        put(log, b"refused")
    assert log.end == 41
    log.settle([(0, 10)])  # consumers go on
    await log.settlements_safe()
    await cluster.start(others[1].number)
    await cluster.in_sync(2)
    await publish(leader, 41, 20)
    assert list((await bodies(log)).values()) == [b"%d" % number for number in range(61)]


async def test_a_confirm_need_not_wait_for_copies(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    log, told = leader.reign.log, []
    log.on_commit(lambda: told.append(log.acknowledged))
    log.require_copies(1, waits=False)
    await publish(leader, 0, 20)
    for node in cluster.nodes.values():
        node.member.runner._links.links.close()  # no copy comes any more
    put(log, b"20")
    await eventually(lambda: told[-1:] == [21])
    assert log.committed == 20
    log.require_copies(1)
    assert log.acknowledged == 20


async def test_no_log_needs_more_copies_than_there_were_nodes_in_sync(empty):
    leader = await empty.start(0)
    await empty.leader()
    leader.reign.log.require_copies(2)
    await publish(leader, 0, 20)


async def test_a_controller_that_comes_back_at_once_is_it_again(cluster):
    first = await cluster.leader()
    await cluster.in_sync(3)
    await publish(first, 0, 20)
    controller = json.loads(cluster.ensemble.entries[CONTROLLER].value)["node"]
    for number in {first.number, controller}:
        node = cluster.nodes[number]
        node.coordinator.is_reachable = False  # its session goes on
        await node.stop()
        await cluster.start(number)
    second = await cluster.leader()
    await publish(second, 20, 20)
    found = json.loads(cluster.ensemble.entries[CONTROLLER].value)
    assert found["incarnation"] == cluster.nodes[found["node"]].member.incarnation


async def test_messages_from_the_wrong_end_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, encoder, _ = follower.links[True, leader.number]
    link.send(encoder.encode(Attached(1)))
    await eventually(lambda: not link.is_open)
    await eventually(lambda: (True, leader.number) in follower.links)
    link, encoder, _ = leader.links[False, follower.number]
    link.send(encoder.encode(Acknowledge(1, 1)))
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)


async def test_bytes_that_are_no_message_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, _, _ = follower.links[True, leader.number]
    link.send([(5).to_bytes(4, "little") + b"\x99" * 5])
    await eventually(lambda: not link.is_open)
    await publish(leader, 0, 10)


async def test_logs_that_are_none_close_a_link(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    link, encoder, _ = follower.links[True, leader.number]
    epoch = leader.member.runner.replica.entry.epoch
    link.send(encoder.encode(Attach(epoch, 1, (LogFiles("no log"),))))
    await eventually(lambda: not link.is_open)
    await cluster.in_sync(3)
    await publish(leader, 0, 10)


async def test_logs_of_followers_are_not_decoded_on_the_loop(empty, monkeypatch):
    threads = []

    def decode(fields):
        threads.append(threading.current_thread())
        return decode_log(fields)

    decode_log = codec._decode_log
    monkeypatch.setattr(codec, "_decode_log", decode)
    leader = await empty.start(0)
    await publish(await empty.leader(), 0, 10)
    follower = await empty.start(1)
    await empty.in_sync(2)
    await eventually(lambda: empty.content(1) == empty.content(0))
    leader.member.runner._links.disconnect(follower.number)
    await eventually(lambda: threads)
    assert threading.current_thread() not in threads


async def test_a_leader_whose_session_is_over_serves_nobody(cluster):
    first = await cluster.leader()
    await cluster.in_sync(3)
    await publish(first, 0, 10)
    cluster.ensemble.expire(first.coordinator.session)
    await eventually(first.member.over.is_set)
    assert first.reign.is_over
    assert "session" in first.member.reason
    second = await cluster.leader()
    await publish(second, 10, 10)


async def test_a_leader_whose_disk_hangs_serves_nobody(cluster, monkeypatch):
    first = await cluster.leader()
    await cluster.in_sync(3)
    replica = first.member.runner.replica
    limits = replace(replica._limits, lag_ms_max=NEVER_MS, flush_ms_max=100)
    monkeypatch.setattr(replica.leader, "_limits", limits)
    monkeypatch.setattr(replica, "_limits", limits)
    goes_on, flush = threading.Event(), Segment.flush

    def hang(segment, files):
        if first.data in segment.path.parents:
            goes_on.wait()
        flush(segment, files)

    monkeypatch.setattr(Segment, "flush", hang)
    try:
        put(first.reign.log, b"0")
        await eventually(first.member.over.is_set)
        assert first.reign.is_over
        assert "its disk hangs" in first.member.reason
        second = await cluster.leader()
        assert second.reign.log.end == 1
        await publish(second, 1, 10)
    finally:
        goes_on.set()


async def test_a_leader_without_a_lease_serves_nobody(cluster):
    first = await cluster.leader()
    first.coordinator._lease.until_ms = 0
    first.coordinator.is_reachable = False
    await eventually(first.member.over.is_set)
    assert first.reign.is_over
    assert "lease" in first.member.reason


@pytest.mark.parametrize("leads", [False, True])
async def test_a_member_ends_with_an_error_of_its_replica(cluster, monkeypatch, caplog, leads):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    node = next(each for each in cluster.nodes.values() if (each is leader) is leads)

    def tick():
        raise ZeroDivisionError

    monkeypatch.setattr(node.member.runner, "tick", tick)
    await eventually(node.member.over.is_set)
    assert not node.serves
    assert node.member.reason == "an error of the program"
    assert "ZeroDivisionError" in caplog.text


async def test_a_node_without_a_session_tells_of_all_nodes_and_of_none_that_is_live(cluster):
    first = await cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not first)
    before = await follower.member.members()
    assert [(each.is_live, each.role == "leader") for each in before].count((True, True)) == 1
    cluster.ensemble.expire(follower.coordinator.session)
    await eventually(follower.member.over.is_set)
    after = await follower.member.members()
    assert [each.node for each in after] == [each.node for each in before]
    assert not any(each.is_live for each in after)


async def test_the_first_nodes_logs_are_the_clusters(empty):
    first = await empty.start(0)
    await publish(await empty.leader(), 0, 20)
    await empty.start(1)
    await empty.in_sync(2)
    await first.stop()
    second = await empty.leader()
    assert second.reign.log.end == 20


@pytest.mark.parametrize(
    ("number", "directory", "problem"),
    [
        (0, 3, "is registered with a data directory, and this is another one"),
        (1, 0, "the data directory is that of node 0"),
        (3, 4, "holds queues, which would be lost"),
    ],
)
async def test_a_directory_that_is_not_the_nodes_is_refused(empty, number, directory, problem):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    (empty.path / "4" / "topics").mkdir(parents=True)
    with pytest.raises(MembershipError, match=problem):
        await empty.start(number, directory)
    await empty.start(0)
    await empty.leader()


async def test_a_directory_of_another_cluster_is_refused(empty):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    other = empty.ensemble.entries
    empty.ensemble.entries = {}
    with pytest.raises(MembershipError, match="ZooKeeper knows no cluster"):
        await empty.start(0)
    await (await empty.start(1)).stop()
    with pytest.raises(MembershipError, match="belongs to cluster"):
        await empty.start(0)
    empty.ensemble.entries = other
    await empty.start(0)


async def die_while_founding(cluster, number, monkeypatch, *, is_done):
    """Start a node with queues, and end it before it hears whether it has founded a cluster."""
    client = cluster.ensemble.client()
    client.write_delays = [0 if is_done else None]
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "connect", lambda number: asyncio.sleep(0, client))
        start = asyncio.get_running_loop().create_task(cluster.start(number, has_data=True))
        await eventually(lambda: not client.write_delays)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    assert (CLUSTER in cluster.ensemble.entries) is is_done


async def test_a_founder_that_dies_before_it_knows_it_has_founded_the_cluster(empty, monkeypatch):
    await die_while_founding(empty, 0, monkeypatch, is_done=True)
    refuse_member(empty.path / "0", "it is not registered")
    with pytest.raises(MembershipError, match="holds queues, which would be lost"):
        await empty.start(1, has_data=True)
    with pytest.raises(MembershipError, match="that of node 0"):
        await empty.start(1, directory=0, has_data=True)
    founder = await empty.start(0, has_data=True)
    assert await empty.leader() is founder
    assert founder.file.state.founding is None


async def test_a_founder_of_which_nothing_came_founds_the_cluster_later(empty, monkeypatch):
    await die_while_founding(empty, 0, monkeypatch, is_done=False)
    founder = await empty.start(0, has_data=True)
    assert await empty.leader() is founder


async def test_a_founder_that_another_forestalled_stays_a_node_of_its_own(empty, monkeypatch):
    await die_while_founding(empty, 0, monkeypatch, is_done=False)
    await empty.start(1)
    with pytest.raises(MembershipError, match="holds queues, which would be lost"):
        await empty.start(0, has_data=True)
    refuse_member(empty.path / "0", "it never was one")
    joined = await empty.start(2, directory=0)  # its queues were removed
    await empty.in_sync(2)
    assert joined.file.state.founding is None


async def test_a_founder_whose_answer_is_lost_has_founded_the_cluster(empty, monkeypatch):
    client = empty.ensemble.client()
    commit = client.commit

    async def commit_unheard(*operations):
        client.commit = commit
        await commit(*operations)
        return WriteOutcome.UNKNOWN

    client.commit = commit_unheard
    monkeypatch.setattr(empty, "connect", lambda number: asyncio.sleep(0, client))
    assert await empty.start(0, has_data=True) is await empty.leader()


async def test_a_node_that_has_lost_its_disk_copies_everything_anew(cluster):
    leader = await cluster.leader()
    await cluster.in_sync(3)
    await publish(leader, 0, 50)
    lost = next(node for node in cluster.nodes.values() if node is not leader)
    await lost.stop()
    with pytest.raises(MembershipError, match="or its disk was lost"):
        await cluster.start(lost.number, directory=7)
    node = await cluster.start(lost.number, directory=7, replaces=True)
    await cluster.in_sync(3)
    await eventually(lambda: cluster.content(7) == cluster.content(leader.number))
    assert node.member.runner.replica.role is Role.FOLLOWING


def copy_directory(cluster, number):
    """Make an older copy of a node's directory, as far as the coordinator is concerned."""
    content = json.loads((cluster.path / str(number) / "cluster.json").read_text())
    (cluster.path / "7" / "cluster.json").write_text(json.dumps({**content, "incarnation": 0}))


@pytest.mark.parametrize("is_copy", [False, True])
async def test_a_node_is_registered_anew_only_while_it_is_not_in_sync(cluster, is_copy):
    leader = await cluster.leader()
    number = next(one for one, node in cluster.nodes.items() if node is not leader)
    (cluster.path / "7").mkdir()
    if is_copy:
        copy_directory(cluster, number)
    client, outcomes = cluster.ensemble.client(), []
    commit = client.commit

    async def commit_late(*operations):
        if node_path(number) not in {operation.path for operation in operations}:
            return await commit(*operations)
        if not outcomes:  # the process with the old disk is live, and follows
            await cluster.in_sync(3)
        outcomes.append(await commit(*operations))
        entry = parse_entry(ShardValue, shard_path(0), cluster.ensemble.entries[shard_path(0)])
        assert outcomes[-1] is WriteOutcome.CONFLICT or number not in entry.entry.isr
        return outcomes[-1]

    client.commit = commit_late
    await cluster.in_sync(3)
    settings = replace(cluster.nodes[number].settings, replaces=True)
    file = ClusterFile(RealFileSystem(), cluster.path / "7")
    incarnation = await Membership(client, file, settings).register()
    assert outcomes[0] is WriteOutcome.CONFLICT
    assert incarnation > cluster.nodes[number].member.incarnation


async def test_an_older_copy_is_not_taken_for_the_node_after_a_crash(cluster):
    leader = await cluster.leader()
    number = next(one for one, node in cluster.nodes.items() if node is not leader)
    (cluster.path / "7").mkdir()
    copy_directory(cluster, number)
    client, settings = cluster.ensemble.client(), cluster.nodes[number].settings
    commit = client.commit

    async def crash(*operations):
        if node_path(number) in {operation.path for operation in operations}:
            raise EOFError
        return await commit(*operations)

    client.commit = crash
    file = ClusterFile(RealFileSystem(), cluster.path / "7")
    with pytest.raises(EOFError):
        await Membership(client, file, replace(settings, replaces=True)).register()
    file = ClusterFile(RealFileSystem(), cluster.path / "7")
    with pytest.raises(MembershipError, match="start with --replace"):
        await Membership(cluster.ensemble.client(), file, settings).register()


async def test_a_node_that_was_alone_in_sync_is_not_replaced(empty):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    with pytest.raises(MembershipError, match="node 0 alone was in sync"):
        await empty.start(0, directory=7, replaces=True)
    assert await empty.start(0) is await empty.leader()


async def test_a_cluster_that_nobody_understands_is_told(empty):
    first = await empty.start(0)
    await first.stop()
    entries = empty.ensemble.entries
    entry = entries[CLUSTER]
    entries[CLUSTER] = entry._replace(value=b"{}")
    with pytest.raises(MalformedEntryError, match=r"entry /cluster is not .* \(id: Field required"):
        await empty.start(0)
    entries[CLUSTER] = entry._replace(value=entry.value.replace(b'"format":1', b'"format":2'))
    with pytest.raises(MalformedEntryError, match="upgrade this node"):
        await empty.start(0)


async def test_nobody_acts_on_a_shard_that_nobody_understands(empty, caplog):
    first = await empty.start(0)
    await empty.leader()
    await first.stop()
    entries, path = empty.ensemble.entries, shard_path(0)
    entry = entries[path]
    entries[path] = entry._replace(value=b'{"leader": [0, 1]}')
    await empty.start(0)
    await eventually(lambda: "entry /shards/0 is not as this release writes it" in caplog.text)
    entries[path] = entry._replace(version=7)
    await empty.leader()


async def test_a_damaged_cluster_file_is_told(empty):
    first = await empty.start(0)
    await first.stop()
    (empty.path / "0" / "cluster.json").write_text('{"format": 1}')
    with pytest.raises(StorageError, match="is damaged"):
        ClusterFile(RealFileSystem(), empty.path / "0")
