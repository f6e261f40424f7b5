"""Groups that settle for their queue: what all of them have read counts as settled there."""

import asyncio

import pytest
from pamqp import commands

from leveret.features.groups.commands import (
    group_commit_offsets,
    group_delete,
    group_reset_offsets,
)
from leveret.features.range_reads.bounds import bounds_of
from leveret.ports.definitions import PolicyDefinition
from tests.features.groups.context import GroupContext
from tests.recovery.node import Node
from tests.support.client import Client
from tests.support.waiting import wait_until

KINDS = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}
NAMES = ["one", "two"]


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def declare(publisher, kind, names=NAMES, **arguments):
    settles = {"x-retention": "1d", "x-retention-settles": names}
    publisher.declare("q", durable=True, arguments=kind | settles | arguments)


def join(stage, group):
    member = Client(stage).open()
    member.prefetch(100)
    member.consume("q", "c", arguments={"x-consumer-group": group, "x-stream-offset": "first"})
    return member


def read(stage, group):
    """Let a group acknowledge all that it has not read."""
    member = join(stage, group)
    while found := member.deliveries():
        member.send(commands.Basic.Ack(found[-1].tag, multiple=True))
    member.send(commands.Channel.Close(200, "", 0, 0))


def settled(stage):
    return list(stage.queue("q").log.settled)


async def perform(stage, command, group, **parameters):
    return await command(GroupContext(stage), vhost="/", queue="q", name=group, **parameters)


def test_what_all_named_groups_have_settled_is_settled_in_the_queue(stage, publisher, kind):
    declare(publisher, kind)
    one, two, other = (join(stage, name) for name in ("one", "two", "other"))
    publisher.publish("q", *(b"%d" % number for number in range(6)))
    for member in (one, two, other):
        assert len(member.deliveries()) == 6
    one.send(commands.Basic.Ack(4, multiple=True))
    other.send(commands.Basic.Ack(6, multiple=True))
    assert settled(stage) == []
    two.send(commands.Basic.Ack(2), commands.Basic.Ack(3), commands.Basic.Ack(5))
    assert settled(stage) == [(1, 3)]
    assert publisher.count("q") == 4
    one.send(commands.Basic.Ack(6, multiple=True))
    assert settled(stage) == [(1, 3), (4, 5)]
    two.send(commands.Basic.Ack(6, multiple=True))
    assert settled(stage) == [(0, 6)]
    assert publisher.count("q") == 0


def test_nothing_is_settled_while_a_named_group_does_not_exist(stage, publisher, kind):
    declare(publisher, kind)
    publisher.publish("q", b"0", b"1")
    read(stage, "one")
    assert settled(stage) == []
    read(stage, "two")
    assert settled(stage) == [(0, 2)]


async def test_a_deleted_group_settles_nothing_more(stage, publisher, kind):
    declare(publisher, kind)
    for name in NAMES:
        read(stage, name)
    await perform(stage, group_delete, "two")
    publisher.publish("q", b"0")
    read(stage, "one")
    assert settled(stage) == []


async def test_a_group_that_is_moved_settles_what_it_passes(stage, publisher, kind):
    declare(publisher, kind)
    publisher.publish("q", b"0", b"1", b"2")
    read(stage, "one")
    assert await perform(stage, group_commit_offsets, "two", offsets={"0": 1})
    assert settled(stage) == [(0, 1)]
    await perform(stage, group_reset_offsets, "two", to="2")
    assert settled(stage) == [(0, 2)]
    await perform(stage, group_reset_offsets, "two", to="earliest")
    assert settled(stage) == [(0, 2)]


def test_a_length_limit_counts_what_is_not_settled(stage, publisher):
    limit = {"x-max-length": 2, "x-overflow": "reject-publish"}
    declare(publisher, {}, ["one"], **limit)
    publisher.publish("q", b"0", b"1", b"2")
    assert publisher.count("q") == 2
    read(stage, "one")
    publisher.publish("q", b"3")
    assert stage.queue("q").log.end == 3


def test_what_its_own_consumers_hold_is_theirs_until_it_comes_back(stage, publisher, kind):
    declare(publisher, kind, ["one"])
    publisher.publish("q", b"0", b"1")
    publisher.send(commands.Basic.Get(queue="q"))
    publisher.deliveries()
    read(stage, "one")
    assert settled(stage) == [(1, 2)]
    publisher.send(commands.Basic.Nack(1, requeue=True))
    assert settled(stage) == [(0, 2)]


def test_a_policy_names_them_too(stage, publisher, kind):
    publisher.declare("q", durable=True, arguments=kind | {"x-retention": "1d"})
    publisher.publish("q", b"0")
    read(stage, "one")
    assert settled(stage) == []
    stage.broker.policies.put(
        PolicyDefinition("/", "p", "^q$", {"retention": "1d", "retention-settles": ["one"]})
    )
    stage.broker.apply_policies("/")
    stage.run()
    assert settled(stage) == [(0, 1)]


def test_a_transaction_settles_when_it_commits(stage, publisher, kind):
    declare(publisher, kind, ["one"])
    publisher.publish("q", b"0")
    member = Client(stage).open()
    member.call(commands.Tx.Select())
    member.prefetch(10)
    where = {"x-consumer-group": "one", "x-stream-offset": "first"}
    member.consume("q", "c", arguments=where)
    member.deliveries()
    member.send(commands.Basic.Ack(1))
    assert settled(stage) == []
    member.call(commands.Tx.Commit())
    assert settled(stage) == [(0, 1)]


@pytest.mark.parametrize("priority", [{}, {"x-max-priority": 3}])
def test_what_a_crash_has_kept_of_the_groups_only_is_settled_at_the_start(priority):
    """With priorities the backlog must be read first."""
    loop = asyncio.new_event_loop()
    node = Node(loop)
    publisher = node.client
    publisher.declare("q", durable=True, arguments={"x-retention": "1d"} | priority)
    publisher.publish("q", b"0", b"1")
    read(node, "one")
    node.flush()
    loop.run_until_complete(node.metadata.flush())
    definition = node.queue("q").definition
    definition.arguments["x-retention-settles"] = ["one"]  # as if it had been so before the crash
    node.metadata.put(definition)
    loop.run_until_complete(node.metadata.flush())
    node.kill()
    node = node.next_life(keeps_state=False)
    node.run()
    node.clock.advance(1)
    node.run()
    assert settled(node) == [(0, 2)]
    assert node.client.count("q") == 0
    node.kill()
    loop.close()


def test_retention_deletes_what_only_groups_have_read():
    loop = asyncio.new_event_loop()
    node = Node(loop, segment_bytes_max=2000)
    declare(node.client, {}, ["one"], **{"x-retention": "1h"})
    for number in range(60):
        node.publish("q", b"%d" % number + b"." * 100)
    node.flush()
    queue = node.queue("q")

    def is_first(offset):
        node.clock.now += 3 * 3600 * 1000
        node.topics._services.clock.now_ms = node.clock.now
        node.flush()
        queue.log.check_retention()
        return bounds_of(queue).first == offset

    assert all(is_first(0) for _ in range(5))
    read(node, "one")
    wait_until(lambda: is_first(60))  # files are removed by threads, when all is safe
    node.kill()
    loop.close()
