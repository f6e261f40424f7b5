"""Exchange type x-delayed-message, as of RabbitMQ's plugin for delayed messages."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def client(stage: Stage) -> Client:
    client = Client(stage).open()
    client.declare("q")
    return client


def declare(client: Client, name: str = "x", **arguments: object) -> object:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    return client.call(
        commands.Exchange.Declare(exchange=name, exchange_type="x-delayed-message", arguments=table)
    )


def bind(client: Client, key: str) -> None:
    client.call(commands.Queue.Bind(queue="q", exchange="x", routing_key=key))


def publish(client: Client, key: str, body: bytes, delay: object) -> None:
    client.publish(key, body, exchange="x", headers={"x-delay": delay})


def got(client: Client) -> list[tuple[bytes, object]]:
    """Bodies and the delays that come with them."""
    found = []
    while True:
        client.send(commands.Basic.Get(queue="q", no_ack=True))
        frames = [frame for _, frame in client.received()]
        if frames[0].name == "Basic.GetEmpty":
            return found
        body = b"".join(part.value for part in frames[2:])
        found.append((body, (frames[1].properties.headers or {}).get("x-delay")))


@pytest.mark.covers("B-176")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        ({"x_delayed_type": 1}, "Invalid argument, 'x-delayed-type' must be an existing"),
        ({"x_delayed_type": "none"}, "unknown exchange type 'none'"),
        (
            {"x_delayed_type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
    ],
)
def test_wrong_types_are_refused(client: Client, arguments: dict[str, object], text: str) -> None:
    closed = declare(client, **arguments)
    assert closed.name == "Channel.Close"
    assert closed.reply_code == 406
    assert text in closed.reply_text


@pytest.mark.covers("B-176")
@pytest.mark.parametrize(
    ("kind", "keys", "routed"),
    [
        ("direct", ["k"], ["k"]),
        ("fanout", [""], ["k", "other"]),
        ("topic", ["k.#"], ["k", "k.a"]),
    ],
)
def test_it_routes_as_its_type(
    stage: Stage, client: Client, kind: str, keys: list[str], routed: list[str]
) -> None:
    assert declare(client, x_delayed_type=kind).name == "Exchange.DeclareOk"
    for key in keys:
        bind(client, key)
    for key in ("k", "k.a", "other"):
        publish(client, key, key.encode(), 500)
        client.publish(key, b"at once " + key.encode(), exchange="x")
    at_once = {body.removeprefix(b"at once ").decode() for body, _ in got(client)}
    assert at_once >= set(routed)
    stage.advance(0.5)
    assert {body.decode() for body, _ in got(client)} == at_once


@pytest.mark.covers("B-176")
def test_messages_come_in_the_order_of_their_delays(stage: Stage, client: Client) -> None:
    declare(client, x_delayed_type="direct")
    bind(client, "k")
    for delay in (500, 100, 300, 200, 100, 400):
        publish(client, "k", b"%d" % delay, delay)
    found = []
    for _ in range(6):
        stage.advance(0.1)
        found += got(client)
    assert found == [(b"%d" % delay, -delay) for delay in (100, 100, 200, 300, 400, 500)]


@pytest.mark.covers("B-176")
@pytest.mark.parametrize(("delay", "shown"), [("500", -500), (500.9, -500)])
def test_numbers_may_be_written_otherwise(
    stage: Stage, client: Client, delay: object, shown: int
) -> None:
    declare(client, x_delayed_type="direct")
    bind(client, "k")
    publish(client, "k", b"m", delay)
    assert got(client) == []
    stage.advance(0.5)
    assert got(client) == [(b"m", shown)]


@pytest.mark.covers("B-176")
@pytest.mark.parametrize("delay", [0, -5, 2**32, True, None])
def test_what_is_no_delay_is_delivered_at_once(client: Client, delay: object) -> None:
    declare(client, x_delayed_type="direct")
    bind(client, "k")
    publish(client, "k", b"m", delay)
    assert got(client) == [(b"m", delay)]


@pytest.mark.covers("B-176")
@pytest.mark.parametrize("delay", ["abc", "", "1e400x"])
def test_text_that_is_no_number_is_refused(stage: Stage, client: Client, delay: str) -> None:
    declare(client, x_delayed_type="direct")
    bind(client, "k")
    publish(client, "k", b"m", delay)
    (_, closed) = client.received()[-1]
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
    assert "x-delay" in closed.reply_text
    assert stage.queue("q").message_count == 0


def test_it_may_be_declared_again(client: Client) -> None:
    for _ in range(2):
        assert declare(client, x_delayed_type="direct").name == "Exchange.DeclareOk"
    other = commands.Exchange.Declare(exchange="x", exchange_type="direct")
    assert "inequivalent arg 'type'" in client.call(other).reply_text


def test_exchanges_behind_it_get_what_was_delayed(stage: Stage, client: Client) -> None:
    declare(client, x_delayed_type="direct")
    declare(client, "y", x_delayed_type="fanout")
    client.call(commands.Exchange.Bind(destination="y", source="x", routing_key="k"))
    client.call(commands.Queue.Bind(queue="q", exchange="y", routing_key=""))
    publish(client, "k", b"m", 500)
    stage.advance(0.5)
    assert got(client) == [(b"m", -500)]


def test_a_restart_and_an_import_know_it(client: Client, stage: Stage) -> None:
    declare(client, x_delayed_type="topic")
    vhost = stage.broker.vhosts["/"]
    (definition,) = vhost.definitions().exchanges
    again = Stage().broker.vhosts["/"]
    again.add_exchange(definition)
    (imported,) = again.definitions().exchanges
    assert imported.type == "x-delayed-message"
    assert imported.arguments == {"x-delayed-type": "topic"}
