"""Rates: who publishes too fast is held and told so, who consumes too fast waits; nobody loses."""

from dataclasses import replace

import pytest
from pamqp import commands

from leveret.core.alarms import Resource
from leveret.core.settings.queue_settings import Rate
from leveret.errors import ConnectionClosingError
from leveret.features.rates.rules import ConnectionRates
from leveret.ports.definitions import PolicyDefinition
from tests.support.client import Client, message, wire
from tests.support.stage import Stage

UNDERSTANDS = {"connection.blocked": True}


def bodies(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


def vhost_limits(stage, **limits):
    limits = {name.replace("_", "-"): value for name, value in limits.items()}
    stage.broker.change_vhost(replace(stage.broker.vhosts["/"].definition, limits=limits))
    stage.run()


def user_limits(stage, user, **limits):
    limits = {name.replace("_", "-"): value for name, value in limits.items()}
    stage.access.put_user(replace(stage.access.user(user), limits=limits))
    stage.broker.change_user(user)
    stage.run()


def node(**rates):
    return Stage(connection_rates=ConnectionRates(**rates))


def opened(stage, user="guest"):
    return Client(stage).open(capabilities=UNDERSTANDS, user=user)


def pass_time(stage, seconds):
    """In steps, as the loop has its turns meanwhile."""
    for _ in range(int(seconds * 50)):
        stage.advance(0.02)


def stored(stage, queue="q"):
    stage.run()
    return stage.queue(queue).message_count


# -- publishing


@pytest.mark.covers("C-216")
def test_a_publisher_over_its_rate_is_blocked_told_and_unblocked():
    stage = Stage()
    vhost_limits(stage, publish_rate=10)
    client = opened(stage)
    client.declare("q")
    client.publish("q", *bodies(10))
    assert stored(stage) == 10
    assert not client.transport.held
    assert client.received() == []
    client.publish("q", *bodies(5, 10))
    assert stored(stage) == 10
    assert client.transport.held
    ((channel, blocked),) = client.received()
    assert (channel, blocked.name) == (0, "Connection.Blocked")
    assert blocked.reason == "over the publish-rate of vhost '/' (10/s)"
    stage.advance(0.1)
    assert client.transport.held  # a quarter of a second's worth, two messages, must be there
    stage.advance(0.1)
    assert stored(stage) == 12
    assert client.names() == ["Connection.Unblocked", "Connection.Blocked"]
    stage.advance(0.5)
    assert stored(stage) == 15
    assert not client.transport.held
    assert client.names()[-1] == "Connection.Unblocked"
    client.consume("q", no_ack=True)
    assert [delivery.body for delivery in client.deliveries()] == bodies(15)


def test_over_a_long_time_the_rate_is_kept_and_nothing_is_lost():
    stage = node(publish=Rate(100, 10))
    client = opened(stage)
    client.declare("q")
    client.publish("q", *bodies(510))
    for tenths in range(50):
        assert stored(stage) <= 10 + tenths * 10
        stage.advance(0.1)
    stage.advance(0.5)
    assert stored(stage) == 510


@pytest.mark.parametrize("step", [1, 7, 0])
def test_it_stops_wherever_the_bytes_are_cut(step):
    stage = node(publish=Rate(10, 2))
    client = opened(stage)
    client.declare("q")
    client.send(commands.Confirm.Select())
    client.received()
    client.step = step
    client.publish("q", *bodies(5))
    assert stored(stage) == 2
    for _ in range(10):
        stage.advance(0.1)
    assert stored(stage) == 5
    acked = [frame for _, frame in client.received() if frame.name == "Basic.Ack"]
    assert acked[-1].delivery_tag == 5


def test_what_comes_behind_a_held_publish_waits_its_turn_and_is_done():
    stage = node(publish=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.feed(
        message("q", b"1")
        + message("q", b"2")
        + wire(commands.Queue.Declare(queue="later"))
        + message("later", b"3")
    )
    assert "later" not in stage.broker.vhosts["/"].queues
    for _ in range(3):
        stage.advance(0.1)
    assert (stored(stage), stored(stage, "later")) == (2, 1)


def test_acks_of_a_connection_that_publishes_too_fast_come_later_but_come():
    stage = node(publish=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", b"0")
    client.consume("q")
    (delivery,) = client.deliveries()
    client.feed(message("q", b"1") + message("q", b"2") + wire(commands.Basic.Ack(delivery.tag)))
    assert stage.queue("q").leased_count == 1
    for _ in range(3):
        stage.advance(0.1)
    assert stage.queue("q").state._ledger.leased_count == 2  # 1 and 2; 0 is settled


@pytest.mark.covers("C-216")
def test_the_rate_of_a_user_is_for_all_connections_together():
    stage = Stage()
    stage.add_user("other")
    user_limits(stage, "guest", publish_rate=10)
    first, second, other = opened(stage), opened(stage), opened(stage, "other")
    first.declare("q")
    first.publish("q", *bodies(6))
    second.publish("q", *bodies(6))
    assert stored(stage) == 10
    assert (first.transport.held, second.transport.held) == (False, True)
    other.publish("q", *bodies(50))
    assert stored(stage) == 60
    assert not other.transport.held


@pytest.mark.covers("C-216")
def test_a_queue_slows_those_who_publish_to_it_and_nobody_else():
    stage = Stage()
    first, second = opened(stage), opened(stage)
    first.declare("q", arguments={"x-publish-rate": 10})
    first.declare("free")
    first.publish("q", *bodies(10))
    first.publish("q", *bodies(10, 10))
    first.publish("q", *bodies(10, 20))
    second.publish("free", *bodies(600))
    assert stored(stage, "free") == 600
    assert not second.transport.held
    assert first.transport.held
    ((_, blocked),) = first.received()
    assert blocked.reason == "over the publish-rate of queue 'q' in vhost '/' (10/s)"
    stage.advance(5)
    assert stored(stage) == 30
    assert not first.transport.held


def test_a_policy_gives_a_queue_a_rate_and_takes_it():
    stage = Stage()
    client = opened(stage)
    client.declare("q")
    policy = PolicyDefinition("/", "p", "", {"publish-rate": 10}, 0, "queues")
    stage.broker.policies.put(policy)
    stage.broker.apply_policies("/")
    client.publish("q", *bodies(15))
    client.publish("q", *bodies(5, 15))
    assert client.transport.held
    stage.broker.policies.remove("/", "p", operator=False)
    stage.broker.apply_policies("/")
    stage.advance(0)
    assert not client.transport.held
    assert stored(stage) == 20
    assert stage.queue("q").rates is None
    client.publish("q", *bodies(1000))
    assert stored(stage) == 1020


def test_a_limit_that_is_lifted_frees_at_once_and_zero_admits_nothing():
    stage = Stage()
    vhost_limits(stage, publish_rate=0)
    client = opened(stage)
    client.declare("q")
    client.publish("q", b"m")
    stage.advance(1000)
    assert stored(stage) == 0
    assert client.transport.held
    vhost_limits(stage, publish_rate=-1)
    stage.advance(0)
    assert stored(stage) == 1
    assert client.names() == ["Connection.Blocked", "Connection.Unblocked"]


def test_a_client_that_would_not_understand_is_not_told():
    stage = node(publish=Rate(10, 1))
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"1", b"2")
    assert client.transport.held
    stage.advance(1)
    assert client.received() == []
    assert stored(stage) == 2


@pytest.mark.covers("C-216")
def test_alarm_and_rate_together_tell_the_client_once():
    stage = node(publish=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", b"1", b"2")
    stage.broker.alarms.set(Resource.DISK, low=True)
    stage.advance(1)
    assert client.transport.held
    stage.broker.alarms.set(Resource.DISK, low=False)
    assert not client.transport.held
    assert client.names() == ["Connection.Blocked", "Connection.Unblocked"]


def test_a_held_connection_can_be_shut():
    stage = node(publish=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.received()
    client.connection.shut(ConnectionClosingError(320, "bye"))
    assert not client.transport.held
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.names() == ["Connection.Close"]
    assert client.transport.closed
    stage.advance(10)


def test_a_held_connection_can_be_lost():
    stage = node(publish=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", b"1", b"2", b"3")
    client.transport.lose()
    stage.advance(10)
    assert stored(stage) == 1
    assert stage.reported == []


def test_connections_that_no_rate_concerns_are_not_counted():
    stage = Stage()
    client = opened(stage)
    client.declare("q")
    client.consume("q")
    assert client.connection.rate_hold is None
    assert client.connection.channels.by_number[1].consumers["c"].meter is None


# -- consuming


def delivered(client):
    return [delivery.body for delivery in client.deliveries()]


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_consumer_gets_its_rate_and_no_more(no_ack):
    stage = node(consume=Rate(100, 10))
    client = opened(stage)
    client.declare("q")
    client.publish("q", *bodies(100))
    client.consume("q", no_ack=no_ack)
    assert delivered(client) == bodies(10)
    stage.advance(0.1)
    assert delivered(client) == bodies(10, 10)
    stage.advance(0.1)
    assert delivered(client) == bodies(10, 20)
    pass_time(stage, 1)
    assert len(delivered(client)) == 70


@pytest.mark.parametrize("no_ack", [True, False])
def test_what_lies_apart_counts_as_what_lies_together(no_ack):
    stage = node(consume=Rate(100, 10))
    client = opened(stage)
    client.declare("q", arguments={"x-max-priority": 2})
    for number, body in enumerate(bodies(60)):
        client.publish("q", body, priority=number % 2)
    stage.run()
    client.consume("q", no_ack=no_ack)
    assert delivered(client) == bodies(20)[1::2]
    stage.advance(0.1)
    assert delivered(client) == bodies(40)[21::2]


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_the_consumers_of_a_queue_share_its_rate(kind):
    stage = Stage()
    first, second = opened(stage), opened(stage)
    arguments = {"x-queue-type": kind, "x-consume-rate": 10, "x-consume-burst": 4}
    first.declare("q", arguments=arguments, durable=True)
    first.publish("q", *bodies(40))
    for client in (first, second):
        client.prefetch(100)
        client.consume("q", arguments={"x-stream-offset": "first"} if kind == "stream" else {})
    assert len(delivered(first)) + len(delivered(second)) == 4
    pass_time(stage, 1)
    assert 9 <= len(delivered(first)) + len(delivered(second)) <= 11


@pytest.mark.covers("C-216")
def test_queues_take_turns_with_a_rate_that_they_share():
    stage = node(consume=Rate(1000, 50))
    publisher, client = opened(stage), opened(stage)
    for name in "abc":
        publisher.declare(name)
        publisher.publish(name, *bodies(2000))
    for name in "abc":
        client.send(commands.Basic.Consume(queue=name, consumer_tag=name))
        stage.advance(0.003)  # so that they do not wait from the same moment on
    client.received()
    pass_time(stage, 1.5)
    came = [told[1] for told in client.methods() if told[0] == "Basic.Deliver"]
    assert all(len(came) / 4 < came.count(name) < len(came) / 2 for name in "abc")


def test_a_limit_on_consuming_that_is_set_and_lifted_counts_at_once():
    stage = Stage()
    client = opened(stage)
    client.declare("q")
    client.consume("q", no_ack=True)
    user_limits(stage, "guest", consume_rate=0)
    client.publish("q", *bodies(5))
    stage.advance(100)
    assert delivered(client) == []
    user_limits(stage, "guest")
    assert delivered(client) == bodies(5)


def test_a_get_over_the_rate_is_answered_later_and_never_with_empty():
    stage = node(consume=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", *bodies(3))
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert delivered(client) == bodies(1)
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert delivered(client) == []
    stage.advance(0.1)
    assert delivered(client) == bodies(1, 1)


def test_a_get_is_counted_where_there_was_something_to_get():
    stage = node(consume=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    for _ in range(5):
        answer = client.call(commands.Basic.Get(queue="q", no_ack=True))
        assert answer.name == "Basic.GetEmpty"


def test_a_consumer_that_is_cancelled_while_it_waits_wakes_nobody():
    stage = node(consume=Rate(10, 1))
    client = opened(stage)
    client.declare("q")
    client.publish("q", *bodies(3))
    client.consume("q", no_ack=True)
    client.received()
    client.call(commands.Basic.Cancel(consumer_tag="c"))
    stage.advance(10)
    assert client.received() == []
    assert stored(stage) == 2
    assert stage.reported == []


# -- what is refused


@pytest.mark.parametrize("value", [0, -1, "1", 2_000_000_000])
def test_a_wrong_rate_is_refused_when_the_queue_is_declared(value):
    stage = Stage()
    client = opened(stage)
    answer = client.call(commands.Queue.Declare(queue="q", arguments={"x-publish-rate": value}))
    assert answer.reply_code == 406
    problem = '"expected an integer from 1 to 1000000000"'
    expected = f"invalid arg 'x-publish-rate' for queue 'q' in vhost '/': {problem}"
    assert expected in answer.reply_text


# -- for HTTP


def test_who_comes_by_http_is_told_when_a_publish_may_pass():
    stage = Stage()
    client = opened(stage)
    client.declare("q", arguments={"x-publish-rate": 5})
    user_limits(stage, "guest", publish_rate=10)
    vhost, rates = stage.broker.vhosts["/"].definition, stage.broker.rates
    queue = stage.queue("q")
    assert rates.publish_wait_seconds("guest", vhost) == 0
    client.publish("q", *[b"m"] * 10)
    assert rates.publish_wait_seconds("guest", vhost) == 1
    assert rates.publish_wait_seconds("nobody", vhost) == 0
    assert rates.publish_wait_seconds("nobody", vhost, [queue]) == 2  # six too many at 5 a second
    stage.advance(2)
    assert rates.publish_wait_seconds("guest", vhost, [queue]) == 0
    user_limits(stage, "guest", publish_rate=0)
    assert rates.publish_wait_seconds("guest", vhost) == 60
