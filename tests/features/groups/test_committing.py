"""Offsets of groups that readers which keep their own place commit."""

import asyncio

import pytest
from pamqp import commands

from leveret.core.definitions.administration import AdministrationError
from leveret.errors import ChannelError, StorageError
from leveret.features.groups.commands import (
    group_commit_offsets,
    group_delete,
    group_describe,
    group_reset_offsets,
)
from leveret.features.groups.places import check_committed
from leveret.features.groups.rows import group_row
from leveret.features.range_reads.bounds import bounds_of
from leveret.ports.definitions import GroupDefinition
from tests.features.groups.context import GroupContext
from tests.recovery.node import Node
from tests.support.client import Client
from tests.support.gate import Gate
from tests.support.stage import Stage

STREAM = {"x-queue-type": "stream"}
KINDS = {
    "stream": STREAM,
    "classic": {"x-retention": "1d"},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1d"},
}


@pytest.fixture
def client(stage):
    return Client(stage).open()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def declare(client, count, **arguments):
    client.declare("q", durable=True, arguments=arguments)
    client.publish("q", *(b"%d" % number for number in range(count)))


async def commit(stage, name="g", /, **offsets):
    """Commit offsets, given as `p0=3`; return (before, after) by partition."""
    rows = await group_commit_offsets(
        GroupContext(stage),
        vhost="/",
        queue="q",
        name=name,
        offsets={number.removeprefix("p"): offset for number, offset in offsets.items()},
    )
    return {row["partition"]: (row["before"], row["after"]) for row in rows}


async def perform(stage, command, **parameters):
    return await command(GroupContext(stage), vhost="/", queue="q", name="g", **parameters)


async def places(stage):
    """Return (committed, lag) by partition."""
    rows = (await perform(stage, group_describe))["partition_details"]
    return {row["partition"]: (row["committed"], row["lag"]) for row in rows}


def read(stage, client=None):
    """Return what a member of the group is delivered."""
    client = client or Client(stage).open()
    client.prefetch(100)
    client.consume("q", "c", arguments={"x-consumer-group": "g"})
    return [delivery.body for delivery in client.deliveries()]


async def test_a_commit_creates_the_group_at_its_offset(stage, client, kind):
    declare(client, 5, **KINDS[kind])
    assert await commit(stage, p0=3) == {0: (0, 3)}
    assert await places(stage) == {0: (3, 2)}
    [group] = stage.broker.groups.all()
    row = group_row(group)
    assert (row["state"], row["members"], row["lag"], row["unacked"]) == ("empty", 0, 2, 0)
    await stage.metadata.flush()
    assert [kept.name for kept in stage.metadata.kept.values() if type(kept) is GroupDefinition]
    assert read(stage) == [b"3", b"4"]


async def test_a_commit_of_nothing_creates_the_group_before_the_first_message(stage, client, kind):
    declare(client, 3, **KINDS[kind])
    assert await commit(stage) == {}
    assert await places(stage) == {0: (0, 3)}


async def test_a_group_goes_on_and_never_back(stage, client, kind):
    declare(client, 5, **KINDS[kind])
    assert await commit(stage, p0=2) == {0: (0, 2)}
    assert await commit(stage, p0=2) == {0: (2, 2)}
    assert await commit(stage, p0=1) == {0: (2, 2)}
    assert await commit(stage, p0=5) == {0: (2, 5)}
    assert await places(stage) == {0: (5, 0)}
    client.publish("q", b"5")
    assert await places(stage) == {0: (5, 1)}
    assert read(stage) == [b"5"]


async def test_what_was_settled_out_of_order_stays_settled(stage, client, kind):
    declare(client, 6, **KINDS[kind])
    await commit(stage)
    member = Client(stage).open()
    assert len(read(stage, member)) == 6
    member.send(commands.Basic.Ack(5))
    member.send(commands.Channel.Close(200, "", 0, 0))
    assert await commit(stage, p0=2) == {0: (0, 2)}
    assert await places(stage) == {0: (2, 3)}
    assert await commit(stage, p0=4) == {0: (2, 5)}  # the next one it lacks
    assert read(stage) == [b"5"]


async def test_a_group_that_was_reset_reads_again_and_is_committed_again(stage, client, kind):
    declare(client, 4, **KINDS[kind])
    await commit(stage, p0=4)
    await perform(stage, group_reset_offsets, to="earliest")
    assert await places(stage) == {0: (0, 4)}
    assert await commit(stage, p0=3) == {0: (0, 3)}
    await perform(stage, group_delete)
    stage.run()
    assert await commit(stage, p0=1) == {0: (0, 1)}


async def test_removed_messages_count_as_read(stage, client):
    declare(client, 0, **KINDS["classic"])
    for number in range(4):
        client.publish("q", b"%d" % number)
    stage.queue("q").log.remove(0, 2)
    assert await commit(stage) == {}
    assert await places(stage) == {0: (2, 2)}
    assert await commit(stage, p0=1) == {0: (2, 2)}
    assert await commit(stage, p0=3) == {0: (2, 3)}


async def test_a_queue_that_restores_its_own_backlog_holds_up_nothing(stage, client):
    declare(client, 2, **KINDS["classic"])
    await commit(stage)
    queue = stage.queue("q")
    queue.is_restoring = True
    client.publish("q", b"2", b"3")
    assert await commit(stage, p0=3) == {0: (0, 3)}
    queue.backlog_restored()
    assert await places(stage) == {0: (3, 1)}


async def test_partitions_are_committed_each_at_its_offset(stage, client):
    declare(client, 0, **STREAM, **{"x-partitions": 3})
    for number in range(30):
        client.publish("q", b"%d" % number, headers={"x-partition-key": str(number)})
    ends = [part.log.committed for part in stage.queue("q").partitions]
    assert all(ends)
    assert await commit(stage, p2=ends[2], p0=1) == {0: (0, 1), 2: (0, ends[2])}
    assert await places(stage) == {0: (1, ends[0] - 1), 1: (0, ends[1]), 2: (ends[2], 0)}
    assert len(read(stage)) == sum(ends) - 1 - ends[2]


async def test_all_partitions_are_checked_before_any_is_changed(stage, client):
    declare(client, 4, **STREAM, **{"x-partitions": 2})
    ends = [part.log.committed for part in stage.queue("q").partitions]
    with pytest.raises(AdministrationError, match="there is no partition '2'"):
        await commit(stage, p0=ends[0], p2=0)
    assert stage.broker.groups.all() == []
    await commit(stage)
    with pytest.raises(AdministrationError, match="the offset of partition 1 is from 0"):
        await commit(stage, p0=ends[0], p1=ends[1] + 1)
    assert [place for place, _ in (await places(stage)).values()] == [0, 0]


@pytest.mark.parametrize("text", ["2", "-1", "00", "+0", "0 ", "", "x", "\ud800", "9" * 5000])
def test_there_is_no_other_partition(text):
    with pytest.raises(AdministrationError, match="there is no partition") as caught:
        check_committed({"0": 1, text: 0}, {0: 5, 1: 5})
    assert caught.value.code == "not_found"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("offset", [-1, 6, 1 << 70])
def test_an_offset_is_in_the_log(offset):
    with pytest.raises(AdministrationError, match="is from 0 to 5, its end") as caught:
        check_committed({"7": offset}, {7: 5})
    assert caught.value.code == "invalid"


@pytest.mark.parametrize("offset", [True, 1.0, "1", None, [1]])
@pytest.mark.parametrize("offsets", [lambda one: {"0": one}, lambda one: one])
def test_an_offset_is_a_whole_number(offset, offsets):
    parameters = {"vhost": "/", "queue": "q", "name": "g", "offsets": offsets(offset)}
    with pytest.raises(AdministrationError, match="offsets is an object, each value a"):
        group_commit_offsets.checked(parameters)


async def test_a_group_in_use_is_committed_by_its_members_only(stage, client):
    declare(client, 4, **STREAM)
    await commit(stage)
    member = Client(stage).open()
    assert len(read(stage, member)) == 4
    with pytest.raises(AdministrationError, match="is in use"):
        await commit(stage, p0=4)
    member.call(commands.Basic.Cancel("c"))
    with pytest.raises(AdministrationError, match="is in use"):  # it holds messages
        await commit(stage, p0=4)
    assert await places(stage) == {0: (0, 4)}
    member.send(commands.Channel.Close(200, "", 0, 0))
    assert await commit(stage, p0=4) == {0: (0, 4)}


async def test_who_cannot_have_a_group_gets_none(stage, client):
    with pytest.raises(AdministrationError, match="no queue 'q'"):
        await commit(stage)
    declare(client, 1)
    with pytest.raises(ChannelError, match="keeps no messages for consumer groups"):
        await commit(stage)
    client.call(commands.Queue.Delete(queue="q"))
    declare(client, 1, **STREAM)
    for name in ("", "x" * 256):
        with pytest.raises(AdministrationError, match="a group's name has 1 to 255 bytes"):
            await commit(stage, name)
    assert stage.broker.groups.all() == []


async def test_a_queue_has_so_many_groups_and_no_more():
    stage = Stage(groups_per_queue_max=2)
    client = Client(stage).open()
    declare(client, 1, **STREAM)
    for name in ("one", "g"):
        await commit(stage, name)
    with pytest.raises(ChannelError, match="queue 'q' in vhost '/' has the limit of 2 groups"):
        await commit(stage, "three")
    client.prefetch(1)
    client.send(commands.Basic.Consume(queue="q", arguments={"x-consumer-group": "three"}))
    [(_, closed)] = client.received()
    assert (closed.reply_code, "delete those that are not used" in closed.reply_text) == (406, True)
    await commit(stage, "one", p0=1)  # those that exist go on
    await perform(stage, group_delete)
    await commit(stage, "three")


async def test_groups_of_a_virtual_host_read_so_many_partitions_and_no_more():
    stage = Stage(group_partitions_per_vhost_max=3)
    client = Client(stage).open()
    declare(client, 0, **STREAM, **{"x-partitions": 2})
    await commit(stage)
    with pytest.raises(ChannelError, match="groups of vhost '/' may read 3 partitions together"):
        await commit(stage, "two")
    client.call(commands.Queue.Delete(queue="q"))
    declare(client, 0, **STREAM, **{"x-partitions": 3})
    await commit(stage, "two")


async def test_a_disk_that_refuses_is_told_and_asked_again(stage, client, monkeypatch):
    declare(client, 3, **STREAM)
    await commit(stage)
    (group,) = stage.broker.groups.all()
    errors = [StorageError("no space left"), None]

    async def safe(_log):
        if (error := errors.pop(0)) is not None:
            raise error

    monkeypatch.setattr(type(group.subscriptions[0].log), "settlements_safe", safe)
    with pytest.raises(StorageError):
        await commit(stage, p0=2)
    assert await commit(stage, p0=2) == {0: (2, 2)}
    assert errors == []


@pytest.mark.parametrize("moved", ["commit", "reset"])
async def test_a_group_may_be_deleted_while_it_is_moved(stage, client, moved, monkeypatch):
    declare(client, 3, **STREAM, **{"x-partitions": 2})
    await commit(stage)
    (group,) = stage.broker.groups.all()
    gate = Gate()

    async def safe(_log):
        await gate

    monkeypatch.setattr(type(group.subscriptions[0].log), "settlements_safe", safe)
    if moved == "commit":
        moving = commit(stage, p0=0, p1=0)
    else:
        moving = perform(stage, group_reset_offsets, to="earliest")
    moving = asyncio.get_running_loop().create_task(moving)
    await asyncio.sleep(0)
    await perform(stage, group_delete)
    stage.run()
    gate.open()
    assert len(await moving) == 2


async def test_retention_waits_for_the_reader(stage, client):
    waiting = {"x-retention": "1d", "x-retention-waits-for": ["g"]}
    declare(client, 5, **STREAM, **waiting)
    log = stage.queue("q").log
    assert log.retention_waits_at() is None
    await commit(stage, "other")
    assert log.retention_waits_at() is None
    await commit(stage)
    assert log.retention_waits_at() == 0
    await commit(stage, p0=3)
    assert log.retention_waits_at() == 3
    await commit(stage, p0=5)
    assert log.retention_waits_at() == 5


# On log files


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_committed_outlives_the_node(loop, end, kind):
    node = Node(loop)
    declare(node.client, 6, **KINDS[kind])
    node.flush()
    for offset, before in ((2, 0), (4, 2)):
        assert loop.run_until_complete(commit(node, p0=offset)) == {0: (before, offset)}
    loop.run_until_complete(node.metadata.flush())
    if end is Node.close:
        node.client.transport.lose()
        node.run()
    end(node)
    node = node.next_life(keeps_state=end is Node.close)
    assert loop.run_until_complete(places(node)) == {0: (4, 2)}
    assert loop.run_until_complete(commit(node, p0=5)) == {0: (4, 5)}
    assert read(node, node.client) == [b"5"]
    node.kill()


def test_retention_lets_go_of_what_was_committed(loop):
    node = Node(loop, segment_bytes_max=2000)
    arguments = {
        "x-queue-type": "stream",
        "x-retention": "1d",
        "x-retention-waits-for": ["g"],
        "x-retention-waits-max": "30d",
    }
    node.client.declare("q", durable=True, arguments=arguments)
    loop.run_until_complete(commit(node))
    for number in range(60):
        node.publish("q", b"%d" % number + b"." * 100)
    node.flush()
    queue = node.queue("q")

    def first():
        return bounds_of(queue).first

    def two_days_pass():
        node.clock.now += 48 * 3600 * 1000
        node.topics._services.clock.now_ms = node.clock.now
        queue.log.check_retention()
        node.flush()

    two_days_pass()
    assert first() == 0
    assert loop.run_until_complete(commit(node, p0=30)) == {0: (0, 30)}
    queue.log.check_retention()
    assert first() == 30
    assert loop.run_until_complete(places(node)) == {0: (30, 30)}
    assert loop.run_until_complete(commit(node, p0=60)) == {0: (30, 60)}
    two_days_pass()
    assert first() == 60
    node.kill()
