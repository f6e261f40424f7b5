"""Limits and topic permissions as a client meets them."""

import pytest
from pamqp import commands

from leveret.core.access.limits import NodeLimits
from leveret.ports.definitions import (
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from tests.support.client import Client, message, wire
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


def limit_user(stage, **limits):
    guest = stage.access.user("guest")
    names = {name.replace("_", "-"): value for name, value in limits.items()}
    stage.access.put_user(UserDefinition("guest", guest.password_hash, limits=names))


def refused_open(stage):
    client = Client(stage)
    with pytest.raises(AssertionError, match=r"Connection\.Close"):
        client.handshake()
    return client


# -- connections and channels


@pytest.mark.covers("B-304")
def test_one_connection_too_many_is_told_why(stage):
    Client(stage).open()
    stage.broker.change_vhost(VhostDefinition("/", limits={"max-connections": 1}))
    client = Client(stage)
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.send(
        commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"),
        commands.Connection.TuneOk(10, 131072, 0),
        commands.Connection.Open("/"),
        channel=0,
    )
    code, text = client.methods(0)[-1][1:3]
    assert (code, text) == (
        530,
        (
            "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) is "
            "reached"
        ),
    )


@pytest.mark.covers("B-304")
def test_a_closed_connection_makes_room(stage):
    limit_user(stage, max_connections=1)
    first = Client(stage).open()
    refused_open(stage)
    first.call(commands.Connection.Close(200, "", 0, 0), 0)
    Client(stage).open().declare("q")
    assert stage.queue("q").message_count == 0


@pytest.mark.covers("B-306")
def test_channels_of_a_user_are_counted_over_its_connections(stage):
    limit_user(stage, max_channels=3)
    Client(stage).open(1, 2)
    client = Client(stage).open(1)
    client.send(commands.Channel.Open(), channel=2)
    assert client.methods(0) == [
        (
            "Connection.Close",
            530,
            (
                "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum "
                "allowed user limit of 3"
            ),
            0,
            0,
        )
    ]


@pytest.mark.covers("B-307")
def test_consumers_of_a_channel():
    client = Client(Stage(limits=NodeLimits(consumers_per_channel_max=1))).open()
    client.declare("q")
    client.consume("q", "a")
    client.send(commands.Basic.Consume(queue="q", consumer_tag="b"))
    assert client.methods(0) == [
        (
            "Connection.Close",
            530,
            "NOT_ALLOWED - reached maximum (1) of consumers per channel",
            60,
            20,
        )
    ]


@pytest.mark.covers("B-222")
def test_queues_of_a_vhost(stage):
    stage.broker.change_vhost(VhostDefinition("/", limits={"max-queues": 1}))
    client = Client(stage).open()
    client.declare("q")
    client.declare("q")
    client.send(commands.Queue.Declare(queue="r"))
    assert client.methods() == [
        (
            "Channel.Close",
            406,
            (
                "PRECONDITION_FAILED - cannot declare queue 'r': queue limit in vhost '/' (1) is "
                "reached"
            ),
            50,
            10,
        )
    ]


# -- topics


REFUSED = (
    "Channel.Close",
    403,
    (
        "ACCESS_REFUSED - write access to topic 'closed' in exchange 'amq.topic' in vhost '/' "
        "refused for user 'guest'"
    ),
    60,
    40,
)


def restrict(stage, write="^open", read="^open"):
    stage.access.put_topic_permission(
        TopicPermissionDefinition("/", "guest", "amq.topic", write, read)
    )


@pytest.fixture
def subscriber(stage):
    stage.add_user("subscriber", password="subscriber")
    client = Client(stage).open(user="subscriber")
    client.declare("q")
    client.call(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
    return client


@pytest.mark.covers("B-235", "B-407")
def test_publishing_to_a_closed_topic_is_refused(stage, subscriber):
    restrict(stage)
    client = Client(stage).open()
    client.publish("open.1", b"m", exchange="amq.topic")
    client.publish("open.2", b"m", exchange="amq.topic")
    assert client.received() == []
    client.publish("closed", b"m", exchange="amq.topic")
    assert client.methods() == [REFUSED]
    subscriber.publish("closed", b"m", exchange="amq.topic")
    assert subscriber.count("q") == 3


@pytest.mark.covers("B-407")
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_closed_topic_cannot_be_reached_by_a_copy(stage, subscriber, header):
    restrict(stage)
    client = Client(stage).open()
    client.publish("open", b"m", exchange="amq.topic", headers={header: ["open.2", "closed"]})
    assert client.methods() == [REFUSED]
    assert subscriber.count("q") == 0


@pytest.mark.covers("B-407")
def test_a_topic_is_closed_and_opened_while_a_client_publishes(stage, subscriber):
    client = Client(stage).open(1, 2)
    client.publish("closed", b"m", exchange="amq.topic")
    restrict(stage)
    client.publish("closed", b"m", exchange="amq.topic")
    assert client.methods() == [REFUSED]
    stage.access.remove_topic_permissions(user="guest")
    client.publish("closed", b"m", exchange="amq.topic", channel=2)
    assert client.received() == []
    assert subscriber.count("q") == 2


@pytest.mark.covers("B-407")
def test_a_transaction_is_refused_what_its_topic_is(stage, subscriber):
    restrict(stage)
    client = Client(stage).open()
    client.call(commands.Tx.Select())
    client.feed(message("closed", b"m", exchange="amq.topic"))
    assert client.methods() == [REFUSED]
    assert subscriber.count("q") == 0


@pytest.mark.covers("B-407", "B-235")
@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="closed"),
        commands.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="closed"),
        commands.Exchange.Bind(destination="amq.fanout", source="amq.topic", routing_key="closed"),
    ],
)
def test_binding_to_a_closed_topic_is_refused(stage, subscriber, method):
    restrict(stage)
    client = Client(stage).open()
    client.call(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="open"))
    client.feed(wire(method))
    assert client.methods()[0][:3] == (
        "Channel.Close",
        403,
        (
            "ACCESS_REFUSED - read access to topic 'closed' in exchange 'amq.topic' in vhost '/' "
            "refused for user 'guest'"
        ),
    )
