"""Questions of clients are answered as ever while the leader of a queue changes."""

import asyncio
import contextlib

import aio_pika
import pytest

from leveret.clustering.forwarding.session import PartitionSession
from leveret.clustering.forwarding.wire import (
    GetRequest,
    LookUpOffsets,
    PurgeRequest,
    RefreshRequest,
)
from leveret.core.queues.places import purge_places
from leveret.errors import ChannelError
from leveret.features.range_reads.bounds import offset_rows
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import connected, lead
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
COUNT = 3


async def counted(node, channel):
    queue = await channel.declare_queue("q", passive=True)
    return queue.declaration_result.message_count


async def got(node, channel):
    """Get a message and give it back. Returns how many there are, it included."""
    message = await (await channel.get_queue("q", ensure=False)).get(fail=False)
    assert message is not None
    await message.nack(requeue=True)
    return message.message_count + 1


async def purged(node, channel):
    return await purge_places(node.queue("q"))


async def bounded(node, channel):
    (row,) = await offset_rows(node.queue("q"), sizes=True)
    return row["end"] - row["first"]


QUESTIONS = [
    (counted, RefreshRequest),
    (got, RefreshRequest),
    (got, GetRequest),
    (purged, PurgeRequest),
    (bounded, LookUpOffsets),
]


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        await cluster.add_queue("q")
        channel = await connected(cluster.nodes[FIRST])
        for _ in range(COUNT):
            message = aio_pika.Message(b"m", delivery_mode=2)
            await channel.default_exchange.publish(message, "q")
        yield cluster


@contextlib.asynccontextmanager
async def asked(monkeypatch, node, question, request):
    """Ask what no leader answers in this context; yield the task that asks."""
    is_silent, handle = True, PartitionSession._handle

    def handle_others(session, message, tasks):
        if not (is_silent and isinstance(message, request)):
            handle(session, message, tasks)

    monkeypatch.setattr(PartitionSession, "_handle", handle_others)
    stand_in = node.queue("q").places[0]
    asking = asyncio.get_running_loop().create_task(question(node, await connected(node)))
    await eventually(lambda: stand_in.questions)
    yield asking
    is_silent = False


@pytest.mark.parametrize(("question", "message"), QUESTIONS)
@pytest.mark.parametrize("next_leader", [OTHER, THIRD])
async def test_a_leader_that_goes_leaves_no_question_open(
    cluster, monkeypatch, question, message, next_leader
):
    async with asked(monkeypatch, cluster.nodes[OTHER], question, message) as asking:
        pass
    await lead(cluster, "q", next_leader)
    assert await asking == COUNT


async def test_a_queue_that_is_deleted_has_nothing(cluster, monkeypatch):
    node = cluster.nodes[OTHER]
    async with (
        asked(monkeypatch, node, purged, PurgeRequest) as purging,
        asked(monkeypatch, node, bounded, LookUpOffsets) as looking,
    ):
        node.queue("q").mark_deleted()
        assert await purging == 0
        with pytest.raises(ChannelError, match="no queue 'q' in vhost '/'"):
            await looking


async def test_nobody_notices_that_leadership_goes_round(cluster):
    """Questions at each node, one after the other, while the leader changes all the time."""
    answers = []
    is_over = asyncio.Event()

    async def ask_again(node, question):
        channel = await connected(node)
        while not is_over.is_set():
            answers.append(await question(node, channel))
            await asyncio.sleep(0.001)  # a leader answers at once

    async with asyncio.TaskGroup() as asking:
        for node in cluster.nodes:
            for question in (counted, bounded):
                asking.create_task(ask_again(node, question))
        for turn in range(12):
            await lead(cluster, "q", turn % 3)
            seen = len(answers)
            await eventually(lambda seen=seen: len(answers) >= seen + 10)
        is_over.set()
    assert set(answers) == {COUNT}
