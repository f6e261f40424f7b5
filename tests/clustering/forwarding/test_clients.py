"""Clients of a node that does not lead what they use, with real sockets and aio-pika."""

import asyncio
from datetime import UTC, datetime, timedelta

import aio_pika
import aiormq
import pytest

from leveret.clustering.forwarding.remote_partition import RemotePartition
from tests.clustering.nodes import BrokerCluster
from tests.support.waiting import eventually

LEADER, OTHER, THIRD = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        yield cluster


async def connected(node, **settings):
    connection = await aio_pika.connect(node.url)
    return connection, await connection.channel(**settings)


@pytest.mark.parametrize("publisher", [LEADER, OTHER])
@pytest.mark.parametrize("consumer", [LEADER, OTHER, THIRD])
async def test_any_node_takes_and_delivers(cluster, publisher, consumer):
    await cluster.add_queue("q")
    connection, channel = await connected(cluster.nodes[publisher])
    for number in range(100):
        body = b"%d" % number
        await channel.default_exchange.publish(aio_pika.Message(body, delivery_mode=2), "q")
    other, receiving = await connected(cluster.nodes[consumer])
    await receiving.set_qos(10)
    queue = await receiving.get_queue("q")
    got = []
    async with queue.iterator() as messages:
        async for message in messages:
            assert not message.redelivered
            got.append(message.body)
            await message.ack()
            if len(got) == 100:
                break
    assert got == [b"%d" % number for number in range(100)]
    leading = cluster.nodes[LEADER].queue("q")
    await eventually(lambda: leading.message_count == leading.leased_count == 0)
    await connection.close()
    await other.close()


@pytest.fixture
async def elsewhere(cluster):
    """A channel of a node that does not lead the queue q."""
    await cluster.add_queue("q")
    connection, channel = await connected(cluster.nodes[OTHER])
    yield channel
    await connection.close()


async def publish(channel, *bodies, queue="q", **properties):
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=2, **properties)
        await channel.default_exchange.publish(message, queue)


async def test_get_acks_and_counts(cluster, elsewhere):
    queue = await elsewhere.declare_queue("q", passive=True)
    assert await queue.get(fail=False) is None
    await publish(elsewhere, b"a", b"b", b"c")
    queue = await elsewhere.declare_queue("q", passive=True)
    assert queue.declaration_result.message_count == 3
    first = await queue.get()
    assert (first.body, first.redelivered, first.message_count) == (b"a", False, 2)
    await first.nack(requeue=True)
    again = await queue.get()
    assert (again.body, again.redelivered) == (b"a", True)
    await again.ack()
    assert (await queue.get(no_ack=True)).body == b"b"
    await eventually(lambda: cluster.nodes[LEADER].queue("q").leased_count == 0)
    assert (await queue.purge()).message_count == 1
    assert await queue.get(fail=False) is None


async def test_rejected_and_unsettled_messages(cluster):
    await cluster.add_queue("dead")
    await cluster.add_queue(
        "q",
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    connection, channel = await connected(cluster.nodes[OTHER])
    await publish(channel, b"a", b"b")
    queue = await channel.get_queue("q")
    await (await queue.get()).reject(requeue=False)
    dead = await channel.get_queue("dead")
    await eventually(lambda: cluster.nodes[LEADER].queue("dead").message_count == 1)
    assert (await dead.get(no_ack=True)).body == b"a"
    assert (await queue.get()).body == b"b"
    await connection.close()
    connection, channel = await connected(cluster.nodes[THIRD])
    queue = await channel.get_queue("q")
    again = await queue.get()
    assert again.redelivered
    assert again.headers["x-delivery-count"] == 1
    await connection.close()


async def test_what_the_clients_of_a_lost_node_held_comes_again(cluster):
    await cluster.add_queue("q", replicas=(LEADER, THIRD))
    _, channel = await connected(cluster.nodes[OTHER])
    await publish(channel, *(b"%d" % number for number in range(20)))
    queue = await channel.get_queue("q")
    held = [await queue.get() for _ in range(5)]
    await channel.set_qos(5)
    await queue.consume(held.append)
    await eventually(lambda: len(held) == 10)
    await cluster.nodes[OTHER].kill()
    leading = cluster.nodes[LEADER].queue("q")
    await eventually(lambda: leading.leased_count == 0)
    assert leading.message_count == 20


async def test_consumers_share_the_messages_by_their_prefetch(cluster):
    await cluster.add_queue("q")
    channels = [(await connected(node))[1] for node in cluster.nodes]
    got = [[], [], []]
    for number, channel in enumerate(channels):
        await channel.set_qos(number + 1)
        await (await channel.get_queue("q")).consume(got[number].append)
    await publish(channels[OTHER], *(b"%d" % number for number in range(20)))
    await eventually(lambda: [len(each) for each in got] == [1, 2, 3])
    await got[OTHER][0].ack()
    await eventually(lambda: [len(each) for each in got] == [1, 3, 3])
    leading = cluster.nodes[LEADER].queue("q")
    assert leading.leased_count == 6
    assert sorted(each.body for its in got for each in its) == sorted(b"%d" % n for n in range(7))


async def test_a_cancelled_consumer_gives_back_what_it_has_not_got(cluster, elsewhere):
    await publish(elsewhere, *(b"x" * 100_000 for _ in range(50)))
    queue = await elsewhere.get_queue("q")
    seen = asyncio.Event()

    async def stall(_message):
        seen.set()

    tag = await queue.consume(stall)
    await seen.wait()
    await queue.cancel(tag)
    await elsewhere.close()
    leading = cluster.nodes[LEADER].queue("q")
    await eventually(lambda: leading.leased_count == 0)
    assert leading.message_count == 50


async def test_what_was_on_its_way_is_back_when_a_consumer_is_cancelled(elsewhere, monkeypatch):
    await publish(elsewhere, *(b"%d" % number for number in range(9)))
    queue = await elsewhere.get_queue("q")
    loop, handle = asyncio.get_running_loop(), RemotePartition.handle

    def handle_later(part, message):
        loop.call_later(0.1, handle, part, message)

    monkeypatch.setattr(RemotePartition, "handle", handle_later)
    got = []

    async def keep(message):
        got.append(message)

    await queue.cancel(await queue.consume(keep))
    assert not got
    again = await elsewhere.declare_queue("q", passive=True)
    assert again.declaration_result.message_count == 9


async def test_consumers_without_acknowledgements(cluster, elsewhere):
    got = []
    await (await elsewhere.get_queue("q")).consume(got.append, no_ack=True)
    await publish(elsewhere, *(b"%d" % number for number in range(500)))
    await eventually(lambda: len(got) == 500)
    assert [each.body for each in got] == [b"%d" % number for number in range(500)]
    leading = cluster.nodes[LEADER].queue("q")
    await eventually(lambda: leading.message_count == leading.leased_count == 0)


async def test_large_messages_pass(cluster, elsewhere):
    bodies = [b"a" * 6_000_000, b"b", b"c" * 3_000_000]
    await publish(elsewhere, *bodies)
    queue = await elsewhere.get_queue("q")
    assert [(await queue.get(no_ack=True)).body for _ in bodies] == bodies


async def test_exclusive_consumers(cluster, elsewhere):
    queue = await elsewhere.get_queue("q")
    await queue.consume(print, exclusive=True)
    _, third = await connected(cluster.nodes[THIRD])
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="in exclusive use"):
        await (await third.get_queue("q")).consume(print)
    _, local = await connected(cluster.nodes[LEADER])
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="in exclusive use"):
        await (await local.get_queue("q")).consume(print)


async def test_a_single_active_consumer(cluster):
    await cluster.add_queue("q", arguments={"x-single-active-consumer": True})
    got = [[], []]
    channels = [(await connected(cluster.nodes[number]))[1] for number in (OTHER, THIRD)]
    for channel, its in zip(channels, got, strict=True):
        await channel.set_qos(1)
        await (await channel.get_queue("q")).consume(its.append)
    await publish(channels[1], b"a", b"b")
    await eventually(lambda: len(got[0]) == 1)
    await got[0][0].ack()
    await eventually(lambda: len(got[0]) == 2)
    assert not got[1]
    await channels[0].close()
    await eventually(lambda: len(got[1]) == 1)
    assert got[1][0].body == b"b"


async def test_refused_publishes_are_nacked_one_by_one(cluster):
    await cluster.add_queue("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    _, channel = await connected(cluster.nodes[OTHER])
    results = await asyncio.gather(
        *(publish(channel, b"%d" % number) for number in range(5)), return_exceptions=True
    )
    refused = [isinstance(each, aio_pika.exceptions.DeliveryError) for each in results]
    assert refused == [False, False, True, True, True]
    assert cluster.nodes[LEADER].queue("q").message_count == 2


async def test_streams_are_read_from_an_offset(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    _, channel = await connected(cluster.nodes[OTHER])
    await publish(channel, *(b"%d" % number for number in range(10)))
    got = []
    await channel.set_qos(100)
    await (await channel.get_queue("q")).consume(got.append, arguments={"x-stream-offset": 7})
    await eventually(lambda: len(got) == 3)
    assert [each.headers["x-stream-offset"] for each in got] == [7, 8, 9]


async def test_streams_are_read_from_a_time(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    _, channel = await connected(cluster.nodes[OTHER])
    await publish(channel, b"0", b"1")
    got = []
    await channel.set_qos(100)
    earlier = datetime.now(tz=UTC) - timedelta(hours=1)
    await (await channel.get_queue("q")).consume(got.append, arguments={"x-stream-offset": earlier})
    await eventually(lambda: len(got) == 2)
    assert [each.body for each in got] == [b"0", b"1"]


async def test_readers_of_a_stream_are_never_alone(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    _, channel = await connected(cluster.nodes[OTHER])
    got = []
    await channel.set_qos(100)
    queue = await channel.get_queue("q")
    await queue.consume(got.append, exclusive=True)
    await queue.consume(got.append, exclusive=True)
    await publish(channel, b"a")
    await eventually(lambda: len(got) == 2)


async def test_partitions_with_several_leaders(cluster):
    await cluster.add_queue("q", replicas=(LEADER, OTHER), arguments={"x-partitions": 4})
    _, channel = await connected(cluster.nodes[THIRD])
    for number in range(100):
        await publish(channel, b"%d" % number, headers={"x-partition-key": str(number)})
    got = []
    await channel.set_qos(10)
    queue = await channel.get_queue("q")

    async def take(message):
        got.append(message.body)
        await message.ack()

    await queue.consume(take)
    await eventually(lambda: len(got) == 100)
    assert set(got) == {b"%d" % number for number in range(100)}


async def test_a_queue_that_lives_on_one_node(cluster):
    await cluster.add_queue("q", leader=THIRD, durable=False, home=cluster.home(THIRD))
    _, channel = await connected(cluster.nodes[OTHER])
    await publish(channel, b"a")
    assert (await (await channel.get_queue("q")).get(no_ack=True)).body == b"a"


async def test_groups_are_refused_where_they_would_get_nothing(cluster):
    await cluster.add_queue("q", arguments={"x-queue-type": "stream"})
    connection, channel = await connected(cluster.nodes[OTHER])
    await channel.set_qos(10)
    queue = await channel.get_queue("q")
    with pytest.raises(aiormq.exceptions.ConnectionNotImplemented, match="other nodes lead"):
        await queue.consume(print, arguments={"x-consumer-group": "g"})
    await connection.close()
