"""Delayed messages managed over AMQP, by the exchange leveret.schedule."""

from __future__ import annotations

import json

import pytest
from pamqp import commands

from leveret.errors import DiskFullError, StorageError
from leveret.ports import Durability
from tests.support.client import Client, message
from tests.support.stage import Stage

EXCHANGE = "leveret.schedule"


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def client(stage: Stage) -> Client:
    client = Client(stage).open()
    client.declare("q")
    client.declare("answers")
    return client


def later(client: Client, body: bytes, delay: int = 5000, **headers: object) -> None:
    client.publish("q", body, headers={"x-delay": delay, **headers})


def command(client: Client, name: str, **headers: object) -> int:
    """Send a command; the count in its answer."""
    table = {key.replace("_", "-"): value for key, value in headers.items()}
    client.publish(
        name, b"", exchange=EXCHANGE, headers=table, reply_to="answers", correlation_id="c"
    )
    for _ in range(5):  # a list is worked through with passes of the loop between its pages
        client.stage.run()
    client.send(commands.Basic.Get(queue="answers", no_ack=True))
    frames = [frame for _, frame in client.received()]
    assert frames[0].name == "Basic.GetOk", client.stage.reported
    assert frames[1].properties.correlation_id == "c"
    return json.loads(frames[2].value)["count"]


def count(client: Client) -> int:
    return client.count("q")


def refusal(client: Client, name: str, **headers: object) -> tuple[int, str]:
    table = {key.replace("_", "-"): value for key, value in headers.items()}
    client.publish(name, b"", exchange=EXCHANGE, headers=table)
    ((closed, code, text, *_),) = client.methods()
    assert closed == "Channel.Close"
    return code, text


@pytest.mark.covers("C-202")
def test_cancel_by_id(stage: Stage, client: Client) -> None:
    later(client, b"1")
    later(client, b"2", **{"x-schedule-id": "a"})
    assert command(client, "cancel", x_schedule_id="a") == 1
    assert command(client, "cancel", x_schedule_id="a") == 0
    assert command(client, "cancel", x_schedule_id="@0") == 1
    stage.advance(6)
    assert count(client) == 0


@pytest.mark.covers("C-202")
def test_deliver_now(stage: Stage, client: Client) -> None:
    later(client, b"1")
    later(client, b"2", colour="red")
    assert command(client, "deliver-now", x_headers={"colour": "red"}) == 1
    stage.advance(0)
    assert count(client) == 1
    stage.advance(6)
    assert count(client) == 2


@pytest.mark.covers("C-202")
def test_reschedule(stage: Stage, client: Client) -> None:
    later(client, b"1")
    assert command(client, "reschedule", x_schedule_id="@0", x_delay=60_000) == 1
    stage.advance(6)
    assert count(client) == 0
    assert command(client, "reschedule", x_schedule_id="@0", x_deliver_at=stage.now + 100) == 1
    stage.advance(0.1)
    assert count(client) == 1


def test_what_was_published_just_before_is_met(stage: Stage, client: Client) -> None:
    headers = {"x-delay": 5000, "x-schedule-id": "a"}
    client.feed(
        message("q", b"m", headers=headers)
        + message("cancel", b"", exchange=EXCHANGE, headers={"x-schedule-id": "a"})
    )
    stage.advance(6)
    assert count(client) == 0


@pytest.mark.covers("C-202")
def test_filters(stage: Stage, client: Client) -> None:
    for delay in (1000, 2000, 3000):
        later(client, b"m", delay)
    client.publish("a.b", b"m", exchange="amq.topic", headers={"x-delay": 4000})
    now = stage.now
    assert command(client, "cancel", x_due_from=now + 2000, x_due_before=now + 3000) == 1
    assert command(client, "cancel", x_exchange="amq.topic", x_routing_key="a.b") == 1
    assert command(client, "cancel", x_exchange="amq.topic") == 0
    assert command(client, "cancel", x_all=True) == 2


def test_the_confirm_waits_for_the_work() -> None:
    stage = Stage(Durability.FSYNC)
    client = Client(stage).open()
    client.declare("q", durable=True)
    later(client, b"m", **{"x-schedule-id": "a"})
    log = stage.log("leveret.delayed")
    log.commit()
    stage.run()
    client.call(commands.Confirm.Select())
    headers = {"x-schedule-id": "a", "x-delay": 9000}
    client.publish("reschedule", b"", exchange=EXCHANGE, headers=headers)
    assert client.methods() == []
    log.commit()
    stage.run()
    assert client.methods() == [("Basic.Ack", 1, False)]


@pytest.mark.covers("C-202")
def test_a_change_that_the_disk_refuses_is_a_nack(stage: Stage, client: Client) -> None:
    later(client, b"1")
    client.call(commands.Confirm.Select())
    stage.log("leveret.delayed").append_error = DiskFullError("no space left")
    headers = {"x-schedule-id": "@0"}
    client.publish("deliver-now", b"", exchange=EXCHANGE, headers=headers, reply_to="answers")
    assert client.names() == ["Basic.Nack"]
    stage.log("leveret.delayed").append_error = None
    assert client.count("answers") == 0
    stage.advance(4)
    assert count(client) == 0
    stage.advance(2)
    assert count(client) == 1


def test_work_that_fails_is_refused(
    stage: Stage, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(client, b"m")
    client.call(commands.Confirm.Select())

    async def fail(*_: object) -> None:
        raise StorageError("no device")

    monkeypatch.setattr(stage.broker.delayed.find("/").store, "read", fail)
    client.publish("cancel", b"", exchange=EXCHANGE, headers={"x-schedule-id": "@0"})
    assert client.methods()[0][0] == "Basic.Nack"
    assert len(stage.reported) == 1


@pytest.mark.parametrize(
    ("name", "headers", "text"),
    [
        ("drop", {"x_all": True}, "no command 'drop': there are cancel, reschedule, deliver-now"),
        ("cancel", {}, "which messages? State 'x-schedule-id'"),
        ("cancel", {"x_schedule_id": "a", "x_all": True}, "which messages?"),
        ("cancel", {"x_schedule_id": 1}, "invalid header 'x-schedule-id'"),
        (
            "cancel",
            {"x_routing_key": "q", "x_header": {"shop": 1}},
            "unknown field 'x-header'; did you mean 'x-headers'?",
        ),
        ("cancel", {"x_all": True, "x_delay": 1}, "unknown field 'x-delay'"),
        ("cancel", {"x_headers": "a"}, "invalid header 'x-headers'"),
        ("cancel", {"x_all": 1}, "invalid header 'x-all'"),
        ("cancel", {"x_due_from": "a"}, "invalid header 'x-due-from'"),
        ("reschedule", {"x_schedule_id": "a"}, "no new time: state 'x-delay' or 'x-deliver-at'"),
        ("reschedule", {"x_schedule_id": "a", "x_delay": "b"}, "invalid header 'x-delay'"),
    ],
)
def test_bad_commands_are_refused(
    client: Client, name: str, headers: dict[str, object], text: str
) -> None:
    code, told = refusal(client, name, **headers)
    assert code == 406
    assert text in told


def test_permissions(stage: Stage) -> None:
    stage.add_user("nobody", write="^q$|^$")
    client = Client(stage).open(user="nobody")
    assert refusal(client, "cancel", x_all=True)[0] == 403


@pytest.mark.parametrize("name", ["cancel", "deliver-now", "reschedule"])
@pytest.mark.parametrize("chosen", [{"x_all": True}, {"x_schedule_id": "a"}, {"x_headers": {}}])
def test_what_waits_elsewhere_is_not_changed(
    stage: Stage, client: Client, name: str, chosen: dict[str, object]
) -> None:
    later(client, b"m", **{"x-schedule-id": "a"})
    stage.add_user("some", write="^leveret.schedule$|^amq.topic$")
    some = Client(stage).open(user="some")
    some.publish("k", b"mine", exchange="amq.topic", headers={"x-delay": 5000})
    timed = {"x_delay": 1} if name == "reschedule" else {}
    if chosen == {"x_headers": {}}:
        chosen = {"x_due_from": 1}
    code, text = refusal(some, name, **chosen, **timed)
    assert code == 403
    assert text == (
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' "
        "refused for user 'some'"
    )
    stage.advance(4)
    assert stage.broker.delayed.find("/").store.pending_count == 2


def test_an_id_means_one_s_own_message(stage: Stage, client: Client) -> None:
    stage.add_user("alice")
    alice = Client(stage).open(user="alice")
    for one in (client, alice):
        later(one, b"m", **{"x-schedule-id": "1"})
    assert command(client, "cancel", x_schedule_id="1") == 1
    delayed = stage.broker.delayed.find("/")
    assert delayed.find("1", "alice") == delayed.find("1") == 1
    assert command(client, "cancel", x_schedule_id="1") == 1  # there is one only


def test_an_answer_is_a_publish_of_one_s_own(stage: Stage) -> None:
    stage.add_user("some", write="^leveret.schedule$")
    client = Client(stage).open(user="some")
    client.publish("cancel", b"", exchange=EXCHANGE, headers={"x-all": True}, reply_to="others")
    ((closed, code, *_),) = client.methods()
    assert (closed, code) == ("Channel.Close", 403)


def test_direct_replies(stage: Stage, client: Client) -> None:
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish(
        "cancel",
        b"",
        exchange=EXCHANGE,
        headers={"x-all": True},
        reply_to="amq.rabbitmq.reply-to",
    )
    assert [delivery.body for delivery in client.deliveries()] == [b'{"count": 0}']
