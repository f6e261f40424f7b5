"""Quorum queues, single active consumers, limits and timeouts, as clients see them."""

import pytest
from pamqp import commands, header

from tests.support.client import Client
from tests.support.stage import Stage

QUORUM = {"x-queue-type": "quorum"}
SINGLE_ACTIVE = {"x-single-active-consumer": True}


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open(1, 2, 3)


def headers(client):
    """The headers of the messages that came."""
    return [
        value.properties.headers
        for _, value in client.received()
        if isinstance(value, header.ContentHeader)
    ]


def error(client, method, channel=1):
    answer = client.call(method, channel)
    assert isinstance(answer, commands.Channel.Close), answer
    return answer.reply_code, answer.reply_text


# -- delivery counts and limits


@pytest.mark.covers("B-129", "B-142", "C-215")
def test_a_quorum_queue_counts_returns_and_gives_up(client):
    client.declare("dead")
    arguments = {
        **QUORUM,
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    client.declare("q", durable=True, arguments=arguments)
    client.publish("q", b"m", headers={"own": 1})
    client.consume("q")
    assert headers(client) == [{"own": 1}]
    client.send(commands.Basic.Nack(1))
    assert headers(client) == [{"x-delivery-count": 1, "x-acquired-count": 1, "own": 1}]
    client.send(commands.Basic.Reject(2))
    assert headers(client) == [{"x-delivery-count": 2, "x-acquired-count": 2, "own": 1}]
    client.send(commands.Basic.Nack(3))
    assert client.count("dead") == 1
    assert client.count("q") == 0


@pytest.mark.covers("B-129", "B-142")
def test_only_failures_count_where_that_was_chosen():
    stage = Stage(delivery_limit_counts="failures")
    client = Client(stage).open()
    client.declare("q", durable=True, arguments={**QUORUM, "x-delivery-limit": 1})
    client.publish("q", b"m")
    client.consume("q")
    for tag in range(1, 6):
        client.send(commands.Basic.Nack(tag))
    assert headers(client) == [None, *({"x-acquired-count": count} for count in range(1, 6))]
    client.send(commands.Basic.Reject(6))
    assert headers(client) == [{"x-delivery-count": 1, "x-acquired-count": 6}]
    client.transport.lose()
    assert Client(stage).open().count("q") == 0


@pytest.mark.covers("B-142")
def test_without_a_limit_a_message_comes_back_for_ever(client):
    client.declare("q", durable=True, arguments={**QUORUM, "x-delivery-limit": -1})
    client.publish("q", b"m")
    for number in range(1, 31):
        client.send(commands.Basic.Get(queue="q"))
        client.send(commands.Basic.Nack(number))
    client.received()
    client.send(commands.Basic.Get(queue="q"))
    assert headers(client) == [{"x-delivery-count": 30, "x-acquired-count": 30}]


@pytest.mark.covers("B-143")
def test_a_rejected_message_comes_back_after_a_delay_that_grows(stage, client):
    delay = {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000}
    client.declare("q", durable=True, arguments={**QUORUM, **delay})
    client.publish("q", b"1")
    client.consume("q")
    client.publish("q", b"2")
    assert [delivery.body for delivery in client.deliveries()] == [b"1", b"2"]
    client.send(commands.Basic.Nack(2))
    assert [delivery.body for delivery in client.deliveries()] == [b"2"]
    for tag, seconds in [(1, 1), (4, 2), (5, 3)]:
        client.send(commands.Basic.Reject(tag, requeue=True))
        stage.advance(seconds - 0.001)
        assert client.received() == []
        stage.advance(0.001)
        assert headers(client)[0]["x-delivery-count"] == seconds


def test_counts_go_with_their_messages(stage, client):
    client.declare("q", durable=True, arguments=QUORUM)
    client.publish("q", b"1", b"2", b"3")
    for tag in range(1, 4):
        client.send(commands.Basic.Get(queue="q"))
        client.send(commands.Basic.Nack(tag))
    machine = stage.queue("q").state
    client.received()
    assert len(machine.counts) > 0
    client.call(commands.Queue.Purge(queue="q"))
    assert machine.counts == {}


@pytest.mark.covers("B-146")
def test_priorities_of_quorum_queues(client):
    client.declare("q", durable=True, arguments=QUORUM)
    for body, priority in [(b"none", None), (b"5", 5), (b"3", 3), (b"99", 99), (b"31", 31)]:
        client.publish("q", body, priority=priority)
    client.prefetch(1)
    client.consume("q")
    got = []
    for tag in range(1, 6):
        got += [delivery.body for delivery in client.deliveries()]
        client.send(commands.Basic.Ack(tag))
    assert got == [b"99", b"31", b"5", b"none", b"3"]


# -- single active consumers


@pytest.mark.covers("B-123")
def test_one_consumer_is_active_and_the_next_follows(client):
    client.declare("q", arguments=SINGLE_ACTIVE)
    client.consume("q", "first", 1)
    client.consume("q", "second", 2, arguments={"x-priority": 10})
    client.publish("q", b"1", channel=3)
    assert [delivery.body for delivery in client.deliveries(1)] == [b"1"]
    client.send(commands.Channel.Close(200, "", 0, 0))
    number, closed = client.received()[0]
    assert (number, closed.name) == (1, "Channel.CloseOk")
    assert error(client, commands.Basic.Consume(queue="q", exclusive=True), 3) == (
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
    )


@pytest.mark.covers("B-123")
def test_in_a_quorum_queue_a_higher_priority_takes_over_when_the_active_one_is_done(client):
    client.declare("q", durable=True, arguments={**QUORUM, **SINGLE_ACTIVE})
    client.consume("q", "low", 1)
    client.publish("q", b"1", channel=3)
    assert [delivery.body for delivery in client.deliveries(1)] == [b"1"]
    client.consume("q", "high", 2, arguments={"x-priority": 1})
    client.publish("q", b"2", channel=3)
    assert client.received() == []
    client.send(commands.Basic.Ack(1))
    assert [delivery.body for delivery in client.deliveries(2)] == [b"2"]
    client.publish("q", b"3", channel=3)
    assert [delivery.body for delivery in client.deliveries(2)] == [b"3"]


@pytest.mark.covers("B-205")
def test_a_quorum_queue_with_one_active_consumer_has_no_get(client):
    client.declare("q", durable=True, arguments={**QUORUM, **SINGLE_ACTIVE})
    assert error(client, commands.Basic.Get(queue="q")) == (
        405,
        (
            "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'. basic.get "
            "operations are not supported by quorum queues with single active consumer"
        ),
    )
    client.declare("classic", 2, arguments=SINGLE_ACTIVE)
    assert client.call(commands.Basic.Get(queue="classic"), 2).name == "Basic.GetEmpty"


# -- limits


@pytest.mark.covers("B-144", "B-101")
def test_each_publish_that_finds_no_room_is_nacked(client):
    client.declare("q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    client.call(commands.Confirm.Select())
    client.publish("q", *[b"%d" % number for number in range(10)])
    assert client.methods() == [("Basic.Ack", 3, True), ("Basic.Nack", 10, True)]
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    client.received()
    client.publish("q", b"10", b"11")
    assert client.methods() == [("Basic.Ack", 11, False), ("Basic.Nack", 12, True)]
    client.publish("nowhere", b"13")
    assert client.methods() == [("Basic.Ack", 13, False)]


@pytest.mark.covers("B-101")
def test_what_one_of_two_queues_refuses_is_nacked(client):
    client.declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("other")
    for name in ("full", "other"):
        client.call(commands.Queue.Bind(queue=name, exchange="amq.fanout"))
    client.call(commands.Confirm.Select())
    client.publish("", b"1", b"2", exchange="amq.fanout")
    assert client.methods() == [("Basic.Ack", 1, False), ("Basic.Nack", 2, True)]
    assert (client.count("full"), client.count("other")) == (1, 2)


def test_who_does_not_confirm_hears_nothing(client):
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.publish("q", b"1", b"2")
    assert client.received() == []
    assert client.count("q") == 1


# -- time


@pytest.mark.covers("B-145")
def test_an_unused_queue_is_deleted(stage, client):
    client.declare("q", arguments={"x-expires": 1000})
    stage.advance(0.9)
    assert client.count("q") == 0
    stage.advance(0.9)
    assert "q" in stage.broker.vhosts["/"].queues
    stage.advance(0.2)
    assert "q" not in stage.broker.vhosts["/"].queues


@pytest.fixture
def sweeping(stage, client):
    """Time that passes with a look at the consumers every second."""

    def advance(seconds):
        for _ in range(seconds):
            stage.advance(1)
            client.connection.check_acknowledged(stage.now)
            stage.run()

    return advance


@pytest.mark.covers("B-127", "B-224")
def test_who_holds_a_delivery_for_too_long_loses_the_channel(stage, client, sweeping):
    client.declare("q")
    client.consume("q")
    sweeping(5000)
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.deliveries()
    sweeping(1000)
    client.send(commands.Basic.Ack(1))
    client.publish("q", b"3")
    sweeping(801)
    ((number, close),) = [
        (n, v) for n, v in client.received() if isinstance(v, commands.Channel.Close)
    ]
    assert (number, close.reply_code, close.reply_text) == (
        1,
        406,
        (
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value "
            "used: 1800000 ms. This timeout value can be configured, see consumers doc guide to "
            "learn more"
        ),
    )
    assert client.count("q", 2) == 2


@pytest.mark.covers("B-142")
def test_what_was_held_for_too_long_has_not_failed():
    stage = Stage(delivery_limit_counts="failures")
    client = Client(stage).open()
    arguments = {**QUORUM, "x-delivery-limit": 0, "x-consumer-timeout": 3000}
    client.declare("q", durable=True, arguments=arguments)
    client.publish("q", b"1")
    client.consume("q")
    for _ in range(5):
        stage.advance(1)
        client.connection.check_acknowledged(stage.now)
    other = Client(stage).open()
    other.consume("q")
    assert headers(other) == [{"x-acquired-count": 1}]


@pytest.mark.covers("B-127")
def test_who_acknowledges_in_time_is_left_alone(client, sweeping):
    client.declare("q")
    client.consume("q")
    for tag in range(1, 8):
        client.publish("q", b"m")
        client.deliveries()
        sweeping(1000)
        client.send(commands.Basic.Ack(tag))
    assert client.received() == []


@pytest.mark.covers("B-127")
@pytest.mark.parametrize("own", [False, True])
def test_a_quorum_queue_or_its_consumer_may_have_a_timeout_of_their_own(client, sweeping, own):
    timeout = {"x-consumer-timeout": 3000}
    client.declare("q", durable=True, arguments=QUORUM if own else {**QUORUM, **timeout})
    client.consume("q", arguments=timeout if own else {})
    client.publish("q", b"1")
    client.deliveries()
    sweeping(3)
    assert client.received() == []
    sweeping(2)
    assert "Timeout value used: 3000 ms" in client.received()[0][1].reply_text
