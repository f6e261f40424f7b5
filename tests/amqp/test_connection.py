"""A connection as a client sees it: frames in, frames out, and who is closed for what."""

import struct
import sys

import pytest
from pamqp import commands, frame, header

from leveret.amqp import frames
from leveret.amqp.channel import Channel
from leveret.core.alarms import Resource
from leveret.errors import ConnectionClosingError
from leveret.ports import Durability
from leveret.ports.definitions import UserDefinition
from tests.support.client import Client, message, wire
from tests.support.stage import Gate, Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def closed(code, text, class_id=0, method_id=0):
    return ("Channel.Close", code, text, class_id, method_id)


def shut(code, text, class_id=0, method_id=0):
    return ("Connection.Close", code, text, class_id, method_id)


def conversation():
    """Most of what a client does, in one go."""
    return b"".join(
        [
            wire(commands.Channel.Open(), 2),
            wire(commands.Confirm.Select(), 2),
            wire(commands.Queue.Declare(queue="q")),
            wire(commands.Queue.Bind(queue="q", exchange="amq.headers", arguments={"a": 1})),
            wire(commands.Basic.Qos(prefetch_count=2)),
            wire(commands.Basic.Consume(queue="q", consumer_tag="c")),
            message("q", b"one", 2, delivery_mode=2),
            message("nobody", b"lost", 2),
            message("nobody", b"back", 2, mandatory=True),
            message("", b"two", 2, exchange="amq.headers", headers={"a": 1}),
            message("q", b"x" * 10_000, 2, frame_max=4096),
            wire(commands.Basic.Get(queue="q", no_ack=True)),
            wire(commands.Queue.Declare(queue="missing", passive=True), 2),
            message("q", b"after the error", 2),
            wire(commands.Channel.CloseOk(), 2),
            wire(commands.Channel.Open(), 2),
            wire(commands.Queue.Purge(queue="q"), 2),
            wire(commands.Connection.Close(200, "bye", 0, 0), 0),
        ]
    )


def answers(step):
    """Per channel: a turn carries more where more comes at once, so channels interleave."""
    stage = Stage()
    client = Client(stage).handshake()
    client.open_channel(1)
    client.step = step
    client.feed(conversation())
    assert client.transport.closed
    assert stage.reported == []
    found = client.received()
    return {
        channel: [value for number, value in found if number == channel] for channel in (0, 1, 2)
    }


def methods(values):
    return [value.name for value in values if hasattr(value, "name")]


def test_byte_by_byte_gives_the_same_answers():
    whole, bytewise = answers(step=0), answers(step=1)
    # Confirms may come in fewer frames when more was read at once; everything else must agree.
    for each in (whole, bytewise):
        confirms = [value for value in each[2] if getattr(value, "name", "") == "Basic.Ack"]
        assert confirms[-1].delivery_tag in {4, 5}
        each[2] = [value for value in each[2] if value not in confirms]
    for channel in (0, 2):
        assert methods(whole[channel]) == methods(bytewise[channel])
    assert methods(bytewise[2]) == [
        "Channel.OpenOk",
        "Confirm.SelectOk",
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Channel.Close",
        "Channel.OpenOk",
        "Queue.PurgeOk",
    ]


# -- channels and errors


@pytest.mark.covers("B-015", "B-201")
def test_a_channel_error_leaves_the_other_channels_alone(client):
    client.open_channel(2)
    client.declare("q", channel=2)
    client.send(commands.Queue.Declare(queue="missing", passive=True))
    assert client.methods() == [closed(404, "NOT_FOUND - no queue 'missing' in vhost '/'", 50, 10)]
    client.publish("q", b"m", channel=2)
    assert client.count("q", channel=2) == 1


@pytest.mark.covers("B-015")
def test_everything_on_a_closed_channel_is_ignored_until_close_ok(client):
    client.open_channel(2)
    client.declare("q", channel=2)
    client.send(commands.Queue.Declare(queue="missing", passive=True))
    client.received()
    client.publish("q", b"m")
    client.send(commands.Queue.Declare(queue="other"))
    client.feed(frame.marshal(header.ContentHeader(0, 5), 1))  # content without its method
    client.send(commands.Channel.Open())
    assert client.received() == []
    client.send(commands.Channel.CloseOk())
    client.open_channel(1)
    assert client.count("q") == 0
    assert "other" not in client.stage.broker.vhosts["/"].queues


@pytest.mark.covers("B-015", "channel")
def test_a_client_that_closes_the_channel_at_the_same_time_is_answered(client):
    client.send(commands.Queue.Declare(queue="missing", passive=True))
    client.received()
    assert client.call(commands.Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    client.open_channel(1)


@pytest.mark.covers("B-107", "B-223", "B-405")
def test_only_impersonators_publish_under_other_names(stage):
    stage.add_user("agent")
    stage.access.put_user(UserDefinition("agent", "hash of agent", tags=("impersonator",)))
    agent, guest = Client(stage).open(user="agent"), Client(stage).open()
    agent.publish("q", b"m", user_id="guest")
    guest.publish("q", b"m", user_id="guest")
    assert agent.methods() == guest.methods() == []
    guest.publish("q", b"m", user_id="agent")
    text = "user_id property set to 'agent' but authenticated user was 'guest'"
    assert guest.methods() == [closed(406, f"PRECONDITION_FAILED - {text}", 60, 40)]


@pytest.mark.covers("B-015")
def test_content_cut_by_a_channel_error_is_ignored(client):
    data = message("", b"x" * 5000, exchange="missing", frame_max=4096)
    client.feed(data[:4500])
    client.feed(data[4500:])
    expected = closed(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", 60, 40)
    assert client.methods() == [expected]


@pytest.mark.covers("B-015", "B-211")
def test_frames_that_follow_a_failing_ack_in_the_same_read_are_ignored(client):
    client.send(commands.Basic.Ack(7), commands.Queue.Declare(queue="q"), commands.Tx.Select())
    assert client.methods() == [closed(406, "PRECONDITION_FAILED - unknown delivery tag 7", 60, 80)]
    assert "q" not in client.stage.broker.vhosts["/"].queues


@pytest.mark.covers("B-211")
def settled_twice(client):
    client.publish("q", b"a", b"b")
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Get(queue="q"))
    client.send(commands.Basic.Ack(1))
    return commands.Basic.Ack(1)


def never_delivered(client):
    return commands.Basic.Nack(1, multiple=True)


def needs_no_ack(client):
    client.publish("q", b"a")
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    return commands.Basic.Ack(1)


def recovered(client):
    client.publish("q", b"a")
    client.send(commands.Basic.Get(queue="q"), commands.Basic.Recover(requeue=True))
    return commands.Basic.Ack(1)


@pytest.mark.covers("B-015", "B-211")
@pytest.mark.parametrize("mistake", [settled_twice, never_delivered, needs_no_ack, recovered])
def test_publishes_behind_a_wrong_ack_in_the_same_read_are_ignored(client, mistake):
    client.declare("q")
    client.declare("after")
    wrong = mistake(client)
    client.received()
    client.feed(wire(wrong) + message("after", b"m"))
    ((name, code, *_),) = client.methods()
    assert (name, code) == ("Channel.Close", 406)
    client.open_channel(2)
    assert client.count("after", channel=2) == 0


def test_publishes_between_right_acks_are_taken_and_the_acks_stay_together(client, monkeypatch):
    runs = []
    settle = Channel.settle
    monkeypatch.setattr(
        Channel, "settle", lambda *args, **more: runs.append(args[1:]) or settle(*args, **more)
    )
    client.declare("q")
    client.publish("q", *(b"m" for _ in range(4)))
    for _ in range(4):
        client.send(commands.Basic.Get(queue="q"))
    client.received()
    client.feed(b"".join(wire(commands.Basic.Ack(n)) + message("q", b"n") for n in range(1, 5)))
    assert runs == [(frames.SETTLE, 1, 4, False)]
    assert client.count("q") == 4


@pytest.mark.parametrize(
    ("method", "ids"),
    [
        (commands.Basic.Nack(7), (60, 120)),
        (commands.Basic.Reject(7), (60, 90)),
        (commands.Basic.Reject(7, requeue=False), (60, 90)),
        (commands.Basic.Ack(7, multiple=True), (60, 80)),
    ],
)
def test_an_unknown_tag_closes_the_channel_with_the_methods_ids(client, method, ids):
    client.send(method)
    assert client.methods() == [closed(406, "PRECONDITION_FAILED - unknown delivery tag 7", *ids)]


@pytest.mark.covers("channel")
def test_a_channel_number_is_used_again(client):
    for _ in range(3):
        assert client.call(commands.Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
        client.open_channel(1)
    client.declare("q")


def test_reused_channel_numbers_begin_anew(client):
    client.declare("q")
    client.call(commands.Confirm.Select())
    client.prefetch(1)
    client.call(commands.Channel.Close(200, "", 0, 0))
    client.open_channel(1)
    client.consume("q")
    client.publish("q", b"a", b"b")
    assert [delivery.tag for delivery in client.deliveries()] == [1, 2]
    client.send(commands.Queue.Purge(queue=""))
    text = "NOT_FOUND - no previously declared queue"
    assert client.methods() == [closed(404, text, 50, 30)]


@pytest.mark.covers("B-308", "B-309", "B-314")
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (commands.Channel.Open(), shut(504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)),
        (commands.Basic.Qos(1, 0), shut(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", 60, 10)),
        (commands.Channel.Flow(active=False), shut(540, "NOT_IMPLEMENTED - active=false", 20, 20)),
        (
            commands.Basic.Recover(requeue=False),
            shut(540, "NOT_IMPLEMENTED - requeue=false", 60, 110),
        ),
        (
            commands.Queue.DeclareOk("q", 0, 0),
            shut(503, "COMMAND_INVALID - unimplemented method", 50, 11),
        ),
    ],
)
def test_errors_that_close_the_connection(client, method, expected):
    client.send(method)
    assert client.methods(0) == [expected]
    assert (
        client.transport.close_after_seconds == client.stage.configuration.handshake_timeout_seconds
    )
    client.send(commands.Queue.Declare(queue="q"))
    client.publish("q", b"m")
    assert client.received() == []
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.transport.closed


@pytest.mark.covers("B-308", "B-310")
@pytest.mark.parametrize(
    ("payload", "text", "ids"),
    [
        (b"\0\x32\0\x0a\0\0\x09q", "cannot decode <<0,0,9,113>>", (50, 10)),
        (b"\0\x3c\x03\xe7", "unimplemented method", (60, 999)),
        (b"\0\x32\0\x0a\0\0\x01\xff\0\0\0\0\0", "Malformed UTF-8 in shortstr", (0, 0)),
    ],
)
def test_methods_that_cannot_be_read(client, payload, text, ids):
    client.feed(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
    (close,) = client.methods(0)
    assert close[2].endswith(f" - {text}")
    assert close[3:] == ids


@pytest.mark.covers("B-309")
def test_a_method_on_a_channel_that_is_not_open(client):
    client.send(commands.Queue.Declare(queue="q"), channel=9)
    assert client.methods(0) == [shut(504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10)]


@pytest.mark.covers("B-309")
def test_a_method_of_the_handshake_comes_too_late(client):
    client.send(commands.Connection.Open("/"), channel=0)
    text = "CHANNEL_ERROR - unexpected method in connection state running"
    assert client.methods(0) == [shut(504, text, 10, 40)]


@pytest.mark.covers("B-306")
def test_more_channels_than_negotiated(stage):
    stage = Stage(channel_max=2)
    client = Client(stage).handshake(channel_max=2)
    client.open_channel(1)
    client.open_channel(2)
    client.send(commands.Channel.Open(), channel=3)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert client.methods(0) == [shut(530, text)]


@pytest.mark.covers("B-306")
def test_channels_are_limited_by_how_many_there_are_and_not_by_their_numbers():
    stage = Stage(channel_max=2)
    client = Client(stage).handshake(channel_max=2)
    client.open_channel(65535)
    client.open_channel(300)
    client.declare("q", channel=65535)
    client.publish("q", b"a", b"b", channel=65535)
    client.consume("q", channel=300)
    assert [delivery.body for delivery in client.deliveries(300)] == [b"a", b"b"]
    client.send(commands.Channel.Open(), channel=1)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert client.methods(0) == [shut(530, text)]


def test_a_closed_channels_number_is_free_again(client):
    client.open_channel(40_000)
    assert client.call(commands.Channel.Close(200, "", 0, 0), 40_000).name == "Channel.CloseOk"
    client.open_channel(40_000)
    client.declare("q", channel=40_000)
    client.publish("q", b"a", channel=40_000)
    assert client.count("q") == 1


def test_a_high_channel_number_costs_no_more_than_a_low_one():
    low, high = (Client(Stage()).open(number).connection.reader.slots for number in (1, 65535))
    assert sys.getsizeof(high) == sys.getsizeof(low)


@pytest.mark.covers("B-314")
def test_immediate_publishes_name_their_method(client):
    client.publish("q", b"m", immediate=True)
    assert client.methods(0) == [shut(540, "NOT_IMPLEMENTED - immediate=true", 60, 40)]


@pytest.mark.covers("B-311")
def test_wrong_content_names_the_publish_before_it(client):
    publish = wire(commands.Basic.Publish(routing_key="q"))
    client.feed(publish + wire(commands.Queue.Declare(queue="q")))
    text = (
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame "
        "instead"
    )
    assert client.methods(0) == [shut(505, text, 60, 40)]


def test_a_broken_frame_names_no_method(client):
    client.feed(struct.pack(">BHI", 1, 1, 4) + b"\0\x3c\0\x28" + b"!")
    (method,) = client.methods(0)
    assert method[:2] == ("Connection.Close", 501)
    assert method[3:] == (0, 0)


# -- errors of the broker's own


def test_a_bug_closes_its_connection_only_and_is_reported(stage, client, monkeypatch):
    other = Client(stage).open()

    def broken(_channel, _method):
        raise ZeroDivisionError

    operations = {**client.connection.operations, commands.Basic.Qos: broken}
    monkeypatch.setattr(type(client.connection), "operations", operations)
    client.send(commands.Basic.Qos(0, 1), commands.Queue.Declare(queue="q"))
    text = "INTERNAL_ERROR - an error in the broker; its log has the details"
    assert client.methods(0) == [shut(541, text, 60, 10)]
    ((subject, error),) = stage.reported
    assert subject is client.connection
    assert isinstance(error, ZeroDivisionError)
    stage.reported.clear()
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.transport.closed
    other.declare("q")


def test_a_bug_while_settling_closes_its_connection(stage, client, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    client.declare("q")
    client.consume("q")
    client.publish("q", b"m")
    client.received()
    monkeypatch.setattr(stage.queue("q").state.__class__, "settle", broken)
    client.send(commands.Basic.Ack(1))
    assert [method[:2] for method in client.methods(0)] == [("Connection.Close", 541)]
    assert len(stage.reported) == 1
    stage.reported.clear()


def test_a_bug_in_an_operation_that_waited(stage, client, monkeypatch):
    async def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(stage.metadata, "flush", broken)
    client.send(commands.Queue.Declare(queue="q", durable=True))
    assert [method[:2] for method in client.methods(0)] == [("Connection.Close", 541)]
    assert len(stage.reported) == 1
    stage.reported.clear()


# -- waiting


def test_nothing_is_handled_while_an_operation_waits():
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"m", delivery_mode=2)
    client.send(commands.Basic.Get(queue="q"), commands.Queue.Declare(queue="r"))
    client.send(commands.Queue.Declare(queue="s"))
    assert client.connection.is_waiting
    assert client.received() == []
    stage.log("q").commit()
    stage.run()
    assert not client.connection.is_waiting
    assert client.names() == ["Basic.GetOk", "Queue.DeclareOk", "Queue.DeclareOk"]


def test_a_connection_lost_while_an_operation_waits_holds_nothing():
    stage = Stage(Durability.FSYNC)
    client, other = Client(stage).open(), Client(stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"m", delivery_mode=2)
    client.send(commands.Basic.Get(queue="q"))
    client.transport.lose()
    stage.log("q").commit()
    stage.run()
    assert stage.queue("q").state.leased_count == 0
    assert other.count("q") == 1
    assert stage.reported == []


def test_a_connection_shut_while_the_password_is_checked_stays_shut(stage):
    stage.password_checks = Gate()
    client = Client(stage)
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), channel=0)
    client.connection.shut(ConnectionClosingError(320, "bye"))
    stage.password_checks.open()
    stage.run()
    assert client.names() == ["Connection.Start", "Connection.Close"]
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.transport.closed


# -- the end


@pytest.mark.covers("connection")
def test_a_polite_end(client):
    answer = client.call(commands.Connection.Close(200, "bye", 0, 0), 0)
    assert answer.name == "Connection.CloseOk"
    assert client.transport.closed
    assert client.stage.broker.connections == set()


def test_publishes_before_the_close_are_kept(stage, client):
    client.declare("q")
    client.feed(message("q", b"m") + wire(commands.Connection.Close(200, "", 0, 0), 0))
    assert stage.queue("q").message_count == 1


@pytest.mark.covers("B-124", "B-204")
def test_exclusive_queues_go_with_their_connection(stage, client):
    other = Client(stage).open()
    client.declare("mine", exclusive=True)
    other.send(commands.Queue.Declare(queue="mine", passive=True))
    assert other.methods()[0][:2] == ("Channel.Close", 405)
    client.transport.lose()
    assert "mine" not in stage.broker.vhosts["/"].queues
    assert stage.log("mine").deleted


@pytest.mark.covers("B-235")
def test_a_changed_permission_counts_at_once(stage, client):
    client.declare("q")
    client.publish("q", b"a")
    stage.add_user("guest", write="^$")
    client.publish("q", b"b")
    text = (
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user "
        "'guest'"
    )
    assert client.methods() == [closed(403, text, 60, 40)]


def test_a_deleted_exchange_is_missing_to_what_follows_in_the_same_read(client):
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="fanout"))
    client.publish("", b"m", exchange="x")
    client.feed(wire(commands.Exchange.Delete(exchange="x")) + message("", b"m", exchange="x"))
    text = "NOT_FOUND - no exchange 'x' in vhost '/'"
    assert client.methods() == [("Exchange.DeleteOk",), closed(404, text, 60, 40)]


def close_of(client):
    ((_, close),) = client.received()
    return close.name, close.reply_code, close.reply_text


@pytest.mark.covers("B-316")
def test_a_deleted_vhost_takes_its_connections_along(stage, client):
    other = Client(stage).open()
    stage.broker.remove_vhost("/")
    told = "Connection.Close", 320, "CONNECTION_FORCED - vhost '/' is deleted"
    assert close_of(client) == told
    assert close_of(other) == told


@pytest.mark.covers("B-316")
def test_a_deleted_user_is_disconnected_and_nobody_else(stage, client):
    stage.add_user("other")
    other = Client(stage).open(user="other")
    stage.broker.shut_user("other")
    told = "Connection.Close", 320, "CONNECTION_FORCED - user 'other' is deleted"
    assert close_of(other) == told
    assert client.received() == []


# -- alarms


@pytest.mark.covers("B-010")
def test_a_publisher_is_held_by_an_alarm_and_told_so(stage):
    client = Client(stage).open(capabilities={"connection.blocked": True})
    client.declare("q")
    stage.broker.alarms.set(Resource.DISK, low=True)
    assert client.received() == []
    client.publish("q", b"m")
    assert client.transport.held
    ((_, blocked),) = client.received()
    assert blocked.reason == "low on disk"
    stage.broker.alarms.set(Resource.DISK, low=False)
    assert client.names() == ["Connection.Unblocked"]
    assert not client.transport.held


def test_a_held_connection_can_be_shut(stage, client):
    client.declare("q")
    client.publish("q", b"m")
    stage.broker.alarms.set(Resource.MEMORY, low=True)
    assert client.transport.held
    client.connection.shut(ConnectionClosingError(320, "bye"))
    assert not client.transport.held
    stage.broker.alarms.set(Resource.MEMORY, low=False)
    client.send(commands.Connection.CloseOk(), channel=0)
    assert client.names() == ["Connection.Close"]
    assert client.transport.closed


# -- after the end was said


def test_who_is_shut_while_a_method_waits_is_not_told_that_it_failed():
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("q", durable=True)
    client.publish("q", b"m", delivery_mode=2)
    client.send(commands.Basic.Get(queue="q"))
    client.connection.shut(ConnectionClosingError(320, "bye"))
    assert client.methods(0) == [shut(320, "CONNECTION_FORCED - bye")]


@pytest.mark.parametrize("step", [0, 1, 5])
def test_the_close_ok_is_found_behind_a_frame_that_is_too_large(client, step):
    client.feed(struct.pack(">BHI", 3, 1, 1 << 30))
    assert [method[:2] for method in client.methods(0)] == [("Connection.Close", 501)]
    client.step = step
    client.feed(b"x" * 100 + wire(commands.Connection.CloseOk(), 0))
    assert client.transport.closed
