"""First and end offsets, and offsets of times: over AMQP and as an operation."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from pamqp import commands

from leveret.core.definitions.administration import AdministrationError
from leveret.errors import ChannelError, StorageError
from leveret.features.range_reads.commands import topic_offsets
from tests.support.client import Client
from tests.support.stage import Stage

EXCHANGE = "leveret.topics"


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def client(stage):
    client = Client(stage).open()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.declare("plain")
    client.declare("answers")
    stage.now = 1_700_000_000_000
    for _ in range(3):
        client.publish("s", b"x", b"y")
        stage.advance(10)
    return client


def send(client, key="offsets", headers=None, **properties):
    client.publish(key, b"", exchange=EXCHANGE, headers=headers or {}, **properties)
    for _ in range(5):
        client.stage.run()


def ask(client, **headers):
    table = {f"x-{name}": value for name, value in headers.items()}
    send(client, headers=table, reply_to="answers", correlation_id="c")
    client.send(commands.Basic.Get(queue="answers", no_ack=True))
    frames = [frame for _, frame in client.received()]
    assert frames[1].properties.correlation_id == "c"
    assert frames[1].properties.content_type == "application/json"
    return json.loads(frames[2].value)


def test_bounds_of_all_partitions(client):
    told = ask(client, queue="s")
    assert told["queue"] == "s"
    assert len(told["log"]) == 16
    assert told["partitions"] == [{"partition": 0, "first": 0, "end": 6}]


@pytest.mark.parametrize(("time_ms", "offset"), [(0, 0), (5000, 2), (99_999, 6)])
def test_the_offset_of_a_time(client, time_ms, offset):
    told = ask(client, queue="s", time=1_700_000_000_000 + time_ms)
    assert told["partitions"] == [{"partition": 0, "first": 0, "end": 6, "offset": offset}]


def test_a_time_as_a_timestamp(client):
    told = ask(client, queue="s", time=datetime.fromtimestamp(1_700_000_005, UTC))
    assert told["partitions"][0]["offset"] == 2


def test_what_retention_removed_is_below_the_first(client, stage):
    stage.queue("s").log.settle([(0, 4)])
    told = ask(client, queue="s", time=0)
    assert told["partitions"] == [{"partition": 0, "first": 4, "end": 6, "offset": 4}]


def test_an_answer_nobody_asked_for_is_not_made(client, stage):
    send(client, headers={"x-queue": "s"})
    assert client.received() == []
    assert stage.reported == []


@pytest.mark.parametrize(
    ("key", "headers", "code", "text"),
    [
        ("list", {"x-queue": "s"}, 406, "no command 'list': there is offsets"),
        ("offsets", {}, 406, "invalid header 'x-queue': it is needed"),
        ("offsets", {"x-queue": 1}, 406, "invalid header 'x-queue'"),
        ("offsets", {"x-queue": "s", "x-time": -1}, 406, "invalid header 'x-time'"),
        ("offsets", {"x-queue": "s", "x-time": "now"}, 406, "invalid header 'x-time'"),
        ("offsets", {"x-queue": "s", "x-tme": 1}, 406, "x-tme"),
        ("offsets", {"x-queue": "none"}, 404, "no queue 'none' in vhost '/'"),
        ("offsets", {"x-queue": "plain"}, 406, "keeps no messages to be read by offset"),
    ],
)
def test_what_is_refused(client, key, headers, code, text):
    send(client, key, headers, reply_to="answers")
    ((_, close),) = client.received()
    assert close.reply_code == code
    assert text in close.reply_text


@pytest.mark.parametrize(
    ("rights", "missing"),
    [
        ({"read": "^$"}, "queue 's'"),
        ({"write": "^$"}, "exchange 'leveret.topics'"),
        ({"write": "^leveret.topics$"}, "exchange 'amq.default'"),
    ],
)
def test_who_may_not(client, stage, rights, missing):
    stage.add_user("some", **rights)
    other = Client(stage).open(user="some")
    send(other, headers={"x-queue": "s"}, reply_to="answers")
    ((_, close),) = other.received()
    assert close.reply_code == 403
    assert missing in close.reply_text


def test_a_log_that_cannot_be_read(client, stage):
    async def fail(_time_ms):
        raise StorageError("no device")

    stage.queue("s").log.offset_at = fail
    send(client, headers={"x-queue": "s", "x-time": 1}, reply_to="answers")
    ((_, close),) = client.received()
    assert close.reply_code == 506


async def test_the_operation(client, stage):
    node = SimpleNamespace(broker=stage.broker, vhosts=stage.broker.vhosts)
    assert await topic_offsets(node, vhost="/", queue="s") == [
        {"partition": 0, "first": 0, "end": 6}
    ]
    (row,) = await topic_offsets(node, vhost="/", queue="s", time_ms=1_700_000_005_000)
    assert row["offset"] == 2
    with pytest.raises(AdministrationError):
        await topic_offsets(node, vhost="/", queue="none")
    with pytest.raises(AdministrationError):
        await topic_offsets(node, vhost="/", queue="s", time_ms=-1)
    with pytest.raises(ChannelError):
        await topic_offsets(node, vhost="/", queue="plain")
