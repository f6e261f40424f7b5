"""basic.get that a client repeats: what was looked up for the first one is checked with each."""

import pytest
from pamqp import commands

from leveret.amqp.channel import GETTINGS_MAX
from leveret.amqp.client_input import GETS_TOGETHER
from leveret.broker import alter_queue
from leveret.ports import Durability
from tests.amqp.test_rights import closed, connected, refusal
from tests.support.client import Client, Delivery, message, wire
from tests.support.stage import Stage

GET = commands.Basic.Get(queue="q")
GET_UNACKED = commands.Basic.Get(queue="q", no_ack=True)


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def repeating(client, get=GET, **options):
    """A client that has got from an empty queue, twice."""
    client.declare("q", **options)
    client.send(get, get)
    assert client.names() == ["Basic.GetEmpty", "Basic.GetEmpty"]
    return client


@pytest.mark.parametrize(
    "options", [{}, {"arguments": {"x-partitions": 3}}, {"arguments": {"x-queue-type": "quorum"}}]
)
@pytest.mark.parametrize("get", [GET, GET_UNACKED])
def test_messages_come_one_by_one_and_are_settled(stage, client, get, options):
    repeating(client, get, durable=True, **options)
    client.publish("q", b"a", b"b", b"c")
    client.send(get)
    client.send(get)
    first = client.deliveries()
    assert [delivery.tag for delivery in first] == [1, 2]
    if get is GET:
        client.feed(wire(commands.Basic.Ack(1)) + wire(commands.Basic.Reject(2)) + wire(get) * 3)
    else:
        client.send(get, get)
    more = client.received()
    assert more[-1][1].name == "Basic.GetEmpty"
    bodies = [value.value for _, value in more if type(value).__name__ == "ContentBody"]
    assert sorted([*bodies, *(delivery.body for delivery in first)]) == (
        [b"a", b"b", b"b", b"c"] if get is GET else [b"a", b"b", b"c"]
    )
    queue = stage.broker.vhosts["/"].queues["q"]
    assert queue.message_count == 0
    assert queue.leased_count == (2 if get is GET else 0)


def test_a_get_sees_what_the_same_read_has_published_and_acknowledged(client):
    repeating(client, arguments={"x-single-active-consumer": True, "x-max-length": 1})
    client.feed(message("q", b"a") + message("q", b"b") + wire(GET))
    assert client.deliveries() == [Delivery(1, b"b")]
    client.feed(wire(commands.Basic.Nack(1)) + wire(GET) + message("q", b"c") + wire(GET))
    assert client.deliveries() == [Delivery(2, b"b", redelivered=True), Delivery(3, b"c")]


def test_many_gets_of_one_read_are_answered_in_order(client):
    repeating(client)
    count = 3 * GETS_TOGETHER + 1
    client.publish("q", *(b"%d" % number for number in range(count)))
    client.feed(wire(GET) * (count + 2))
    answers = client.received()
    bodies = [value.value for _, value in answers if type(value).__name__ == "ContentBody"]
    assert bodies == [b"%d" % number for number in range(count)]
    assert [value.name for _, value in answers[-2:]] == ["Basic.GetEmpty", "Basic.GetEmpty"]


def test_gets_wait_for_room_in_the_outbox(client):
    repeating(client)
    client.publish("q", *(bytes(100_000) for _ in range(20)))
    client.connection.outbox.size_max = 150_000
    client.feed(wire(GET) * 20)
    assert [delivery.tag for delivery in client.deliveries()] == list(range(1, 21))


def test_a_get_waits_for_the_commit_of_what_was_published_before():
    stage = Stage(Durability.FSYNC)
    client = repeating(Client(stage).open(), durable=True)
    client.feed(message("q", b"m", delivery_mode=2) + wire(GET) + wire(GET))
    stage.log("q").commit()
    answers = [value for _, value in client.received()]
    assert [type(value).__name__ for value in answers] == [
        "GetOk",
        "ContentHeader",
        "ContentBody",
        "GetEmpty",
    ]


def test_a_wrong_ack_before_it_closes_the_channel(client):
    repeating(client)
    client.publish("q", b"m")
    client.feed(wire(commands.Basic.Ack(7)) + wire(GET))
    ((name, code, *_, class_id, method_id),) = client.methods()
    assert (name, code, class_id, method_id) == ("Channel.Close", 406, 60, 80)
    client.open_channel(2)
    assert client.count("q", channel=2) == 1


def test_another_queue_of_the_name_is_looked_up_anew(client):
    repeating(client)
    client.call(commands.Queue.Delete(queue="q"))
    client.send(GET)
    ((name, code, text, class_id, method_id),) = client.methods()
    assert (name, code, class_id, method_id) == ("Channel.Close", 404, 60, 70)
    assert text == "NOT_FOUND - no queue 'q' in vhost '/'"
    client.send(commands.Channel.CloseOk())
    client.open_channel(1)
    client.declare("q")
    client.publish("q", b"new")
    client.send(GET)
    assert client.deliveries() == [Delivery(1, b"new")]


def test_a_queue_that_became_another_kind_in_between_is_not_got_from(client):
    repeating(client)
    client.call(commands.Queue.Delete(queue="q"))
    client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    client.send(GET)
    ((name, code, *_),) = client.methods(0)
    assert (name, code) == ("Connection.Close", 540)


def test_a_name_that_went_to_another_queue_leads_to_that(stage, client):
    repeating(client)
    vhost = stage.broker.vhosts["/"]
    alter_queue.rename(stage.broker, stage.queue("q"), "renamed")
    client.publish("renamed", b"renamed")
    client.send(GET)
    assert client.deliveries() == [Delivery(1, b"renamed")]
    vhost.remove_alias("q")
    client.declare("q")
    client.publish("renamed", b"renamed")
    client.publish("q", b"new")
    client.send(GET)
    assert client.deliveries() == [Delivery(2, b"new")]


def test_a_permission_that_was_withdrawn_holds_for_the_next_get():
    client, rights = connected()
    client.declare("q")
    client.send(GET, GET)
    assert client.names() == ["Basic.GetEmpty", "Basic.GetEmpty"]
    rights.refused.add(("read", "q"))
    rights.forget()
    client.send(GET)
    assert client.methods() == [closed(403, refusal("read", "queue", "q"), 60, 70)]


def test_other_rights_hold_for_the_next_get():
    client, _ = connected()
    client.declare("q")
    client.send(GET, GET)
    client.received()
    client.call(commands.Connection.UpdateSecret("good", "renewed"), channel=0)
    client.connection.rights.refused.add(("read", "q"))
    client.send(GET)
    assert client.methods() == [closed(403, refusal("read", "queue", "q"), 60, 70)]


def test_a_channel_remembers_a_few_requests(client):
    for number in range(GETTINGS_MAX + 1):
        client.declare(f"q{number}")
        assert client.call(commands.Basic.Get(queue=f"q{number}")).name == "Basic.GetEmpty"
    slot = client.connection.channels.by_number[1].slot
    assert len(slot.gettings) == 1
    client.call(commands.Channel.Close(200, "", 0, 0))
    assert slot.gettings is None


def test_an_error_after_a_get_names_no_method(client):
    repeating(client)
    broken = b"\x01\x00\x01\x00\x00\x00\x04\x00\x0a\x00\x0a\x00"
    client.feed(wire(GET) + broken)
    ((name, code, *_, class_id, method_id),) = client.methods(0)
    assert (name, code, class_id, method_id) == ("Connection.Close", 501, 0, 0)
