"""Message groups as clients ask for them."""

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.stage import Stage

GROUPS = {"x-group-ordering": True}


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open(1, 2)


def publish(client, group, *bodies):
    client.publish("q", *bodies, headers={"x-message-group": group})


def bodies(client, channel=1):
    return [delivery.body for delivery in client.deliveries(channel)]


def refused(client, method):
    answer = client.call(method)
    assert answer.reply_code == 406
    return answer.reply_text


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_two_consumers_and_two_groups(stage, client, kind):
    client.declare("q", durable=True, arguments={**GROUPS, "x-queue-type": kind})
    client.consume("q")
    other = Client(stage).open()
    other.consume("q")
    publish(client, "a", b"a1", b"a2")
    publish(client, "b", b"b1", b"b2")
    first, second = bodies(client), bodies(other)
    assert sorted(first + second) == [b"a1", b"b1"]
    client.send(commands.Basic.Ack(0, multiple=True))
    other.transport.lose()
    stage.run()
    assert len(bodies(client)) == 2


def test_who_settles_need_not_be_who_gets_the_next(stage, client):
    client.declare("q", arguments=GROUPS)
    publish(client, "a", b"1", b"2")
    client.send(commands.Basic.Get(queue="q"))
    client.received()
    other = Client(stage).open()
    other.consume("q")
    client.send(commands.Basic.Ack(1))
    stage.run()
    assert bodies(other) == [b"2"]


@pytest.mark.parametrize("group", [7, True, ["a"], "g" * 256])
def test_what_is_no_group_is_stored_nowhere(stage, client, group):
    client.declare("q")
    publish(client, group, b"1")
    (close,) = [v for _, v in client.received() if isinstance(v, commands.Channel.Close)]
    assert close.reply_code == 406
    assert close.reply_text.startswith("PRECONDITION_FAILED - invalid header 'x-message-group'")
    assert stage.queue("q").message_count == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"x-group-ordering": "yes"}, '"expected true or false"'),
        ({"x-group-ordering": True, "x-max-priority": 3}, '"not together with x-max-priority"'),
    ],
)
def test_wrong_arguments_are_refused(client, arguments, told):
    text = refused(client, commands.Queue.Declare(queue="q", arguments=arguments))
    assert text == (
        "PRECONDITION_FAILED - invalid arg 'x-group-ordering' for queue 'q' in vhost '/': " + told
    )


def test_a_stream_has_no_groups(client):
    arguments = {"x-queue-type": "stream", **GROUPS}
    text = refused(client, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert "invalid arg 'x-group-ordering' for queue 'q' in vhost '/'" in text
