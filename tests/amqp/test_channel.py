"""Promises of a channel to publishers and readers: confirms, returns, reading one's writes."""

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.ports import Durability
from leveret.ports.definitions import PermissionDefinition
from tests.support.client import Client, Delivery, message, wire
from tests.support.stage import Stage


@pytest.fixture
def stage():
    """Commits happen when a test says so."""
    stage = Stage(Durability.FSYNC)
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open()
    for name in ("a", "b"):
        client.declare(name, durable=True)
        bind = commands.Queue.Bind(queue=name, exchange="amq.fanout")
        assert client.call(bind).name == "Queue.BindOk"
    return client


def confirming(client):
    assert client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"


def commit(stage, *names):
    for name in names:
        stage.log(name).commit()
    stage.run()


# -- confirms


@pytest.mark.covers("B-101")
def test_a_confirm_waits_for_the_commit(stage, client):
    confirming(client)
    client.publish("a", b"m")
    assert client.received() == []
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 1, False)]


def test_one_confirm_covers_a_batch(stage, client):
    confirming(client)
    client.publish("a", *[b"m"] * 100)
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 100, True)]


@pytest.mark.covers("B-101")
def test_a_confirm_waits_for_every_queue(stage, client):
    confirming(client)
    client.publish("", b"m", exchange="amq.fanout")
    commit(stage, "a")
    assert client.received() == []
    commit(stage, "b")
    assert client.methods() == [("Basic.Ack", 1, False)]


def test_a_slow_queue_holds_up_later_confirms(stage, client):
    confirming(client)
    client.publish("a", b"slow")
    client.publish("b", b"fast")
    commit(stage, "b")
    assert client.received() == []
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 2, True)]


@pytest.mark.covers("B-101")
def test_unroutable_messages_are_confirmed_at_once(client):
    confirming(client)
    client.publish("nobody", b"m")
    assert client.methods() == [("Basic.Ack", 1, False)]


@pytest.mark.covers("B-101", "B-102")
def test_a_return_comes_before_its_confirm(client):
    confirming(client)
    client.publish("nobody", b"m", mandatory=True)
    assert client.methods() == [
        ("Basic.Return", 312, "NO_ROUTE"),
        ("header", 1),
        ("body", b"m"),
        ("Basic.Ack", 1, False),
    ]


def test_what_goes_through_a_headers_exchange_is_confirmed_when_it_is_safe(stage, client):
    client.call(commands.Queue.Bind(queue="a", exchange="amq.headers", arguments={"kind": "x"}))
    confirming(client)
    client.publish("", b"m", exchange="amq.headers", headers={"kind": "x"})
    assert client.received() == []
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 1, False)]


@pytest.mark.covers("B-101")
def test_a_failed_append_is_a_nack(stage, client):
    confirming(client)
    stage.log("a").append_error = StorageError("full")
    client.publish("", b"m", exchange="amq.fanout")
    client.publish("b", b"m")
    commit(stage, "b")
    assert client.methods() == [("Basic.Nack", 1, True), ("Basic.Ack", 2, False)]
    assert [str(error) for _, error in stage.reported] == ["full"]
    stage.reported.clear()


@pytest.mark.covers("B-101")
def test_a_failed_flush_is_a_nack(stage, client):
    confirming(client)
    client.publish("a", b"m", b"m")
    stage.log("a").fail(StorageError("gone"))
    assert client.methods() == [("Basic.Nack", 2, True)]
    stage.reported.clear()
    client.publish("a", b"m")
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 3, False)]


def test_a_bug_in_the_log_is_a_nack(stage, client):
    confirming(client)
    stage.log("a").append_error = ZeroDivisionError()
    client.publish("a", b"m")
    assert client.methods() == [("Basic.Nack", 1, True)]
    assert len(stage.reported) == 1
    stage.reported.clear()


@pytest.mark.covers("B-101")
def test_a_deleted_queue_counts_as_confirmed(stage, client):
    other = Client(stage).open()
    confirming(client)
    client.publish("", b"m", exchange="amq.fanout")
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("a"))
    assert client.received() == []
    commit(stage, "b")
    assert client.methods() == [("Basic.Ack", 1, False)]
    other.declare("a", durable=True)


@pytest.mark.covers("B-101")
def test_confirms_begin_with_one_when_asked_for(stage, client):
    client.publish("a", b"before", b"before")
    confirming(client)
    confirming(client)
    client.publish("a", b"m")
    commit(stage, "a")
    assert client.methods() == [("Basic.Ack", 1, False)]


def test_channels_count_apart(stage, client):
    client.open_channel(2)
    confirming(client)
    client.call(commands.Confirm.Select(), 2)
    client.feed(message("a", b"m", 1) + message("a", b"m", 2) + message("a", b"m", 2))
    commit(stage, "a")
    answers = client.received()
    assert [(number, ack.delivery_tag) for number, ack in answers] == [(1, 1), (2, 2)]


def test_a_publish_that_fails_is_not_confirmed(client):
    confirming(client)
    client.feed(message("nobody", b"m") + message("", b"m", exchange="missing"))
    assert [method[:2] for method in client.methods()] == [
        ("Basic.Ack", 1),
        ("Channel.Close", 404),
    ]


def test_nobody_hears_of_commits_after_the_channel_closed(stage, client):
    confirming(client)
    client.publish("a", b"m")
    client.call(commands.Channel.Close(200, "", 0, 0))
    client.open_channel(1)
    commit(stage, "a")
    assert client.received() == []


@pytest.mark.covers("confirm.select", "nowait")
def test_select_without_an_answer(client):
    client.send(commands.Confirm.Select(nowait=True))
    client.publish("nobody", b"m")
    assert client.methods() == [("Basic.Ack", 1, False)]


# -- what comes back


@pytest.mark.covers("B-102")
def test_a_returned_message_is_whole(client):
    client.publish("k", b"x" * 9000, mandatory=True, message_id="id", frame_max=4096)
    (_, method), (_, head), (_, content) = client.received()
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("", "k")
    assert head.properties.message_id == "id"
    assert content.value == b"x" * 9000


@pytest.mark.covers("B-102")
def test_without_mandatory_nothing_comes_back(client):
    client.publish("nobody", b"m")
    assert client.received() == []


def test_an_exchange_that_vanished_closes_only_the_channel(stage, client, monkeypatch):
    """Its route was looked up; it is gone when a message that left the fast path is routed."""
    client.open_channel(2)
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="headers"))
    client.publish("", b"m", exchange="x")
    monkeypatch.delitem(stage.broker.vhosts["/"].exchanges, "x")
    client.feed(message("", b"m", exchange="x") + wire(commands.Queue.Purge(queue="a"), 2))
    answers = client.received()
    (close,) = [value for number, value in answers if number == 1]
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
    assert close.reply_text == "NOT_FOUND - no exchange 'x' in vhost '/'"
    assert [value.name for number, value in answers if number == 2] == ["Queue.PurgeOk"]


# -- reading one's own writes


def test_a_get_sees_what_was_published_before_it(stage, client):
    client.feed(message("a", b"m") + wire(commands.Basic.Get(queue="a")))
    assert client.received() == []
    commit(stage, "a")
    assert client.deliveries() == [Delivery(1, b"m")]


def test_a_declare_counts_what_was_published_before_it(stage, client):
    client.feed(message("a", b"m") * 3 + wire(commands.Queue.Declare(queue="a", passive=True)))
    commit(stage, "a")
    assert client.methods() == [("Queue.DeclareOk", 3)]


def test_a_purge_takes_what_was_published_before_it(stage, client):
    client.feed(message("a", b"m") * 3 + wire(commands.Queue.Purge(queue="a")))
    commit(stage, "a")
    assert client.methods() == [("Queue.PurgeOk", 3)]
    assert client.count("a") == 0


def test_a_delete_counts_what_was_published_before_it(stage, client):
    client.feed(message("a", b"m") * 3 + wire(commands.Queue.Delete(queue="a", if_empty=True)))
    commit(stage, "a")
    text = "PRECONDITION_FAILED - queue 'a' in vhost '/' not empty"
    assert client.methods() == [("Channel.Close", 406, text, 50, 40)]


def test_a_transient_message_is_not_waited_for():
    stage = Stage()
    client = Client(stage).open()
    client.declare("q")
    client.feed(message("q", b"m") + wire(commands.Basic.Get(queue="q")))
    assert client.deliveries() == [Delivery(1, b"m")]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (commands.Basic.Get(queue="a"), "Basic.GetEmpty"),
        (commands.Queue.Purge(queue="a"), "Queue.PurgeOk"),
        (commands.Queue.Delete(queue="a"), "Queue.DeleteOk"),
        (commands.Queue.Declare(queue="a", passive=True), "Queue.DeclareOk"),
    ],
)
def test_a_queue_deleted_while_its_commit_is_awaited(stage, client, method, answer):
    client.publish("a", b"m")
    client.send(method)
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("a"))
    assert client.names() == [answer]
    client.call(commands.Basic.Get(queue="b"))


# -- methods see the effects of what came before


def wires(*methods):
    return b"".join(map(wire, methods))


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (commands.Basic.Get(queue="a"), ("Basic.GetEmpty",)),
        (commands.Queue.Declare(queue="a", passive=True), ("Queue.DeclareOk", 0)),
        (commands.Queue.Purge(queue="a"), ("Queue.PurgeOk", 0)),
        (commands.Basic.Cancel("waiting"), ("Basic.CancelOk", "waiting")),
        (commands.Basic.Consume(queue="a", consumer_tag="new"), ("Basic.ConsumeOk",)),
        (commands.Basic.Qos(0, 1, True), ("Basic.QosOk",)),
        (commands.Queue.Delete(queue="a"), ("Queue.DeleteOk", 0)),
    ],
)
@pytest.mark.parametrize("commits_at_once", [True, False])
def test_what_was_published_goes_first_to_who_waits(stage, client, method, answer, commits_at_once):
    client.consume("a", "waiting")
    if commits_at_once:
        stage.log("a").durability = Durability.OS
    client.feed(message("a", b"1") + message("a", b"2") + wires(method))
    if not commits_at_once:
        assert client.received() == []
        commit(stage, "a")
    delivered = [("Basic.Deliver", "waiting", tag) for tag in (1, 2)]
    found = [told for told in client.methods() if told[0] not in ("header", "body")]
    assert found == [*delivered, answer]


def test_messages_go_to_who_was_preferred_when_they_came(client, stage):
    client.consume("a", "low")
    client.consume("a", "high", arguments={"x-priority": 1})
    client.feed(message("a", b"m") * 10 + wires(commands.Basic.Cancel("high")))
    commit(stage, "a")
    tags = [told[1] for told in client.methods() if told[0] == "Basic.Deliver"]
    assert tags == ["high"] * 10


@pytest.mark.covers("B-143")
def test_a_get_behind_a_requeue_sees_a_queue_within_its_limit():
    client = Client(Stage()).open()
    client.declare("q", arguments={"x-max-length": 1})
    client.publish("q", b"old")
    client.send(commands.Basic.Get(queue="q"))
    client.publish("q", b"new")
    client.received()
    client.send(commands.Basic.Nack(1), commands.Basic.Get(queue="q"))
    assert client.deliveries() == [Delivery(2, b"new")]


def test_an_ack_brings_the_next_delivery_before_a_cancel():
    client = Client(Stage()).open()
    client.declare("q")
    client.prefetch(1)
    client.consume("q")
    client.publish("q", b"1", b"2")
    client.received()
    client.send(commands.Basic.Ack(1), commands.Basic.Cancel("c"))
    assert [told[0] for told in client.methods()] == [
        "Basic.Deliver",
        "header",
        "body",
        "Basic.CancelOk",
    ]


def test_who_only_consumes_does_not_wait_for_what_others_published(stage, client):
    other = Client(stage).open()
    other.consume("a", "first")
    client.publish("a", b"m")
    other.consume("a", "second")
    other.prefetch(1, global_=True)
    other.send(commands.Basic.Cancel("first"))
    assert other.names() == ["Basic.CancelOk"]


def test_a_consumer_of_a_queue_that_went_meanwhile_finds_none(stage, client):
    client.publish("a", b"m")
    client.send(commands.Basic.Consume(queue="a"))
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("a"))
    text = "NOT_FOUND - no queue 'a' in vhost '/'"
    assert client.methods() == [("Channel.Close", 404, text, 60, 20)]


def test_a_cancel_of_a_consumer_whose_queue_went_meanwhile_is_answered(stage, client):
    client.consume("a")
    client.publish("a", b"m")
    client.send(commands.Basic.Cancel("c"))
    stage.broker.delete_queue(stage.broker.vhosts["/"], stage.queue("a"))
    assert client.names() == ["Basic.CancelOk"]


# -- basic.get


@pytest.mark.covers("B-128")
def test_get_tells_how_many_are_left():
    stage = Stage()
    client = Client(stage).open()
    client.declare("q")
    client.publish("q", b"a", b"b")
    client.send(commands.Basic.Get(queue="q"))
    assert client.received()[0][1].message_count == 1
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert client.received()[0][1].message_count == 0
    assert client.call(commands.Basic.Get(queue="q")).name == "Basic.GetEmpty"
    assert stage.queue("q").state.leased_count == 1
    client.send(commands.Basic.Reject(1, requeue=True), commands.Basic.Get(queue="q"))
    assert client.deliveries() == [Delivery(3, b"a", redelivered=True)]


@pytest.fixture
def cold():
    """A queue whose messages must be fetched from the device."""
    stage = Stage()
    client = Client(stage).open()
    client.declare("q")
    stage.log("q").at_hand = False
    client.publish("q", b"a", b"b")
    return stage, client


def test_get_fetches_what_is_not_at_hand(cold):
    _, client = cold
    client.send(commands.Basic.Get(queue="q"))
    assert client.deliveries() == [Delivery(1, b"a")]


def test_consumers_are_fed_from_the_device(cold):
    _, client = cold
    client.consume("q")
    assert [delivery.body for delivery in client.deliveries()] == [b"a", b"b"]


@pytest.mark.covers("B-315")
def test_a_get_that_cannot_be_read_gives_its_message_back(cold):
    stage, client = cold
    stage.log("q").fetch_error = StorageError("bad sector")
    client.send(commands.Basic.Get(queue="q"))
    text = "INTERNAL_ERROR - Cannot get a message from queue 'q': bad sector"
    assert client.methods(0) == [("Connection.Close", 541, text, 60, 70)]
    assert stage.queue("q").state.leased_count == 0


# -- names


@pytest.mark.covers("B-202")
def test_the_empty_name_means_the_queue_declared_last(client):
    client.send(commands.Queue.Declare(queue=""))
    ((_, declared),) = client.received()
    assert declared.queue.startswith("amq.gen-")
    assert client.call(commands.Queue.Bind(queue="", exchange="amq.topic")).name == "Queue.BindOk"
    client.publish(declared.queue, b"m", exchange="amq.topic")
    client.send(commands.Basic.Get(queue="", no_ack=True))
    assert [delivery.body for delivery in client.deliveries()] == [b"m"]
    assert client.call(commands.Queue.Delete(queue="")).name == "Queue.DeleteOk"


@pytest.mark.covers("B-201")
def test_a_passive_declare_of_the_empty_name_finds_nothing(client):
    client.send(commands.Queue.Declare(queue="", passive=True))
    text = "NOT_FOUND - no queue '' in vhost '/'"
    assert client.methods() == [("Channel.Close", 404, text, 50, 10)]


@pytest.mark.covers("queue.delete")
def test_a_missing_queue_counts_as_deleted(client):
    assert client.call(commands.Queue.Delete(queue="missing")).message_count == 0


def test_a_remembered_queue_does_not_outlive_itself_or_its_permission():
    stage = Stage()
    client = Client(stage).open()
    client.call(commands.Queue.Declare(queue="q"))
    client.publish("q", b"one")
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert [each.body for each in client.deliveries()] == [b"one"]
    client.call(commands.Queue.Delete(queue="q"))
    client.call(commands.Queue.Declare(queue="q"))
    client.publish("q", b"two")
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert [each.body for each in client.deliveries()] == [b"two"]
    stage.access.put_permission(PermissionDefinition("/", "guest", ".*", ".*", "^$"))
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    ((_, close),) = client.received()
    assert close.reply_code == 403


# -- permissions


def refused(client, method):
    client.send(method)
    ((name, code, text, *_),) = client.methods()
    assert (name, code) == ("Channel.Close", 403)
    client.send(commands.Channel.CloseOk())
    client.open_channel(1)
    return text.removeprefix("ACCESS_REFUSED - ").removesuffix(" refused for user 'guest'")


@pytest.mark.covers("B-235", "B-406")
def test_a_name_of_the_brokers_making_must_be_permitted(stage, client):
    stage.add_user("guest", configure="^mine$")
    text = refused(client, commands.Queue.Declare(exclusive=True))
    assert text.startswith("configure access to queue 'amq.gen-")
    stage.add_user("guest", configure=r"^amq\.gen-")
    assert client.call(commands.Queue.Declare(exclusive=True)).name == "Queue.DeclareOk"


@pytest.mark.covers("B-235", "B-406")
def test_a_passive_declare_needs_some_permission(stage, client):
    client.declare("q")
    methods = [
        (commands.Queue.Declare(queue="q", passive=True), "queue 'q'"),
        (commands.Exchange.Declare(exchange="amq.direct", passive=True), "exchange 'amq.direct'"),
    ]
    for method, name in methods:
        for permission in ("configure", "write", "read"):
            nothing = dict.fromkeys(("configure", "write", "read"), "^$")
            stage.add_user("guest", **nothing)
            assert refused(client, method) == f"configure access to {name} in vhost '/'"
            stage.add_user("guest", **{**nothing, permission: ".*"})
            assert client.call(method).name.endswith("DeclareOk")


@pytest.mark.covers("B-105", "B-235", "B-406")
def test_a_new_exchange_with_an_alternate_needs_permission_on_both(stage, client):
    declare = commands.Exchange.Declare(exchange="x", arguments={"alternate-exchange": "y"})
    stage.add_user("guest", read="^$")
    assert refused(client, declare) == "read access to exchange 'x' in vhost '/'"
    stage.add_user("guest", write="^x$")
    assert refused(client, declare) == "write access to exchange 'y' in vhost '/'"
    stage.add_user("guest")
    assert client.call(declare).name == "Exchange.DeclareOk"
    stage.add_user("guest", write="^$", read="^$")
    assert client.call(declare).name == "Exchange.DeclareOk"


@pytest.mark.covers("B-160", "B-235", "B-406")
def test_a_new_queue_with_a_dead_letter_exchange_needs_permission_on_both(stage, client):
    declare = commands.Queue.Declare(queue="q", arguments={"x-dead-letter-exchange": "dlx"})
    stage.add_user("guest", read="^$")
    assert refused(client, declare) == "read access to queue 'q' in vhost '/'"
    stage.add_user("guest", write="^q$")
    assert refused(client, declare) == "write access to exchange 'dlx' in vhost '/'"
    stage.add_user("guest")
    assert client.call(declare).name == "Queue.DeclareOk"
    stage.add_user("guest", write="^$", read="^$")
    assert client.call(declare).name == "Queue.DeclareOk"


# -- what quorum queues cannot do

CANNOT_DELETE = (
    "cannot delete queue 'q' in vhost '/'. queue.delete operations with {} flag set are not "
    "supported by quorum queues"
)


@pytest.mark.covers("B-314")
@pytest.mark.parametrize(
    ("methods", "text", "ids"),
    [
        (
            [commands.Basic.Qos(0, 1, True), commands.Basic.Consume(queue="q")],
            "queue 'q' in vhost '/' does not support global qos",
            (60, 20),
        ),
        (
            [commands.Queue.Delete(queue="q", if_unused=True)],
            CANNOT_DELETE.format("if-unused"),
            (50, 40),
        ),
        (
            [commands.Queue.Delete(queue="q", if_empty=True)],
            CANNOT_DELETE.format("if-empty"),
            (50, 40),
        ),
    ],
)
def test_what_quorum_queues_cannot_do(client, methods, text, ids):
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.send(*methods)
    assert client.methods(0)[-1] == ("Connection.Close", 540, f"NOT_IMPLEMENTED - {text}", *ids)
