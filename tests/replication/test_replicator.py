"""Logs of several nodes: replicated, and led again when nodes end."""

import asyncio
import logging
import random
from collections import Counter
from dataclasses import replace

import pytest

from leveret.cluster.partition_state import Member
from leveret.cluster.replication.leader import ReplicationLimits
from leveret.errors import NotEnoughReplicasError, StorageError
from leveret.ports import Durability
from leveret.ports.coordination import KeyChange
from leveret.ports.records import BatchBuilder
from leveret.replication import channels, replicator, wire
from leveret.replication.replicator import PARTITIONS_PREFIX
from leveret.storage.log import PartitionLog
from tests.replication.cluster import (
    KEYS,
    LIMITS,
    Cluster,
    MemoryCoordinators,
    ZooKeeperCoordinators,
)
from tests.support.waiting import eventually
from tests.support.zookeeper import running_zookeeper

ORDERS, OTHERS = KEYS
STILL_LOOKS = 50  # of `eventually`, a tenth of a second together


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
async def test_what_is_published_is_on_all_nodes(tmp_path, durability):
    async with Cluster(tmp_path, durability) as cluster:
        for key in KEYS:
            for number in range(50):
                end = await cluster.publish(key, b"%d" % number, b"x" * 300)
            await cluster.committed(key, end)
            first, *others = await cluster.contents(key)
            assert len(first) == 100
            assert all(each == first for each in others)
            assert cluster.state(key).in_sync_nodes == {0, 1, 2}


async def test_partitions_at_rest_are_not_exchanged(tmp_path, monkeypatch):
    """Neither one that has messages nor one that never had any: they stay in sync all the same."""
    answers: Counter[str] = Counter()

    def pack_answer(message):
        answers[message.key] += 1
        return wire.pack_answer(message)

    monkeypatch.setattr(channels, "pack_answer", pack_answer)
    async with Cluster(
        tmp_path, limits=replace(LIMITS, lag_ms_max=500, silent_ms_max=300)
    ) as nodes:
        await nodes.committed(ORDERS, await nodes.publish(ORDERS, b"a"))
        for key in KEYS:
            await nodes.in_sync(key, 0, 1, 2)
        counts: list[int] = []

        def is_still() -> bool:
            counts.append(answers.total())
            return len(counts) > STILL_LOOKS and counts[-1] == counts[-STILL_LOOKS]

        await eventually(is_still, "nothing more is exchanged")
        before = answers.copy()
        version = {key: nodes.state(key).version for key in KEYS}
        await asyncio.sleep(1.5)  # more than after which others would have left the set
        assert answers == before
        assert {key: nodes.state(key).version for key in KEYS} == version
        end = await nodes.publish(OTHERS, b"b")
        await nodes.committed(OTHERS, end)


async def test_another_node_leads_where_one_ends_and_comes_back(tmp_path):
    async with Cluster(tmp_path) as cluster:
        end = await cluster.publish(ORDERS, b"a", b"b")
        await cluster.committed(ORDERS, end)
        old = await cluster.led(ORDERS)
        await old.stop()
        new = await cluster.led(ORDERS)
        assert new is not old
        await cluster.in_sync(ORDERS, *{0, 1, 2} - {old.number})
        end = await cluster.publish(ORDERS, b"c")
        await cluster.committed(ORDERS, end)
        await old.start()
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end)
        assert await cluster.contents(ORDERS) == [{0: b"a", 1: b"b", 2: b"c"}] * 3


async def test_a_follower_that_hangs_leaves_the_set_and_joins_again(tmp_path):
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.led(ORDERS)
        slow = next(node for node in cluster.nodes if node is not leader)
        for task in list(slow.replicator._tasks):
            task.cancel()
        end = await cluster.publish(ORDERS, b"a")
        await cluster.in_sync(ORDERS, *{0, 1, 2} - {slow.number})
        await asyncio.sleep(0.1)
        assert leader.logs[ORDERS].committed == end
        await slow.stop()
        await slow.start()
        await cluster.in_sync(ORDERS, 0, 1, 2)
        assert await cluster.contents(ORDERS) == [{0: b"a"}] * 3


async def test_a_leader_that_loses_records_leads_no_more_in_its_epoch(tmp_path):
    async with Cluster(tmp_path) as cluster:
        end = await cluster.publish(ORDERS, b"a")
        await cluster.committed(ORDERS, end)
        old = await cluster.led(ORDERS)
        epoch = cluster.state(ORDERS).epoch
        log = old.logs[ORDERS]
        log.builder.add(1, 0, b"x", b"key", b"header", b"lost")
        log.append()
        log._lose(StorageError("the disk has failed twice"))
        assert log.end == 1
        assert cluster.leader(ORDERS) is not old
        with pytest.raises(StorageError, match="another node leads"):
            log.append()
        new = await cluster.led(ORDERS)
        assert new is not old
        assert cluster.state(ORDERS).epoch > epoch
        end = await cluster.publish(ORDERS, b"b")
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end)
        first, *others = await cluster.contents(ORDERS)
        assert first[0] == b"a"
        assert first[end - 1] == b"b"
        assert others == [first, first]


async def test_nothing_is_committed_below_the_least_in_sync(tmp_path, caplog):
    caplog.set_level(logging.INFO, "leveret.replication")
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.led(ORDERS)
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            await node.replicator.close()
        await cluster.publish(ORDERS, b"a")
        for node in others:
            await node.stop()
        await cluster.in_sync(ORDERS, leader.number)
        log = leader.logs[ORDERS]
        log.builder.add(1, 0, b"x", b"key", b"header", b"refused")
        with pytest.raises(NotEnoughReplicasError, match="until 1 more of its replicas"):
            log.append()
        assert (log.builder.count, log.end) == (0, 1)
        told = []
        assert f"{ORDERS} takes no publishes until 1 more of its replicas" in caplog.text
        assert "takes publishes again" not in caplog.text
        with pytest.raises(NotEnoughReplicasError):
            log.prepare(1, BatchBuilder(), [(0, 1)], told.append)
        await asyncio.sleep(0.2)
        assert log.committed == 0
        await others[0].start()
        await cluster.committed(ORDERS, 1)
        assert f"{ORDERS} takes publishes again" in caplog.text
        end = await cluster.publish(ORDERS, b"b")
        await cluster.committed(ORDERS, end)
        assert (await cluster.contents(ORDERS))[0] == {0: b"a", 1: b"b"}


async def test_limits_of_a_partition_can_change(tmp_path):
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.led(ORDERS)
        for node in cluster.nodes:
            if node is not leader:
                await node.stop()
        await cluster.in_sync(ORDERS, leader.number)
        leader.replicator.limit(ORDERS, replace(LIMITS, in_sync_min=1))
        end = await cluster.publish(ORDERS, b"a")
        await cluster.committed(ORDERS, end)
        leader.replicator.limit(ORDERS, LIMITS)
        with pytest.raises(NotEnoughReplicasError):
            await cluster.publish(ORDERS, b"b")


@pytest.mark.parametrize(("acks", "confirms"), [(None, False), (0, True), (1, True), (2, False)])
async def test_confirms_need_not_wait_for_all_replicas(tmp_path, acks, confirms):
    async with Cluster(tmp_path, limits=ReplicationLimits(60_000, 1, acks)) as cluster:
        leader = await cluster.led(ORDERS)
        log, told = leader.logs[ORDERS], []
        log.on_commit(lambda: told.append(log.confirmed))
        for node in cluster.nodes:
            if node is not leader:
                await node.replicator.close()
        await cluster.publish(ORDERS, b"a")
        if acks == 0:
            assert log.confirmed == 1
        await eventually(lambda: log.durable == 1)
        assert log.committed == 0
        assert log.confirmed == int(confirms)
        assert told == [1] * confirms


async def test_a_leader_tells_when_it_begins_when_it_is_ready_and_when_it_ends(tmp_path):
    async with Cluster(tmp_path) as cluster:
        node = await cluster.led(ORDERS)
        assert node.told_of(ORDERS) == [True]  # it began with nothing
        others = [each for each in cluster.nodes if each is not node]
        for other in others:
            await other.replicator.close()
        await cluster.publish(ORDERS, b"a")
        for other in others:
            await other.stop()
        await cluster.in_sync(ORDERS, node.number)
        await node.stop()
        node.told.clear()
        await node.start()
        await eventually(lambda: node.told_of(ORDERS) == [False])
        await others[0].start()
        await cluster.in_sync(ORDERS, node.number, others[0].number)
        assert node.told_of(ORDERS) == [False, True]
        node.logs[ORDERS]._lose(StorageError("the disk has failed"))
        assert node.told_of(ORDERS) == [False, True, None]


async def elected_alone(cluster, node):
    """Have a node lead the partition, with nobody else in sync, though others are there."""
    state = replace(
        cluster.state(ORDERS),
        in_sync=frozenset([Member(node.number, 0)]),
        leader=node.number,
        leader_session=node.coordinator.session,
        epoch=cluster.state(ORDERS).epoch + 1,
        version=cluster.state(ORDERS).version + 1,
    )
    await node.coordinator.write([KeyChange(PARTITIONS_PREFIX + ORDERS, state.to_bytes())])
    await eventually(lambda: node.replicator.led(ORDERS) is not None)


async def test_a_leader_waits_for_replicas_that_are_there_before_it_serves(tmp_path):
    limits = ReplicationLimits(in_sync_min=2, silent_ms_max=60_000)
    async with Cluster(tmp_path, limits=limits) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        leader = await cluster.led(ORDERS)
        node = next(each for each in cluster.nodes if each is not leader)
        node.told.clear()
        await elected_alone(cluster, node)
        assert node.told_of(ORDERS) == [False]
        await eventually(lambda: node.told_of(ORDERS) == [False, True])
        assert len(cluster.state(ORDERS).in_sync) >= 2
        await cluster.publish(ORDERS, b"b")


@pytest.mark.parametrize("are_there", [False, True])
async def test_a_leader_does_not_wait_for_those_that_do_not_come(tmp_path, are_there):
    limits = ReplicationLimits(in_sync_min=2, silent_ms_max=1000 if are_there else 60_000)
    async with Cluster(tmp_path, limits=limits) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        node = await cluster.led(ORDERS)
        for other in cluster.nodes:
            if other is not node:
                await (other.replicator.close() if are_there else other.stop())
        node.told.clear()
        await elected_alone(cluster, node)
        await eventually(lambda: node.told_of(ORDERS)[-2:] == [False, True])
        with pytest.raises(NotEnoughReplicasError):
            await cluster.publish(ORDERS, b"b")


async def test_a_partition_that_is_deleted_is_led_no_more(tmp_path):
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.led(ORDERS)
        state = leader.coordinator.entries[PARTITIONS_PREFIX + ORDERS].value
        await leader.coordinator.write([KeyChange(PARTITIONS_PREFIX + ORDERS, None)])
        assert leader.told_of(ORDERS) == [True, None]
        assert all(node.replicator.followed(ORDERS) is None for node in cluster.nodes)
        with pytest.raises(StorageError, match="another node leads"):
            leader.logs[ORDERS].append()
        await leader.coordinator.write([KeyChange(PARTITIONS_PREFIX + ORDERS, state)])
        assert leader.told_of(ORDERS) == [True, None, True]


async def test_a_replica_that_is_removed_has_no_role_until_it_is_added_again(tmp_path):
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.led(ORDERS)
        follower = next(node for node in cluster.nodes if node is not leader)
        for node in (leader, follower):
            node.replicator.remove(ORDERS)
            node.replicator.remove("unknown/0")
            assert node.replicator.led(ORDERS) is node.replicator.followed(ORDERS) is None
        log = leader.logs[ORDERS]
        with pytest.raises(StorageError, match="another node leads"):
            log.append()
        log._lose(StorageError("nobody is told"))
        assert leader.told_of(ORDERS) == [True]
        await follower.coordinator.write([KeyChange("partitions/other", None)])
        for node in (leader, follower):
            node.replicator.add(node.replica(ORDERS, node.logs[ORDERS]))
        assert leader.told_of(ORDERS) == [True, True]
        end = await cluster.publish(ORDERS, b"a")
        await cluster.committed(ORDERS, end)


# -- logs that fail


async def diverged(cluster: Cluster):
    """Return a node that is down, whose log has a record which the others have not."""
    node = await cluster.led(ORDERS)
    for other in cluster.nodes:
        if other is not node:
            await other.replicator.close()
    await cluster.publish(ORDERS, b"lost")
    await node.stop()
    for other in cluster.nodes:
        if other is not node:
            await other.stop()
            await other.start()
    end = await cluster.publish(ORDERS, b"a")
    await cluster.in_sync(ORDERS, *{0, 1, 2} - {node.number})
    await cluster.committed(ORDERS, end)
    return node


async def test_a_log_whose_truncation_fails_is_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr(replicator, "RETRY_SECONDS", 0.01)
    async with Cluster(tmp_path) as cluster:
        node = await diverged(cluster)
        cut, failed = PartitionLog.truncate, []

        async def truncate(log, end):
            if not failed:
                failed.append(log)
                node.files.failing = 3  # of the truncation, then of those who open the log
            await cut(log, end)

        monkeypatch.setattr(PartitionLog, "truncate", truncate)
        await node.start()
        await cluster.in_sync(ORDERS, 0, 1, 2)
        assert failed[0].failure is not None
        assert failed[0].is_closed
        assert node.logs[ORDERS] is not failed[0]
        end = await cluster.publish(ORDERS, b"b")
        await cluster.committed(ORDERS, end)
        assert await cluster.contents(ORDERS) == [{0: b"a", 1: b"b"}] * 3


async def test_a_log_takes_no_other_role_while_it_is_truncated(tmp_path, monkeypatch):
    async with Cluster(tmp_path) as cluster:
        node = await diverged(cluster)
        cut, truncating, go_on = PartitionLog.truncate, asyncio.Event(), asyncio.Event()

        async def truncate(log, end):
            truncating.set()
            await go_on.wait()
            await cut(log, end)

        monkeypatch.setattr(PartitionLog, "truncate", truncate)
        await node.start()
        await truncating.wait()
        name = PARTITIONS_PREFIX + ORDERS
        state = cluster.state(ORDERS)
        wanted = replace(
            state,
            in_sync=state.in_sync | {Member(node.number, 0)},
            leader=node.number,
            leader_session=node.coordinator.session,
            epoch=state.epoch + 1,
            version=state.version + 1,
        )
        await node.coordinator.write([KeyChange(name, wanted.to_bytes())])
        assert node.replicator.led(ORDERS) is node.replicator.followed(ORDERS) is None
        go_on.set()
        await eventually(lambda: node.replicator.led(ORDERS) is not None)
        assert node.logs[ORDERS].end == 0


def fail(node) -> None:
    """Have a log fail so that it must be opened again."""
    log = node.logs[ORDERS]
    log._unflushed_end = log.end
    log._lose(StorageError("the disk has failed"))
    assert log.failure is not None


async def test_a_leader_whose_log_fails_leads_no_more_and_follows_once_it_is_open(tmp_path):
    async with Cluster(tmp_path) as cluster:
        end = await cluster.publish(ORDERS, b"a")
        await cluster.committed(ORDERS, end)
        old = await cluster.led(ORDERS)
        old.reopening.clear()
        fail(old)
        assert old.told_of(ORDERS) == [True, None]
        new = await cluster.led(ORDERS)
        assert new is not old
        assert old.replicator.followed(ORDERS) is None
        old.reopening.set()
        await cluster.in_sync(ORDERS, 0, 1, 2)
        end = await cluster.publish(ORDERS, b"b")
        await cluster.committed(ORDERS, end)
        assert await cluster.contents(ORDERS) == [{0: b"a", end - 1: b"b"}] * 3


@pytest.mark.parametrize("has_tried", [False, True])
async def test_who_is_elected_while_its_log_is_shut_lets_others_lead_if_it_stays_so(
    tmp_path, monkeypatch, has_tried
):
    monkeypatch.setattr(replicator, "RETRY_SECONDS", 0.05)
    async with Cluster(tmp_path) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        leader, shut, other = cluster.nodes
        assert await cluster.led(ORDERS) is leader
        if has_tried:
            monkeypatch.setattr(shut, "_open", refuse)
        else:
            shut.reopening.clear()
        fail(shut)
        await asyncio.sleep(0.1)
        await leader.stop()
        if has_tried:
            assert await cluster.led(ORDERS) is other
            monkeypatch.undo()
        else:
            await eventually(lambda: cluster.state(ORDERS).leader == shut.number)
            await asyncio.sleep(0.1)
            assert shut.replicator.led(ORDERS) is None
            shut.reopening.set()
            assert await cluster.led(ORDERS) is shut
        await cluster.in_sync(ORDERS, 1, 2)
        end = await cluster.publish(ORDERS, b"b")
        await cluster.committed(ORDERS, end)


def refuse(key):
    raise StorageError("the disk is still broken")


async def test_a_log_that_is_opened_again_after_its_replica_was_removed_is_closed(tmp_path):
    async with Cluster(tmp_path) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        node = cluster.nodes[1]
        node.reopening.clear()
        failed = node.logs[ORDERS]
        fail(node)
        await eventually(lambda: failed.is_closed)
        node.replicator.remove(ORDERS)
        node.reopening.set()
        await eventually(lambda: node.logs[ORDERS] is not failed)
        await eventually(lambda: node.logs[ORDERS].is_closed)
        assert node.replicator.followed(ORDERS) is None


class Clients:
    """Publishers and a consumer of one partition; `confirmed` is what nobody has settled."""

    def __init__(self, cluster, key, draw):
        self.cluster, self.key, self.draw = cluster, key, draw
        self.confirmed: dict[int, bytes] = {}
        self._number = 0

    async def work(self):
        log = (await self.cluster.led(self.key)).logs[self.key]
        sent = await self._publish()
        await asyncio.sleep(0.05)
        self.confirmed |= {at: body for at, body in sent.items() if at < log.committed}
        if self.draw.random() < 0.7:
            done = [each for each in self.confirmed if each < log.committed]
            done = done[: len(done) // 4]
            log.settle([(each, each + 1) for each in done])
            for each in done:
                del self.confirmed[each]

    async def _publish(self):
        sent = {}
        for _ in range(self.draw.randint(1, 40)):
            self._number += 1
            body = b"%d" % self._number + b"x" * self.draw.choice([0, 500])
            try:
                end = await self.cluster.publish(self.key, body)
            except StorageError:
                break  # it leads no more
            sent[end - 1] = body
            if self.draw.random() < 0.1:
                await asyncio.sleep(0.002)
        return sent

    async def check(self):
        end = await self.cluster.publish(self.key, b"last")
        await self.cluster.committed(self.key, end)
        first, *others = await self.cluster.contents(self.key)
        assert {at: first[at] for at in self.confirmed} == self.confirmed
        for other in others:  # each removes by itself what is settled
            shared = first.keys() & other.keys()
            assert {at: first[at] for at in shared} == {at: other[at] for at in shared}


@pytest.fixture(params=["memory", "zookeeper"])
def coordinators(request, tmp_path):
    """Coordinators of each kind."""
    if request.param == "memory":
        yield MemoryCoordinators()
    else:
        with running_zookeeper(tmp_path / "zookeeper") as server:
            yield ZooKeeperCoordinators(f"{server.address}/leveret")


async def test_nothing_that_was_committed_is_lost_while_leaders_are_killed(tmp_path, coordinators):
    draw = random.Random(7)
    async with Cluster(tmp_path, coordinators=coordinators) as cluster:
        clients = [Clients(cluster, key, draw) for key in KEYS]
        for _ in range(12):
            for each in clients:
                await each.work()
            killed = await cluster.led(draw.choice(KEYS))
            await killed.stop()
            if draw.random() < 0.5:
                await asyncio.gather(*(cluster.led(key) for key in KEYS))
            await killed.start()
            for key in KEYS:
                await cluster.in_sync(key, 0, 1, 2)
        for each in clients:
            await each.check()
        assert sum(len(each.confirmed) for each in clients) > 20


async def test_a_leader_without_links_lets_others_lead_who_are_there(tmp_path):
    async with Cluster(tmp_path) as cluster:
        end = await cluster.publish(ORDERS, b"a")
        await cluster.committed(ORDERS, end)
        await cluster.in_sync(ORDERS, 0, 1, 2)
        leader = await cluster.led(ORDERS)
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            node.links.clear_address(leader.number)
            leader.links.clear_address(node.number)
        await eventually(lambda: cluster.leader(ORDERS) in others)
        assert leader.replicator.led(ORDERS) is None
        assert cluster.state(ORDERS).in_sync_nodes == {node.number for node in others}
        await cluster.publish(ORDERS, b"b")
        cluster.meet(leader)
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end + 1)
        assert await cluster.contents(ORDERS) == [{0: b"a", 1: b"b"}] * 3


async def test_a_leader_whose_disk_is_full_lets_others_lead(tmp_path):
    async with Cluster(tmp_path) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        await cluster.in_sync(ORDERS, 0, 1, 2)
        old = await cluster.led(ORDERS)
        log = old.logs[ORDERS]
        old.files.is_full = True
        log.builder.add(1, 0, b"x", b"key", b"header", b"too much")
        with pytest.raises(StorageError, match="No space left"):
            log.append()
        assert old.replicator.led(ORDERS) is not None  # until the queue is done with the error
        await eventually(lambda: cluster.leader(ORDERS) not in (None, old))
        end = await cluster.publish(ORDERS, b"b")
        new = cluster.leader(ORDERS)
        await eventually(lambda: new.logs[ORDERS].committed == end)
        old.files.is_full = False
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end)
        assert await cluster.contents(ORDERS) == [{0: b"a", 1: b"b"}] * 3


async def test_a_follower_whose_disk_is_full_is_not_waited_for_long(tmp_path):
    limits = ReplicationLimits(lag_ms_max=60_000, in_sync_min=2, silent_ms_max=600)
    async with Cluster(tmp_path, limits=limits) as cluster:
        await cluster.committed(ORDERS, await cluster.publish(ORDERS, b"a"))
        await cluster.in_sync(ORDERS, 0, 1, 2)
        leader = await cluster.led(ORDERS)
        full = next(node for node in cluster.nodes if node is not leader)
        full.files.is_full = True
        end = await cluster.publish(ORDERS, b"b")
        await cluster.in_sync(ORDERS, *{0, 1, 2} - {full.number})
        await eventually(lambda: leader.logs[ORDERS].committed == end)
        full.files.is_full = False
        await cluster.in_sync(ORDERS, 0, 1, 2)
        await cluster.committed(ORDERS, end)
