"""Consumers: how much each is delivered, and what becomes of deliveries."""

import pytest
from pamqp import commands

from leveret.amqp import settling
from leveret.amqp.methods import build
from leveret.ports.counters import ACK, DELIVER, GET, GET_NO_ACK
from tests.support.client import Client, Delivery, message, wire
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open(capabilities={"consumer_cancel_notify": True})
    client.declare("q")
    return client


def bodies(client, channel=1):
    return [delivery.body for delivery in client.deliveries(channel)]


def numbered(first, stop):
    return [b"%d" % number for number in range(first, stop)]


# -- prefetch


def test_without_prefetch_everything_is_delivered(client):
    client.consume("q")
    client.publish("q", *numbered(0, 500))
    assert bodies(client) == numbered(0, 500)


def test_prefetch_of_a_consumer(client):
    client.prefetch(3)
    client.consume("q")
    client.publish("q", *numbered(0, 10))
    assert bodies(client) == numbered(0, 3)
    client.send(commands.Basic.Ack(2))
    assert bodies(client) == numbered(3, 4)
    client.send(commands.Basic.Ack(4, multiple=True))
    assert bodies(client) == numbered(4, 7)


@pytest.mark.covers("B-121")
def test_prefetch_counts_for_consumers_started_later(client):
    client.declare("r")
    client.consume("q", "early")
    client.prefetch(2)
    client.consume("r", "late")
    client.publish("q", *numbered(0, 5))
    assert bodies(client) == numbered(0, 5)
    client.publish("r", *numbered(0, 5))
    assert bodies(client) == numbered(0, 2)


@pytest.mark.covers("B-121", "C-217")
def test_prefetch_is_each_consumers_own(client):
    client.declare("r")
    client.prefetch(2)
    client.consume("q", "one")
    client.consume("r", "two")
    client.publish("q", *numbered(0, 5))
    client.publish("r", *numbered(5, 10))
    assert bodies(client) == [*numbered(0, 2), *numbered(5, 7)]


@pytest.mark.covers("B-121", "C-217")
def test_a_channels_prefetch_is_shared_and_counts_at_once(client):
    client.declare("r")
    client.consume("q", "one")
    client.consume("r", "two")
    client.publish("q", *numbered(0, 2))
    assert bodies(client) == numbered(0, 2)
    client.prefetch(3, global_=True)
    client.publish("q", *numbered(2, 5))
    client.publish("r", *numbered(5, 9))
    assert bodies(client) == numbered(2, 3)
    client.send(commands.Basic.Ack(0, multiple=True))
    assert len(bodies(client)) == 3


def test_a_lowered_channel_prefetch_waits_until_it_is_undercut(client):
    client.consume("q")
    client.publish("q", *numbered(0, 5))
    assert bodies(client) == numbered(0, 5)
    client.prefetch(2, global_=True)
    client.publish("q", *numbered(5, 8))
    client.send(commands.Basic.Ack(3, multiple=True))
    assert bodies(client) == []
    client.send(commands.Basic.Ack(4))
    assert bodies(client) == numbered(5, 6)


def test_a_raised_channel_prefetch_delivers_at_once(client):
    client.prefetch(1, global_=True)
    client.consume("q")
    client.publish("q", *numbered(0, 5))
    assert bodies(client) == numbered(0, 1)
    client.send(commands.Basic.Qos(prefetch_count=3, global_=True))
    assert [method[0] for method in client.methods()].count("Basic.Deliver") == 2
    client.send(commands.Basic.Qos(prefetch_count=0, global_=True))
    assert [method[0] for method in client.methods()].count("Basic.Deliver") == 2


@pytest.mark.covers("B-121")
def test_a_prefetch_for_later_consumers_lifts_the_channels(client):
    """As in RabbitMQ 3.10."""
    client.prefetch(1, global_=True)
    client.consume("q")
    client.publish("q", *numbered(0, 5))
    client.received()
    client.send(commands.Basic.Qos(prefetch_count=2))
    assert [method[0] for method in client.methods()].count("Basic.Deliver") == 4


def test_the_tighter_of_both_limits_counts(client):
    client.prefetch(2)
    client.prefetch(5, global_=True)
    client.consume("q")
    client.publish("q", *numbered(0, 9))
    assert bodies(client) == numbered(0, 2)


def test_consumers_without_acks_have_no_limit(client):
    client.prefetch(1)
    client.prefetch(1, global_=True)
    client.consume("q", no_ack=True)
    client.publish("q", *numbered(0, 50))
    assert bodies(client) == numbered(0, 50)
    assert client.stage.queue("q").state.leased_count == 0


def test_gets_do_not_count(client):
    client.prefetch(1)
    client.publish("q", *numbered(0, 4))
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Get(queue="q"))
    assert bodies(client) == numbered(0, 2)
    client.consume("q")
    assert bodies(client) == numbered(2, 3)
    client.send(commands.Basic.Ack(1))
    assert bodies(client) == []


# -- a peer that does not keep up


def test_a_peer_that_does_not_read_gets_nothing_until_it_does(client):
    client.consume("q")
    client.transport.writable = False
    client.publish("q", *numbered(0, 5))
    assert client.received() == []
    client.transport.writable = True
    client.connection.channels.wake_consumers()
    assert bodies(client) == numbered(0, 5)


def test_others_get_what_a_slow_peer_does_not(stage, client):
    other = Client(stage).open()
    client.consume("q")
    other.consume("q")
    client.transport.writable = False
    client.publish("q", *numbered(0, 5))
    assert client.received() == []
    assert bodies(other) == numbered(0, 5)


def test_one_turn_sends_one_outbox_at_most(client, monkeypatch):
    client.connection.outbox.size_max = 1000
    client.consume("q")
    sizes = []
    send_pending = client.transport.send_pending
    monkeypatch.setattr(
        client.transport,
        "send_pending",
        lambda: (sizes.append(client.connection.outbox.size), send_pending()),
    )
    client.publish("q", *[b"x" * 300] * 5)
    assert [size < 1500 for size in sizes] == [True] * len(sizes)
    delivered = len(client.deliveries())
    assert 1 < delivered < 5
    client.connection.channels.wake_consumers()
    assert len(client.deliveries()) + delivered == 5


# -- what is shared is handed out in turn


def shared(stage, names, count, **options):
    """A client that consumes from several queues, with `count` messages in each."""
    publisher = Client(stage).open()
    for name in names:
        publisher.declare(name)
        publisher.publish(name, *numbered(0, count))
    consumer = Client(stage).open()
    if options.get("prefetch"):
        consumer.prefetch(options["prefetch"], global_=True)
    consumer.connection.outbox.size_max = options.get("outbox_bytes", 1 << 20)
    return consumer, publisher


def consume_all(client, names):
    client.send(*(commands.Basic.Consume(queue=name, consumer_tag=name) for name in names))


def consumed(client):
    """The tags of the consumers of everything that came."""
    return [told[1] for told in client.methods() if told[0] == "Basic.Deliver"]


@pytest.mark.covers("B-121")
@pytest.mark.parametrize("prefetch", [1, 5])
def test_queues_take_turns_with_a_prefetch_that_they_share(stage, prefetch):
    client, _ = shared(stage, "abc", 100, prefetch=prefetch)
    consume_all(client, "abc")
    came = []
    while len(came) < 99:
        came += consumed(client)
        client.send(commands.Basic.Ack(0, multiple=True))
    assert all(28 <= came.count(name) <= 38 for name in "abc")


@pytest.mark.covers("B-121")
def test_a_queue_that_is_published_to_takes_no_more_than_its_turn(stage):
    client, publisher = shared(stage, "abc", 40, prefetch=1)
    consume_all(client, "abc")
    came = consumed(client)
    while len(came) < 90:  # both are read in the same turn
        publisher.connection.received(memoryview(message("a", b"more")))
        client.send(commands.Basic.Ack(0, multiple=True))
        came += consumed(client)
    assert all(28 <= came.count(name) <= 32 for name in "abc")


def test_queues_take_turns_with_the_room_in_a_connections_output(stage):
    names = [f"q{number}" for number in range(10)]
    client, _ = shared(stage, names, 100, outbox_bytes=1000)
    consume_all(client, names)
    came = consumed(client)
    while len(came) < 500:
        client.connection.channels.wake_consumers()
        came += consumed(client)
    assert all(30 <= came.count(name) <= 70 for name in names)


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True}])
@pytest.mark.parametrize("shared", [False, True])
def test_a_queue_is_pumped_first_for_want_of_a_shared_prefetch_only(
    stage, client, arguments, shared
):
    client.declare("r", arguments=arguments)
    client.prefetch(1, global_=shared)
    client.consume("r")
    for _ in range(3):
        client.publish("r", b"more than it may hold")
        client.received()
    assert bool(stage.queue("r").passed_over_in) is shared
    client.send(commands.Basic.Ack(1))
    assert stage.queue("r").passed_over_in == 0


def test_an_ack_wakes_only_the_queue_whose_consumer_can_take_more(stage, client):
    client.declare("r")
    client.prefetch(1)
    client.consume("q", "one")
    client.consume("r", "two")
    client.publish("q", *numbered(0, 2))
    client.publish("r", *numbered(0, 2))
    client.received()
    client.connection.received(memoryview(wire(commands.Basic.Ack(1))))
    assert (stage.queue("q").touched, stage.queue("r").touched) == (True, False)


def test_a_prefetch_that_does_not_grow_wakes_nobody(stage, client):
    client.prefetch(2, global_=True)
    client.consume("q")
    client.publish("q", *numbered(0, 3))
    client.received()
    for count in (2, 1):
        client.connection.received(memoryview(wire(commands.Basic.Qos(0, count, True))))
        assert not stage.queue("q").touched


# -- redelivery


@pytest.mark.covers("B-122")
def test_requeued_messages_come_back_in_their_old_order(client):
    client.prefetch(3)
    client.consume("q")
    client.publish("q", *numbered(0, 5))
    assert bodies(client) == numbered(0, 3)
    client.send(commands.Basic.Nack(3, multiple=True, requeue=True))
    assert client.deliveries() == [
        Delivery(4, b"0", redelivered=True),
        Delivery(5, b"1", redelivered=True),
        Delivery(6, b"2", redelivered=True),
    ]
    client.send(commands.Basic.Ack(6, multiple=True))
    assert client.deliveries() == [Delivery(7, b"3"), Delivery(8, b"4")]


@pytest.mark.covers("B-122")
def test_a_rejected_message_is_gone_or_comes_back(client):
    client.consume("q")
    client.publish("q", b"a", b"b")
    client.received()
    client.send(commands.Basic.Reject(1, requeue=False), commands.Basic.Reject(2, requeue=True))
    assert client.deliveries() == [Delivery(3, b"b", redelivered=True)]
    client.send(commands.Basic.Ack(3))
    assert client.stage.queue("q").state.leased_count == 0
    assert client.count("q") == 0


@pytest.mark.covers("basic.nack")
def test_nack_of_everything(client):
    client.consume("q")
    client.publish("q", b"a", b"b")
    client.received()
    client.send(commands.Basic.Nack(0, multiple=True, requeue=False))
    assert client.received() == []
    assert client.stage.queue("q").state.leased_count == 0


@pytest.mark.covers("basic.recover")
@pytest.mark.parametrize("recover", [commands.Basic.Recover, commands.Basic.RecoverAsync])
def test_recover_redelivers_to_the_channels_consumers(client, recover):
    client.prefetch(2)
    client.consume("q")
    client.publish("q", *numbered(0, 4))
    assert bodies(client) == numbered(0, 2)
    client.send(build(recover, requeue=True))
    answers = client.received()
    names = [value.name for _, value in answers if hasattr(value, "name")]
    ok = ["Basic.RecoverOk"] if recover is commands.Basic.Recover else []
    assert [name for name in names if "Content" not in name] == [*ok, *["Basic.Deliver"] * 2]
    deliveries = [value for _, value in answers if isinstance(value, commands.Basic.Deliver)]
    assert [(each.delivery_tag, each.redelivered) for each in deliveries] == [(3, True), (4, True)]
    client.send(commands.Basic.Ack(4, multiple=True))
    assert client.deliveries() == [Delivery(5, b"2"), Delivery(6, b"3")]


def test_recovered_tags_are_spent(client):
    client.publish("q", b"a")
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Recover(requeue=True))
    client.received()
    client.send(commands.Basic.Ack(1))
    assert client.methods()[0][:3] == (
        "Channel.Close",
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
    )


@pytest.mark.covers("B-122")
@pytest.mark.parametrize("end", ["close", "error", "lose", "connection"])
def test_what_a_channel_held_goes_to_others(stage, client, end):
    other = Client(stage).open()
    client.consume("q")
    client.publish("q", b"a", b"b", b"c")
    client.send(commands.Basic.Ack(2))
    other.consume("q")
    if end == "close":
        client.send(commands.Channel.Close(200, "", 0, 0))
    elif end == "error":
        client.send(commands.Queue.Purge(queue="missing"))
    elif end == "lose":
        client.transport.lose()
    else:
        client.send(commands.Connection.Close(200, "", 0, 0), channel=0)
    assert other.deliveries() == [
        Delivery(1, b"a", redelivered=True),
        Delivery(2, b"c", redelivered=True),
    ]


def test_acks_before_a_failing_publish_in_the_same_read_count(stage, client):
    client.consume("q")
    client.publish("q", b"a", b"b")
    client.received()
    client.feed(wire(commands.Basic.Ack(1)) + message("", b"m", exchange="missing"))
    assert client.methods()[0][:2] == ("Channel.Close", 404)
    assert stage.queue("q").message_count == 1


# -- cancel


@pytest.mark.covers("basic.cancel")
def test_a_cancelled_consumer_keeps_what_it_holds(client):
    client.consume("q")
    client.publish("q", b"a")
    client.received()
    assert client.call(commands.Basic.Cancel("c")).name == "Basic.CancelOk"
    client.publish("q", b"b")
    assert client.received() == []
    client.send(commands.Basic.Ack(1))
    assert client.count("q") == 1


@pytest.mark.covers("basic.cancel")
def test_an_unknown_consumer_can_be_cancelled(client):
    assert client.methods() == []
    client.send(commands.Basic.Cancel("nobody"))
    assert client.methods() == [("Basic.CancelOk", "nobody")]


@pytest.mark.covers("basic.cancel", "nowait")
def test_a_cancel_that_wants_no_answer(client):
    client.consume("q")
    client.send(commands.Basic.Cancel("c", nowait=True))
    assert client.received() == []
    assert client.stage.queue("q").consumer_count == 0


@pytest.mark.covers("B-120")
def test_a_deleted_queue_cancels_its_consumers(stage, client):
    other = Client(stage).open()  # has not said that it understands
    client.consume("q", "mine")
    other.consume("q", "others")
    client.publish("q", b"a", b"b")
    client.received()
    client.send(commands.Queue.Delete(queue="q"))
    assert sorted(client.methods()) == [("Basic.Cancel", "mine"), ("Queue.DeleteOk", 0)]
    other.deliveries()
    assert other.received() == []
    # What follows from it on both sides is no error.
    client.send(commands.Basic.CancelOk("mine"), commands.Basic.Ack(1))
    client.send(commands.Basic.Cancel("mine"))
    other.send(commands.Basic.Ack(1), commands.Basic.Cancel("others"))
    assert client.methods() == [("Basic.CancelOk", "mine")]
    assert other.methods() == [("Basic.CancelOk", "others")]


@pytest.mark.covers("B-120", "queue.delete")
@pytest.mark.parametrize("durable", [False, True])
def test_who_deletes_its_own_consumers_queue_is_answered_first(client, durable):
    client.declare("own", durable=durable)
    client.consume("own")
    client.send(commands.Queue.Delete(queue="own"))
    assert client.names() == ["Queue.DeleteOk", "Basic.Cancel"]


def test_a_tag_is_free_again_after_its_queue_is_gone(client):
    client.consume("q")
    client.send(commands.Queue.Delete(queue="q"))
    client.received()
    client.declare("q")
    client.consume("q")
    client.publish("q", b"m")
    assert bodies(client) == [b"m"]


def test_credit_held_by_a_deleted_queue_comes_back_with_the_ack(client):
    client.declare("r")
    client.prefetch(1, global_=True)
    client.consume("q", "one")
    client.consume("r", "two")
    client.publish("q", b"a")
    client.publish("r", b"b")
    client.send(commands.Queue.Delete(queue="q"))
    client.received()
    client.send(commands.Basic.Ack(1))
    assert bodies(client) == [b"b"]


# -- starting


@pytest.mark.covers("B-120")
def test_tags_are_made_where_none_is_given(client):
    client.send(commands.Basic.Consume(queue="q"), commands.Basic.Consume(queue="q"))
    tags = [answer.consumer_tag for _, answer in client.received()]
    assert all(tag.startswith("amq.ctag-") for tag in tags)
    assert len(set(tags)) == 2


@pytest.mark.covers("B-307")
def test_a_tag_is_one_consumers(client):
    client.consume("q")
    client.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    text = "NOT_ALLOWED - attempt to reuse consumer tag 'c'"
    assert client.methods(0) == [("Connection.Close", 530, text, 60, 20)]


@pytest.mark.covers("B-120", "B-234")
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_an_exclusive_consumer_is_alone(client, first, second):
    client.consume("q", exclusive=first)
    client.send(commands.Basic.Consume(queue="q", consumer_tag="d", exclusive=second))
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    assert client.methods() == [("Channel.Close", 403, text, 60, 20)]


@pytest.mark.covers("B-120")
def test_after_an_exclusive_consumer_others_may_come(client):
    client.consume("q", exclusive=True)
    client.call(commands.Basic.Cancel("c"))
    client.consume("q", "d")
    client.consume("q", "e")
    assert client.connection.channels.by_number[1].consumers.keys() == {"d", "e"}


@pytest.mark.covers("B-120")
def test_higher_priorities_are_served_first(client):
    client.prefetch(2)
    client.consume("q", "low")
    client.consume("q", "high", arguments={"x-priority": 10})
    client.publish("q", *numbered(0, 3))
    tags = [method[1] for method in client.methods() if method[0] == "Basic.Deliver"]
    assert tags == ["high", "high", "low"]


@pytest.mark.covers("B-120")
def test_a_priority_is_an_integer(client):
    arguments = {"x-priority": "high"}
    client.send(commands.Basic.Consume(queue="q", arguments=arguments))
    text = (
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': "
        '"expected integer, got longstr"'
    )
    assert client.methods() == [("Channel.Close", 406, text, 60, 20)]


def test_consume_ok_comes_before_the_first_delivery(client):
    client.publish("q", b"a")
    client.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
    assert [method[0] for method in client.methods()][:2] == ["Basic.ConsumeOk", "Basic.Deliver"]


# -- auto-delete


@pytest.mark.covers("B-125")
def test_an_auto_delete_queue_goes_with_its_last_consumer(stage, client):
    other = Client(stage).open()
    client.declare("temporary", auto_delete=True)
    client.consume("temporary", "mine")
    other.consume("temporary", "others")
    client.call(commands.Basic.Cancel("mine"))
    assert "temporary" in stage.broker.vhosts["/"].queues
    other.transport.lose()
    assert "temporary" not in stage.broker.vhosts["/"].queues
    assert stage.log("temporary").deleted


@pytest.mark.covers("B-125")
def test_an_auto_delete_queue_that_never_had_a_consumer_stays(stage, client):
    client.declare("temporary", auto_delete=True)
    client.transport.lose()
    assert "temporary" in stage.broker.vhosts["/"].queues


# -- counting


def test_consumers_of_one_queue_share_what_counts_for_their_channel(client):
    client.publish("q", *numbered(0, 4))
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    client.send(commands.Basic.Consume(queue="q", consumer_tag="a"))
    client.send(commands.Basic.Cancel(consumer_tag="a"))
    client.publish("q", *numbered(0, 2))
    client.send(commands.Basic.Consume(queue="q", consumer_tag="b"))
    client.send(commands.Basic.Ack(delivery_tag=4, multiple=True))
    (channel,) = client.connection.channels.by_number.values()
    ((queue, ways),) = channel.delivery_statistics_by_queue.items()
    assert queue.name == "q"
    assert ways[GET].counted() == {}
    assert (ways[GET_NO_ACK].value(GET_NO_ACK), ways[GET_NO_ACK].value(ACK)) == (1, 0)
    assert (ways[DELIVER].value(DELIVER), ways[DELIVER].value(ACK)) == (5, 3)


def test_queues_that_come_and_go_do_not_grow_a_channel(client, monkeypatch):
    monkeypatch.setattr(settling, "DELIVERY_STATISTICS_MIN", 3)
    (channel,) = client.connection.channels.by_number.values()
    channel._delivery_statistics_max = 3
    for number in range(10):
        client.declare(f"q{number}")
        client.send(commands.Basic.Get(queue=f"q{number}"))
        client.send(commands.Queue.Delete(queue=f"q{number}"))
        client.received()
        assert len(channel.delivery_statistics_by_queue) <= 3
        assert len(channel._getters) <= 3
