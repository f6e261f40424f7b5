"""Traces of messages, by the operation and by HTTP."""

import pytest
from pamqp import commands

from leveret.features.trace import commands as message_trace
from leveret.features.trace import trace_search
from leveret.features.trace.message_trace import sentences
from leveret.ports.definitions import PermissionDefinition
from tests.features.browse.test_commands import Desk
from tests.support.client import Client

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def client(desk):
    return Client(desk.stage).open()


async def trace(desk, offset, queue="q"):
    return await desk.answer("GET", f"/api/leveret/queues/%2F/{queue}/messages/{offset}/trace")


async def search(desk, query):
    return await desk.answer("GET", f"/api/leveret/messages/%2F/trace?{query}")


@pytest.mark.covers("C-214")
async def test_who_has_a_message_is_told(desk, client):
    desk.publish(b"1", b"2", b"3", message_id="m")
    now = desk.stage.now
    assert await trace(desk, 0) == {
        "vhost": "/",
        "queue": "q",
        "offset": 0,
        "message_id": "m",
        "steps": [
            {"step": "published", "time_ms": now, "exchange": "x", "routing_keys": ["key"]},
            {"step": "stored", "time_ms": now, "queue": "q"},
        ],
        "state": "ready",
        "holder": None,
    }
    client.send(commands.Basic.Get(queue="q"))
    client.frames.clear()
    client.consume("q", "worker")
    desk.stage.run()
    holder = {"connection": "127.0.0.1:50000 -> 127.0.0.1:5672", "user": "guest", "channel": 1}
    told = await trace(desk, 0)
    assert told["state"] == "unacked"
    assert told["holder"] == holder | {"consumer_tag": None, "delivery_tag": 1}
    told = await trace(desk, 2)
    assert told["holder"] == holder | {"consumer_tag": "worker", "delivery_tag": 3}
    client.send(commands.Basic.Ack(delivery_tag=3))
    assert (await trace(desk, 2))["state"] == "settled"


@pytest.mark.covers("C-214")
async def test_all_with_an_id_are_found_in_their_queues(desk, client):
    desk.declare("dead")
    desk.declare("empty")
    client.declare("work", durable=True, arguments=DEAD)
    client.publish("work", b"1", message_id="m", headers={"n": 1})
    desk.stage.run()
    work = desk.stage.queue("work")
    offset = work.get()[0]
    work.discard([(offset, offset + 1)])
    desk.stage.run()
    desk.publish(b"2", message_id="m")
    desk.publish(b"3", message_id="other")
    found = await search(desk, "message_id=m")
    assert found["after"] is None
    dead, alive = found["messages"]
    assert (dead["queue"], alive["queue"]) == ("dead", "q")
    assert [(step["step"], step.get("queue"), step.get("reason")) for step in dead["steps"]] == [
        ("published", None, None),
        ("died", "work", "rejected"),
        ("dead-lettered", None, None),
        ("stored", "dead", None),
    ]
    assert dead["steps"][0]["routing_keys"] == ["work"]
    assert (await search(desk, "message_id=nobody"))["messages"] == []


async def test_what_was_settled_is_told_as_long_as_it_is_kept(desk):
    desk.publish(b"1", b"2")
    desk.queue.settle([(desk.queue.get()[0], 1)])
    told = await trace(desk, 0)
    assert (told["state"], told["holder"]) == ("settled", None)
    assert (await desk.reason("GET", "9/trace"))[0] == 404


async def test_a_search_looks_at_so_much_and_goes_on(desk, monkeypatch):
    monkeypatch.setattr(trace_search, "SCANNED_MAX", 2)
    monkeypatch.setattr(message_trace, "QUEUES_MAX", 1)
    for name in ("a", "b", "c", "d"):
        desk.declare(name)
    for name in ("a", "b", "d", "q"):
        desk.publish(b"1", b"2", b"3", queue=name, message_id="m")
    rows, asked, query = [], [], "message_id=m"
    for _ in range(20):
        asked.append(query)
        found = await search(desk, query)
        assert found["scanned"] <= 3  # it ends behind the slice that was too much
        rows += [(row["queue"], row["offset"]) for row in found["messages"]]
        if found["after"] is None:
            break
        query = f"message_id=m&after={found['after']}"
    assert len(asked) >= 4
    assert rows == [(name, offset) for name in ("a", "b", "d", "q") for offset in range(3)]


async def test_a_page_holds_so_many(desk, monkeypatch):
    monkeypatch.setattr(trace_search, "ROWS_MAX", 2)
    desk.publish(b"1", b"2", b"3", message_id="m")
    found = await search(desk, "message_id=m")
    assert ([row["offset"] for row in found["messages"]], found["after"]) == ([0, 1], "0.2.0.q")
    found = await search(desk, f"message_id=m&after={found['after']}")
    assert ([row["offset"] for row in found["messages"]], found["after"]) == ([2], None)


def make_wait(desk, client, names=("q.b", "q.a")):
    """Messages with the id `m` in all places where messages wait."""
    retries = {"x-retry-delays": [60_000], "x-celery-eta": True}
    for name in names:
        client.declare(name, durable=True, arguments=retries)
        client.publish(name, b"fails", message_id="m")
        client.publish(name, b"other", message_id="other")
        desk.stage.run()
        queue = desk.stage.queue(name)
        for _ in range(2):
            offset, _ = queue.get()
            queue.discard([(offset, offset + 1)])
            desk.stage.run()
        task = {"task": "t", "id": "1", "eta": "2999-01-01T00:00:00"}
        client.publish(name, b"task", message_id="m", headers=task)
    client.publish("q", b"later", message_id="m", headers={"x-delay": 60_000})
    half = {"x-prepare": True, "x-prepare-id": "half"}
    client.publish("q", b"half", message_id="m", headers=half)
    desk.stage.run()


@pytest.mark.covers("C-214")
async def test_what_waits_is_found_by_its_id(desk, client):
    make_wait(desk, client)
    found = await search(desk, "message_id=m")
    assert found["after"] is None
    assert [(row["state"], row["queue"], row["id"]) for row in found["messages"]] == [
        ("retry", "q.a", "0"),
        ("retry", "q.b", "0"),
        ("eta", "q.a", "@0"),
        ("eta", "q.b", "@0"),
        ("scheduled", None, "@0"),
        ("prepared", None, "half"),
    ]
    retried, *_, delayed, prepared = found["messages"]
    assert [step["step"] for step in retried["steps"]] == ["published", "failed", "waiting"]
    assert retried["due_ms"] == delayed["due_ms"] == desk.stage.now + 60_000
    assert [step["step"] for step in delayed["steps"]] == ["published", "waiting"]
    assert prepared["steps"][0]["time_ms"] == desk.stage.now
    told = [sentence for _, sentence in sentences(retried)]
    assert told[-2:] == ["Kept as 0, to be retried", "Then retried in queue q.a"]


@pytest.mark.parametrize("limit", ["SCANNED_MAX", "ROWS_MAX", "NAMES_MAX", "PREPARED_AT_ONCE"])
async def test_a_search_of_what_waits_goes_on_where_it_ended(desk, client, monkeypatch, limit):
    make_wait(desk, client)
    whole = (await search(desk, "message_id=m"))["messages"]
    monkeypatch.setattr(trace_search, limit, 1)
    rows, query = [], "message_id=m"
    for _ in range(40):
        found = await search(desk, query)
        rows += found["messages"]
        if found["after"] is None:
            break
        query = f"message_id=m&after={found['after']}"
    assert rows == whole
    assert found["after"] is None


async def test_others_connections_are_monitors_business(desk, client):
    desk.publish(b"1")
    client.send(commands.Basic.Get(queue="q"))
    desk.add_user("reader", "management")
    desk.stage.access.put_permission(PermissionDefinition("/", "reader", "", "", ".*"))
    path = "/api/leveret/queues/%2F/q/messages/0/trace"
    told = (await desk.ask("GET", path, user="reader")).json()
    assert (told["state"], told["holder"]) == ("unacked", None)
    assert (await trace(desk, 0))["holder"]["user"] == "guest"
    status, _ = await desk.reason(
        "GET", "/api/leveret/messages/%2F/trace?message_id=m", user="reader"
    )
    assert status == 401


@pytest.mark.parametrize(
    "asked", ["", "message_id=", "message_id=m&after=1", "message_id=m&after=9.0.0.q", "queue=q"]
)
async def test_searches_that_make_no_sense(desk, asked):
    status, _ = await desk.reason("GET", f"/api/leveret/messages/%2F/trace?{asked}")
    assert status == 400
