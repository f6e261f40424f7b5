"""Windows, numbering publishers, half messages and usage by HTTP, on a node."""

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.site import running_site

NONE, ALL = "^$", ".*"


@pytest.fixture
def reader(live_site):
    """Return a client who may look and nothing else."""
    live_site.add_user("reader", "management")
    live_site.permit("reader", "/", NONE, NONE, ALL)
    with live_site.http_client("/api/leveret", "reader") as client:
        yield client


@pytest.fixture
def channel(live_site):
    return Client(live_site.stage).open()


def publish(channel, queue, **properties):
    channel.publish(queue, b"m", delivery_mode=2, **properties)


def test_windows(http, reader, channel):
    channel.declare("once", durable=True, arguments={"x-dedup-window": True})
    for _ in range(3):
        publish(channel, "once", message_id="a/1")
    (row,) = http.get("/leveret/dedup/%2F").json()
    assert row == {
        "kind": "queue",
        "name": "once",
        "window_ms": 300_000,
        "keys": 1,
        "duplicates": 2,
    }
    one = "/leveret/dedup/%2F/queue/once/a%2F1"
    assert http.get(one).json()["seen_at"] > 0
    assert reader.get("/dedup/%2F").json() == [row]
    assert reader.delete("/dedup/%2F/queue/once/a%2F1").status_code == 401
    assert http.delete(one).status_code == 204
    assert http.get(one).json()["seen_at"] is None
    assert http.delete(one).status_code == 404
    for wrong in ("binding/once/a", "exchange/once/a", "queue/none/a"):
        assert http.get(f"/leveret/dedup/%2F/{wrong}").status_code == 404


def test_producers(http, reader, channel):
    channel.declare("numbered", durable=True)
    headers = {"x-producer-id": "till", "x-producer-epoch": 0, "x-producer-seq": 0}
    publish(channel, "numbered", headers=headers)
    (row,) = reader.get("/producers/%2F").json()
    assert (row["id"], row["epoch"], row["sequence"]) == ("till", 0, 0)
    assert reader.delete("/producers/%2F/till").status_code == 401
    assert http.delete("/leveret/producers/%2F/till").status_code == 204
    assert http.delete("/leveret/producers/%2F/till").status_code == 404
    assert http.get("/leveret/producers/%2F").json() == []


def test_half_messages(http, reader, channel):
    channel.declare("half", durable=True)
    for name in ("kept", "dropped"):
        publish(channel, "half", headers={"x-prepare": True, "x-prepare-id": name})
    assert [row["id"] for row in reader.get("/prepared/%2F").json()] == ["dropped", "kept"]
    assert reader.post("/prepared/%2F/kept/commit").status_code == 401
    assert http.post("/leveret/prepared/%2F/kept/perhaps").status_code == 404
    assert http.post("/leveret/prepared/%2F/kept/commit").status_code == 204
    assert http.post("/leveret/prepared/%2F/dropped/rollback").status_code == 204
    assert http.post("/leveret/prepared/%2F/kept/commit").status_code == 404
    assert http.get("/leveret/prepared/%2F").json() == []
    assert channel.count("half") == 1


def test_without_a_master_key_nothing_is_encrypted(tmp_path):
    with running_site(tmp_path, master=None) as site, site.http_client("/api") as http:
        answer = http.post("/leveret/encryption/%2F/enable")
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert "key" in answer.json()["reason"]
        assert [row["state"] for row in http.get("/leveret/encryption").json()] == ["plain"]


def test_usage_is_told_to_whom_it_concerns(http, reader, channel):
    channel.declare("used", durable=True)
    publish(channel, "used")
    rows = http.get("/leveret/usage", params={"of": "queue", "name": "used"}).json()
    assert [(row["vhost"], row["messages_in"]) for row in rows] == [("/", 1)]
    assert http.get("/leveret/usage", params={"of": "user"}).json()[0]["name"] == "guest"
    assert reader.get("/usage", params={"of": "user"}).json() == []
    assert reader.get("/usage", params={"name": "used"}).json() == rows
    assert http.get("/leveret/usage", params={"since": 0, "until": 1}).json() == []
    assert http.get("/leveret/usage", params={"of": "nobody"}).status_code == 400


def test_lists_are_searched_by_headers(http, channel):
    channel.declare("later", durable=True)
    for number in range(2):
        publish(channel, "later", headers={"x-delay": 3_600_000, "shop": number})
    schedules = "/leveret/schedules/%2F"
    rows = http.get(schedules, params={"header": "shop=1"}).json()["rows"]
    assert [row["headers"]["shop"] for row in rows] == [1]
    assert http.get(schedules, params={"header": "shop"}).status_code == 400
    letters = {"x-dead-letter-topic": True}
    channel.declare("dies", durable=True, arguments=letters)
    for number in range(2):
        publish(channel, "dies", message_id=f"d{number}", headers={"shop": number})
        channel.send(commands.Basic.Get(queue="dies"))
        [got] = channel.deliveries()
        channel.send(commands.Basic.Reject(got.tag, requeue=False))
    dead = "/leveret/dead-letters/%2F/dies.dlq"
    assert http.get(dead).json()["ready"] == 2
    for asked, found in (({"header": "shop=0"}, ["d0"]), ({"message_id": "d1"}, ["d1"])):
        rows = http.get(dead, params=asked).json()["rows"]
        assert [row["message_id"] for row in rows] == found
