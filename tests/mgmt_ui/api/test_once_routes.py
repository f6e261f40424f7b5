"""Windows, numbering publishers, half messages and usage by HTTP, on a node."""

import re

import httpx
import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.waiting import wait_until

NONE, ALL = "^$", ".*"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("node") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def address(broker):
    return re.findall(r"^ready .*http=(\S+)", broker.log(), re.MULTILINE)[-1]


@pytest.fixture
def http(address):
    with httpx.Client(
        base_url=f"http://{address}/api", auth=("guest", "guest"), timeout=60
    ) as client:
        yield client


@pytest.fixture
def reader(http, address):
    """Return a client who may look and nothing else."""
    http.put("/users/reader", json={"password": "reader", "tags": "management"})
    http.put("/permissions/%2F/reader", json={"configure": NONE, "write": NONE, "read": ALL})
    base = f"http://{address}/api/leveret"
    with httpx.Client(base_url=base, auth=("reader", "reader"), timeout=60) as client:
        yield client


@pytest.fixture
def channel(broker):
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as made:
        channel = made.channel()
        channel.confirm_delivery()
        yield channel


def publish(channel, queue, **properties):
    channel.basic_publish("", queue, b"m", pika.BasicProperties(delivery_mode=2, **properties))


def test_windows(http, reader, channel):
    channel.queue_declare("once", durable=True, arguments={"x-dedup-window": True})
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
    channel.queue_declare("numbered", durable=True)
    headers = {"x-producer-id": "till", "x-producer-epoch": 0, "x-producer-seq": 0}
    publish(channel, "numbered", headers=headers)
    (row,) = reader.get("/producers/%2F").json()
    assert (row["id"], row["epoch"], row["sequence"]) == ("till", 0, 0)
    assert reader.delete("/producers/%2F/till").status_code == 401
    assert http.delete("/leveret/producers/%2F/till").status_code == 204
    assert http.delete("/leveret/producers/%2F/till").status_code == 404
    assert http.get("/leveret/producers/%2F").json() == []


def test_half_messages(http, reader, channel):
    channel.queue_declare("half", durable=True)
    for name in ("kept", "dropped"):
        publish(channel, "half", headers={"x-prepare": True, "x-prepare-id": name})
    assert [row["id"] for row in reader.get("/prepared/%2F").json()] == ["dropped", "kept"]
    assert reader.post("/prepared/%2F/kept/commit").status_code == 401
    assert http.post("/leveret/prepared/%2F/kept/perhaps").status_code == 404
    assert http.post("/leveret/prepared/%2F/kept/commit").status_code == 204
    assert http.post("/leveret/prepared/%2F/dropped/rollback").status_code == 204
    assert http.post("/leveret/prepared/%2F/kept/commit").status_code == 404
    assert http.get("/leveret/prepared/%2F").json() == []
    assert channel.queue_declare("half", passive=True).method.message_count == 1


def test_without_a_master_key_nothing_is_encrypted(http):
    answer = http.post("/leveret/encryption/%2F/enable")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert "key" in answer.json()["reason"]
    assert [row["state"] for row in http.get("/leveret/encryption").json()] == ["plain"]


def test_usage_is_told_to_whom_it_concerns(http, reader, channel):
    channel.queue_declare("used", durable=True)
    publish(channel, "used")
    rows = http.get("/leveret/usage", params={"of": "queue", "name": "used"}).json()
    assert [(row["vhost"], row["messages_in"]) for row in rows] == [("/", 1)]
    assert http.get("/leveret/usage", params={"of": "user"}).json()[0]["name"] == "guest"
    assert reader.get("/usage", params={"of": "user"}).json() == []
    assert reader.get("/usage", params={"name": "used"}).json() == rows
    assert http.get("/leveret/usage", params={"since": 0, "until": 1}).json() == []
    assert http.get("/leveret/usage", params={"of": "nobody"}).status_code == 400


def test_lists_are_searched_by_headers(http, channel):
    channel.queue_declare("later", durable=True)
    for number in range(2):
        publish(channel, "later", headers={"x-delay": 3_600_000, "shop": number})
    schedules = "/leveret/schedules/%2F"
    rows = http.get(schedules, params={"header": "shop=1"}).json()["rows"]
    assert [row["headers"]["shop"] for row in rows] == [1]
    assert http.get(schedules, params={"header": "shop"}).status_code == 400
    letters = {"x-dead-letter-topic": True}
    channel.queue_declare("dies", durable=True, arguments=letters)
    for number in range(2):
        publish(channel, "dies", message_id=f"d{number}", headers={"shop": number})
        method, _, _ = channel.basic_get("dies")
        channel.basic_reject(method.delivery_tag, requeue=False)
    dead = "/leveret/dead-letters/%2F/dies.dlq"
    wait_until(lambda: http.get(dead).json().get("ready") == 2)
    for asked, found in (({"header": "shop=0"}, ["d0"]), ({"message_id": "d1"}, ["d1"])):
        rows = http.get(dead, params=asked).json()["rows"]
        assert [row["message_id"] for row in rows] == found
