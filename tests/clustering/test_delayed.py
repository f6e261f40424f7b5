"""Delayed messages have replicas: any node takes them, the leader of their queue keeps them."""

import asyncio
import itertools
import json

import aio_pika
import pytest

from leveret.core.names import DELAYED_QUEUE
from leveret.features.delay.store import DelayedMessageStore
from leveret.ports.definitions import PolicyDefinition
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_side_logs import Taker
from tests.clustering.test_takeover import connected, lead
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
QUORUM = {"x-queue-type": "quorum"}
HOUR = 3_600_000


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        await cluster.add_queue(DELAYED_QUEUE, arguments=QUORUM)
        await cluster.add_queue("q", arguments=QUORUM)
        yield cluster


async def delay(node, *bodies, milliseconds=HOUR, channel=None, **headers):
    """Publish messages to q with a delay, and await the confirms."""
    channel = channel or await connected(node)
    for body in bodies:
        message = aio_pika.Message(
            body, delivery_mode=2, headers={"x-delay": milliseconds, **headers}
        )
        await channel.default_exchange.publish(message, "q")
    return channel


def waiting(node):
    """Return how many messages wait beside the queue that a node leads."""
    messages = node.broker.delayed.find("/")
    return 0 if messages is None else messages.store.pending_count


async def kept(cluster, node, count):
    """Wait until so many messages wait, and all replicas know that they have left the queue."""
    await eventually(lambda: waiting(cluster.nodes[node]) == count)
    logs = [each.log(DELAYED_QUEUE) for each in cluster.nodes if each.is_up]
    await eventually(lambda: all(log.settled.count == log.end for log in logs))


async def command(node, name, **headers):
    """Publish a command to leveret.schedule, and return the answer."""
    channel = await connected(node)
    exchange = await channel.get_exchange("leveret.schedule", ensure=False)
    message = aio_pika.Message(b"", headers=headers, reply_to="answers")
    await exchange.publish(message, name, mandatory=False)
    answer = await (await channel.get_queue("answers")).get()
    await answer.ack()
    return json.loads(answer.body)


@pytest.mark.parametrize("node", [FIRST, OTHER])
async def test_a_delayed_message_comes_whoever_takes_it(cluster, node):
    taker = await Taker().start(cluster.nodes[THIRD])
    await delay(cluster.nodes[node], b"a", b"b", milliseconds=300)
    await eventually(lambda: taker.got == [b"a", b"b"])
    await eventually(lambda: not waiting(cluster.nodes[FIRST]))


async def test_the_next_leader_delivers_what_waits(cluster):
    await delay(cluster.nodes[OTHER], b"a", b"b", milliseconds=1500)
    await kept(cluster, FIRST, 2)
    await cluster.nodes[FIRST].kill()
    taker = await Taker().start(cluster.nodes[THIRD])
    await eventually(lambda: taker.got == [b"a", b"b"])
    leader = await cluster.leader(DELAYED_QUEUE, among=(OTHER, THIRD))
    await eventually(lambda: not waiting(leader))


async def test_messages_wait_on_as_leaders_come_and_go(cluster):
    await delay(cluster.nodes[FIRST], b"0")
    await kept(cluster, FIRST, 1)
    for count, number in enumerate((OTHER, FIRST, THIRD, FIRST, OTHER), 2):
        await lead(cluster, DELAYED_QUEUE, number)
        await delay(cluster.nodes[THIRD], b"%d" % count)
        await kept(cluster, number, count)
        others = [each for each in cluster.nodes if each.number != number]
        await eventually(lambda others=others: not any(map(waiting, others)))


async def test_leadership_is_handed_over_with_what_waits_and_is_coming(cluster):
    taker = await Taker().start(cluster.nodes[THIRD])
    channel = await connected(cluster.nodes[OTHER])
    bodies = [b"%d" % number for number in range(300)]
    key = f"{cluster.nodes[FIRST].queue(DELAYED_QUEUE).definition.incarnation}/0"

    async def publish():
        for body in bodies:
            await delay(cluster.nodes[OTHER], body, milliseconds=50, channel=channel)

    publishing = asyncio.get_running_loop().create_task(publish())
    at = FIRST
    while not publishing.done():
        to = (at + 1) % 3
        assert await cluster.nodes[at].hand_overs.hand_over(key, to)
        await cluster.leader(DELAYED_QUEUE, among=(to,))
        at = to
    await publishing
    await eventually(lambda: len(taker.got) >= len(bodies))
    await asyncio.sleep(0.2)
    assert sorted(taker.got) == sorted(bodies)


async def test_leadership_is_handed_over_under_load(cluster):
    taker = await Taker().start(cluster.nodes[THIRD])
    channels = [await connected(cluster.nodes[number % 3]) for number in range(30)]
    bodies, handed = set(), 0

    async def publish(number, channel):
        for at in itertools.count():
            if handed == 5:
                return
            body = b"%d-%d" % (number, at)
            await delay(None, body, milliseconds=30, channel=channel)
            bodies.add(body)

    publishing = asyncio.gather(*(publish(*each) for each in enumerate(channels)))
    key = f"{cluster.nodes[FIRST].queue(DELAYED_QUEUE).definition.incarnation}/0"
    while handed < 5:
        leader = await cluster.leader(DELAYED_QUEUE)
        handed += await leader.hand_overs.hand_over(key, (leader.number + 1) % 3)
        await asyncio.sleep(0.1)
    await publishing
    await eventually(lambda: set(taker.got) >= bodies)
    await asyncio.sleep(0.2)
    assert sorted(taker.got) == sorted(bodies)


async def test_an_id_means_the_same_message_on_all_nodes(cluster):
    id_ = {"x-schedule-id": "one"}
    await delay(cluster.nodes[OTHER], b"old", **id_)
    await delay(cluster.nodes[THIRD], b"new", milliseconds=1000, **id_)
    await kept(cluster, FIRST, 1)
    await lead(cluster, DELAYED_QUEUE, OTHER)
    taker = await Taker().start(cluster.nodes[FIRST])
    await eventually(lambda: taker.got == [b"new"])
    await asyncio.sleep(0.1)
    assert taker.got == [b"new"]


async def test_the_next_leader_knows_all_ids_before_it_takes_more(cluster, monkeypatch):
    names = [f"{number}" for number in range(30)]
    for name in names:
        await delay(cluster.nodes[OTHER], b"old", **{"x-schedule-id": name})
    await kept(cluster, FIRST, 30)
    read = DelayedMessageStore._read_log

    async def read_late(store):
        await asyncio.sleep(0.5)
        await read(store)

    monkeypatch.setattr(DelayedMessageStore, "_read_log", read_late)
    await lead(cluster, DELAYED_QUEUE, OTHER)
    for name in names[:10]:
        await delay(cluster.nodes[THIRD], b"new", **{"x-schedule-id": name})
    await cluster.add_queue("answers", arguments=QUORUM)
    for name in names[:20]:
        found = await command(cluster.nodes[FIRST], "cancel", **{"x-schedule-id": name})
        assert found == {"count": 1}
    await kept(cluster, OTHER, 10)


async def test_a_repeated_message_goes_on_at_the_next_leader(cluster):
    taker = await Taker().start(cluster.nodes[THIRD])
    repeated = {"x-repeat-every": 200, "x-schedule-id": "again"}
    await delay(cluster.nodes[OTHER], b"r", milliseconds=200, **repeated)
    await eventually(lambda: taker.got)
    await cluster.nodes[FIRST].kill()
    count = len(taker.got)
    await eventually(lambda: len(taker.got) >= count + 3)


async def test_what_a_transaction_delays_takes_effect_with_its_commit(cluster):
    connection = await aio_pika.connect(cluster.nodes[OTHER].url)
    channel = await connection.channel(publisher_confirms=False)
    taker = await Taker().start(cluster.nodes[THIRD])
    async with channel.transaction():
        await delay(None, b"t", milliseconds=100, channel=channel)
        await channel.default_exchange.publish(aio_pika.Message(b"now", delivery_mode=2), "q")
        await asyncio.sleep(0.3)
        assert not taker.got
    await eventually(lambda: sorted(taker.got) == [b"now", b"t"])
    transaction = channel.transaction()
    await transaction.select()
    await delay(None, b"never", channel=channel)
    await transaction.rollback()
    assert waiting(cluster.nodes[FIRST]) == 0
    await connection.close()


@pytest.mark.parametrize("node", [FIRST, OTHER])
async def test_commands_reach_what_waits_from_every_node(cluster, node):
    await cluster.add_queue("answers", arguments=QUORUM)
    asked = cluster.nodes[node]
    await delay(cluster.nodes[THIRD], b"a", b"b", b"c")
    await delay(asked, b"d", **{"x-schedule-id": "d"})
    assert await command(asked, "cancel", **{"x-schedule-id": "d"}) == {"count": 1}
    taker = await Taker().start(cluster.nodes[THIRD])
    assert await command(asked, "deliver-now", **{"x-routing-key": "q"}) == {"count": 3}
    await eventually(lambda: sorted(taker.got) == [b"a", b"b", b"c"])


async def test_what_others_put_into_the_queue_is_dropped(cluster):
    channel = await connected(cluster.nodes[OTHER])
    for body in (b"", b"x" * 100, b"\x01" * 30):
        await channel.default_exchange.publish(aio_pika.Message(body), DELAYED_QUEUE)
    await delay(cluster.nodes[OTHER], b"a")
    await kept(cluster, FIRST, 1)
    assert sum("has not put there" in str(error) for *_, error in cluster.reported) == 3


async def test_clients_leave_the_queue_alone(cluster):
    await delay(cluster.nodes[OTHER], b"a")
    for number in (FIRST, OTHER):
        for use in ("consume", "get", "purge", "delete"):
            channel = await connected(cluster.nodes[number])
            queue = await channel.get_queue(DELAYED_QUEUE, ensure=False)
            arguments = (Taker()._take,) if use == "consume" else ()
            with pytest.raises(aio_pika.exceptions.ChannelClosed, match="is the broker's own"):
                await getattr(queue, use)(*arguments)
    await kept(cluster, FIRST, 1)


async def test_policies_do_not_mean_the_queue(cluster):
    for node in cluster.nodes:
        node.broker.policies.put(PolicyDefinition("/", "all", ".*", {"message-ttl": 0}))
        node.broker.apply_policies("/")
    await delay(cluster.nodes[OTHER], b"a")
    await kept(cluster, FIRST, 1)
    assert cluster.nodes[FIRST].queue("q").settings.message_ttl_ms == 0
    assert cluster.nodes[FIRST].queue(DELAYED_QUEUE).settings.message_ttl_ms is None


async def test_a_message_that_expires_sooner_than_it_is_due_is_delivered(cluster):
    channel = await connected(cluster.nodes[OTHER])
    message = aio_pika.Message(b"e", delivery_mode=2, headers={"x-delay": 500}, expiration=0.1)
    taker = await Taker().start(cluster.nodes[THIRD])
    await channel.default_exchange.publish(message, "q")
    await eventually(lambda: taker.got == [b"e"])


async def test_all_replicas_are_deleted_with_the_queue(cluster):
    await delay(cluster.nodes[OTHER], b"a")
    await kept(cluster, FIRST, 1)

    def files():
        found = (path for node in cluster.nodes for path in node.data.rglob("*.log"))
        return [path for path in found if "leveret.delayed.waiting" in str(path)]

    await eventually(lambda: len(files()) == 3)
    for node in cluster.nodes:
        node.broker.delete_queue(node.broker.vhosts["/"], node.queue(DELAYED_QUEUE))
    await eventually(lambda: not files())
