"""Deliveries whose time runs out: they come back, and the channel lives on."""

import pytest
from pamqp import commands

from leveret.amqp import lease_commands
from leveret.ports.definitions import PolicyDefinition
from tests.support.client import Client
from tests.support.stage import Stage

SECOND = {"x-visibility-timeout": 1000}
EXCHANGE = "leveret.lease"


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open(1, 2)


def bodies(client, channel=1):
    return [(delivery.body, delivery.redelivered) for delivery in client.deliveries(channel)]


def command(client, key, channel=1, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    client.publish(key, b"", exchange=EXCHANGE, channel=channel, headers=headers)


def ready(client, queue):
    return client.stage.queue(queue).message_count


def cancel(client):
    client.send(commands.Basic.Cancel("c"))
    return client.received()


def closing_text(client):
    (close,) = [v for _, v in client.received() if isinstance(v, commands.Channel.Close)]
    assert close.reply_code == 406
    return close.reply_text


# -- visibility timeouts


@pytest.mark.covers("C-210")
def test_what_is_not_settled_in_time_goes_to_somebody_else(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1", b"2")
    client.prefetch(1)
    client.consume("q")
    assert bodies(client) == [(b"1", False)]
    stage.advance(0.5)
    other = Client(stage).open()
    other.consume("q")
    assert bodies(other) == [(b"2", False)]
    other.send(commands.Basic.Ack(1))
    stage.advance(0.6)
    assert bodies(other) + bodies(client) == [(b"1", True)]
    assert client.connection.channels.by_number[1].alive


@pytest.mark.parametrize(
    "late",
    [
        commands.Basic.Ack(1),
        commands.Basic.Nack(1),
        commands.Basic.Nack(1, requeue=False),
        commands.Basic.Reject(1, requeue=False),
        commands.Basic.Ack(1, multiple=True),
    ],
)
def test_a_late_settlement_changes_nothing(stage, client, late):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.consume("q")
    cancel(client)
    stage.advance(2)
    assert ready(client, "q") == 1
    client.send(late, late)
    assert ready(client, "q") == 1
    client.send(commands.Basic.Ack(2))
    assert closing_text(client) == "PRECONDITION_FAILED - unknown delivery tag 2"


def test_a_run_of_acks_settles_what_is_not_late(stage, client):
    client.declare("q", arguments=SECOND)
    client.declare("patient")
    client.publish("q", b"1", b"2")
    client.publish("patient", b"3")
    client.prefetch(2)
    client.consume("q")
    client.deliveries()
    client.consume("patient", "p")
    cancel(client)
    client.deliveries()
    stage.advance(2)
    client.send(*(commands.Basic.Ack(tag) for tag in (1, 2, 3)))
    assert (ready(client, "q"), stage.queue("patient").leased_count) == (2, 0)


def test_a_transaction_may_hold_late_settlements(stage, client):
    client.declare("q", arguments=SECOND)
    client.call(commands.Tx.Select())
    client.publish("q", b"1")
    client.call(commands.Tx.Commit())
    client.send(commands.Basic.Get(queue="q"))
    client.received()
    stage.advance(2)
    client.send(commands.Basic.Ack(1), commands.Basic.Ack(1, multiple=True))
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"
    assert ready(client, "q") == 1


def test_a_rolled_back_settlement_finds_its_tags_around_a_late_one(stage, client):
    client.declare("q", arguments=SECOND)
    client.declare("patient")
    client.publish("q", b"2")
    client.publish("patient", b"1", b"3")
    client.call(commands.Tx.Select())
    for queue in ("patient", "q", "patient"):
        client.send(commands.Basic.Get(queue=queue))
    client.received()
    stage.advance(2)
    client.send(*(commands.Basic.Ack(tag) for tag in (1, 2, 3)))
    client.call(commands.Tx.Rollback())
    client.send(commands.Basic.Nack(3, requeue=True))
    client.call(commands.Tx.Commit())
    client.send(commands.Basic.Get(queue="patient"))
    assert [held.body for held in client.deliveries()] == [b"3"]


def test_what_was_rolled_back_has_its_time_again(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.call(commands.Tx.Select())
    client.send(commands.Basic.Get(queue="q"))
    client.received()
    client.send(commands.Basic.Ack(1))
    stage.advance(2)
    client.call(commands.Tx.Rollback())
    assert ready(client, "q") == 0
    stage.advance(1.1)
    assert ready(client, "q") == 1


def test_the_consumer_itself_may_say_how_long(stage, client):
    client.declare("q", arguments={"x-visibility-timeout": 60_000})
    client.publish("q", b"1")
    client.consume("q", arguments={"x-visibility-timeout": 1000})
    cancel(client)
    stage.advance(1.1)
    assert ready(client, "q") == 1


def test_a_get_has_its_time_as_well(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.send(commands.Basic.Get(queue="q"))
    assert ready(client, "q") == 0
    stage.advance(1.1)
    assert ready(client, "q") == 1


@pytest.mark.covers("C-215")
def test_a_timeout_counts_against_the_delivery_limit(stage, client):
    client.declare("dead")
    limited = {
        **SECOND,
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    client.declare("q", durable=True, arguments=limited)
    client.publish("q", b"1")
    client.consume("q")
    stage.advance(1.1)
    stage.advance(1.1)
    assert (ready(client, "dead"), ready(client, "q")) == (1, 0)


@pytest.mark.covers("C-210")
def test_a_policy_sets_it(stage, client):
    client.declare("q")
    policies = stage.broker.policies
    definition = {"visibility-timeout": 1000}
    policies.put(PolicyDefinition("/", "p", "^q$", definition, 0, "queues"))
    stage.broker.apply_policies("/")
    client.publish("q", b"1")
    client.consume("q")
    cancel(client)
    stage.advance(1.1)
    assert ready(client, "q") == 1


@pytest.mark.parametrize("value", [0, -1, "soon", True, 43_200_001])
def test_wrong_timeouts_are_refused(client, value):
    declare = commands.Queue.Declare(queue="q", arguments={"x-visibility-timeout": value})
    answer = client.call(declare)
    assert answer.reply_code == 406
    assert answer.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-visibility-timeout' for queue 'q' in vhost '/': "
        '"expected milliseconds from 1 to 43200000"'
    )


def test_a_stream_hides_nothing(client):
    arguments = {"x-queue-type": "stream", **SECOND}
    answer = client.call(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert answer.reply_code == 406


def test_the_prefetch_is_free_again(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.prefetch(1)
    client.consume("q")
    for _ in range(3):
        assert len(client.deliveries()) == 1
        stage.advance(1.1)
    assert stage.queue("q").leased_count == 1


# -- extending a lease, and giving it back


@pytest.mark.covers("C-210")
def test_an_extended_delivery_stays(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1", b"2")
    client.consume("q")
    cancel(client)
    for _ in range(5):
        stage.advance(0.6)
        command(client, "extend", x_delivery_tag=1, x_extend=1000)
    assert ready(client, "q") == 1  # the other one
    client.send(commands.Basic.Ack(1))
    stage.advance(5)
    assert ready(client, "q") == 1


def test_a_consumer_extends_all_it_holds(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1", b"2", b"3")
    client.consume("q")
    client.send(commands.Basic.Ack(2))
    command(client, "extend", x_consumer_tag="c", x_extend=5000)
    stage.advance(4.9)
    assert (ready(client, "q"), stage.queue("q").leased_count) == (0, 2)
    client.deliveries()
    stage.advance(0.2)
    assert bodies(client) == [(b"1", True), (b"3", True)]


def test_no_more_time_gives_it_back_at_once(client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.consume("q")
    cancel(client)
    command(client, "extend", x_delivery_tag=1, x_extend=0)
    assert ready(client, "q") == 1
    client.send(commands.Basic.Ack(1))
    assert ready(client, "q") == 1


@pytest.mark.covers("C-210")
def test_less_time_than_before(stage, client):
    client.declare("q", arguments={"x-visibility-timeout": 60_000})
    client.publish("q", b"1")
    client.consume("q")
    cancel(client)
    command(client, "extend", x_delivery_tag=1, x_extend=100)
    stage.advance(0.2)
    assert ready(client, "q") == 1


@pytest.mark.covers("C-210", "C-217")
def test_long_jobs_keep_their_channel(stage, client):
    """The consumer timeout waits for what was extended, and for nothing else."""
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q")

    def sweep(minutes):
        for _ in range(minutes):
            stage.advance(60)
            client.connection.check_acknowledged(stage.now)
            stage.run()

    sweep(29)
    command(client, "extend", x_delivery_tag=1, x_extend=3_600_000)
    sweep(55)
    assert client.connection.channels.by_number[1].alive
    sweep(10)
    assert "delivery acknowledgement on channel 1 timed out" in closing_text(client)


def test_visible_deliveries_do_not_hide_those_that_wait_too_long(stage, client):
    client.declare("q", arguments={"x-visibility-timeout": 43_200_000})
    client.declare("plain")
    client.publish("q", b"1")
    client.publish("plain", b"2")
    client.consume("q")
    client.deliveries()
    client.consume("plain", "p")
    for _ in range(32):
        stage.advance(60)
        client.connection.check_acknowledged(stage.now)
        stage.run()
    assert "delivery acknowledgement" in closing_text(client)


@pytest.mark.covers("C-210")
def test_what_is_returned_comes_after_its_delay(stage, client):
    client.declare("q")
    client.publish("q", b"1")
    client.prefetch(1)
    client.consume("q")
    client.deliveries()
    command(client, "return", x_delivery_tag=1, x_delay=3000)
    stage.advance(2.9)
    assert bodies(client) == []
    assert stage.queue("q").delayed_count == 1
    stage.advance(0.2)
    assert bodies(client) == [(b"1", True)]


def test_commands_are_confirmed(client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.consume("q")
    client.deliveries()
    client.call(commands.Confirm.Select())
    command(client, "extend", x_delivery_tag=1, x_extend=2000)
    assert client.methods()[-1][:2] == ("Basic.Ack", 1)


def test_an_ended_lease_is_not_extended(stage, client):
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1")
    client.consume("q")
    cancel(client)
    stage.advance(2)
    command(client, "extend", x_delivery_tag=1, x_extend=2000)
    assert ready(client, "q") == 1


@pytest.mark.parametrize(
    ("key", "headers", "told"),
    [
        ("extend", {"x_delivery_tag": 1}, "invalid header 'x-extend'"),
        ("extend", {"x_extend": 1}, "invalid header 'x-delivery-tag'"),
        ("extend", {"x_extend": 1, "x_delivery_tag": 1, "x_consumer_tag": "c"}, "'x-delivery-tag'"),
        ("extend", {"x_extend": -1, "x_delivery_tag": 1}, "milliseconds from 0 to 43200000"),
        ("extend", {"x_extend": 43_200_001, "x_delivery_tag": 1}, "expected milliseconds from 0"),
        ("extend", {"x_extend": False, "x_delivery_tag": 1}, "expected milliseconds from 0"),
        ("extend", {"x_extend": "1", "x_delivery_tag": 1}, "invalid header 'x-extend'"),
        ("extend", {"x_extend": 1, "x_delivery_tag": "1"}, "invalid header 'x-delivery-tag'"),
        ("extend", {"x_extend": 1, "x_delivery_tag": 2}, "unknown delivery tag 2"),
        ("extend", {"x_extend": 1, "x_delivery_tag": -1}, "unknown delivery tag -1"),
        ("extend", {"x_extend": 1, "x_consumer_tag": "d"}, "invalid header 'x-consumer-tag'"),
        ("return", {"x_delivery_tag": 1}, "invalid header 'x-delay'"),
        ("extend", {"x_extend": 1, "x_delivery_tag": 1, "x_delay": 1}, "unknown field 'x-delay'"),
        ("return", {"x_delay": 1, "x_delivery_tga": 1}, "did you mean 'x-delivery-tag'?"),
        ("extent", {}, "no command 'extent' of exchange 'leveret.lease' in vhost '/'"),
    ],
)
def test_wrong_commands_are_refused(client, key, headers, told):
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q")
    command(client, key, **headers)
    assert told in closing_text(client)


def test_leases_of_a_closed_channel_are_forgotten(stage, client):
    client.declare("q", channel=2, arguments=SECOND)
    client.publish("q", b"1")
    client.consume("q")
    client.deliveries()
    client.call(commands.Channel.Close(0, "", 0, 0))
    assert ready(client, "q") == 1
    stage.advance(5)
    assert ready(client, "q") == 1


def test_not_everything_is_extended_at_once(client, monkeypatch):
    monkeypatch.setattr(lease_commands, "EXTENDED_AT_ONCE_MAX", 2)
    client.declare("q", arguments=SECOND)
    client.publish("q", b"1", b"2", b"3")
    client.consume("q")
    client.send(commands.Basic.Ack(1))
    command(client, "extend", x_consumer_tag="c", x_extend=5000)
    client.deliveries()
    client.publish("q", b"4")
    command(client, "extend", x_consumer_tag="c", x_extend=5000)
    assert "more than 2 deliveries to extend at once" in closing_text(client)
