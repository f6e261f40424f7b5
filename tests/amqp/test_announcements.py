import pytest
from pamqp import commands

from leveret.core.topology.predeclared import EVENT_EXCHANGE
from tests.support.client import PROTOCOL_HEADER, Client
from tests.support.messages import heard, listen
from tests.support.stage import Stage

NAME = "127.0.0.1:50000 -> 127.0.0.1:5672"


@pytest.fixture
def stage():
    stage = Stage(login_delay_seconds=0)
    listen(stage, EVENT_EXCHANGE)
    return stage


def told(stage, *unwanted):
    """Key and headers of the events, without the time and what a test does not look at."""
    return [
        (
            event.key,
            {k: v for k, v in event.headers.items() if k not in {"timestamp_in_ms", *unwanted}},
        )
        for event in heard(stage)
    ]


@pytest.mark.covers("B-178")
def test_a_connection_and_its_channel(stage):
    client = Client(stage).open()
    client.transport.lose()
    ends = {
        "host": "{127,0,0,1}",
        "peer_host": "{127,0,0,1}",
        "peer_port": 50000,
        "auth_mechanism": "PLAIN",
        "protocol": "{0,9,1}",
        "ssl": False,
    }
    identity = {
        "pid": NAME,
        "name": NAME,
        "node": "leveret@test",
        "client_properties": ['{<<"capabilities">>,table,[]}'],
    }
    assert told(stage) == [
        (
            "user.authentication.success",
            {**ends, "name": "guest", "connection_name": NAME, "connection_type": "network"},
        ),
        (
            "connection.created",
            {
                **ends,
                **identity,
                "type": "network",
                "port": 5672,
                "user": "guest",
                "vhost": "/",
                "timeout": 0,
                "frame_max": 131072,
                "channel_max": 2047,
                "connected_at": stage.now,
                "user_who_performed_action": "guest",
            },
        ),
        (
            "channel.created",
            {
                "pid": f"{NAME} (1)",
                "name": f"{NAME} (1)",
                "connection": NAME,
                "number": 1,
                "user": "guest",
                "vhost": "/",
                "user_who_performed_action": "guest",
            },
        ),
        ("channel.closed", {"pid": f"{NAME} (1)", "user_who_performed_action": "guest"}),
        ("connection.closed", identity),
    ]


@pytest.mark.covers("B-178")
def test_a_refused_login(stage):
    client = Client(stage)
    client.feed(PROTOCOL_HEADER)
    properties = {"capabilities": {"authentication_failure_close": True}, "connection_name": "me"}
    client.send(commands.Connection.StartOk(properties, "PLAIN", "\0guest\0wrong"), channel=0)
    stage.advance(1)
    client.transport.lose()
    [(key, headers)] = told(stage)
    assert key == "user.authentication.failure"
    assert (headers["name"], headers["error"]) == ("guest", "user 'guest' - invalid credentials")
    assert "wrong" not in str(headers)


@pytest.mark.covers("B-178")
def test_a_consumer(stage):
    client = Client(stage).open()
    client.declare("q")
    client.prefetch(7)
    heard(stage)
    client.consume("q", "c", arguments={"x-priority": 3}, exclusive=True)
    client.call(commands.Basic.Cancel(consumer_tag="c"))
    consumer = {
        "consumer_tag": "c",
        "channel": f"{NAME} (1)",
        "queue": "q",
        "vhost": "/",
        "user_who_performed_action": "guest",
    }
    assert told(stage, "arguments") == [
        (
            "consumer.created",
            {**consumer, "exclusive": True, "ack_required": True, "prefetch_count": 7},
        ),
        ("consumer.deleted", consumer),
    ]


def test_a_consumer_whose_queue_is_deleted_is_told_once(stage):
    client = Client(stage).open()
    client.declare("q")
    client.consume("q")
    heard(stage)
    client.send(commands.Queue.Delete(queue="q"))
    client.transport.lose()
    keys = [event.key for event in heard(stage)]
    assert sorted(keys) == [
        "channel.closed",
        "connection.closed",
        "consumer.deleted",
        "queue.deleted",
    ]


def test_what_goes_with_a_connection_was_its_users_doing(stage):
    client = Client(stage).open()
    client.declare("mine", exclusive=True)
    [created] = [event for event in heard(stage) if event.key == "queue.created"]
    assert created.headers["owner_pid"] == NAME
    client.transport.lose()
    [deleted] = [event for event in heard(stage) if event.key == "queue.deleted"]
    assert deleted.headers["user_who_performed_action"] == "guest"
