"""Schedules, retries and dead letters by HTTP, on a node."""

import time

import pika
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.http import HttpClient
from tests.support.waiting import LIMIT_SECONDS

LEVERET = "/leveret"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("node") / "data", http=True) as broker:
        yield broker


@pytest.fixture
def http(broker):
    with broker.http_client("/api") as client:
        for name in ("reader", "writer", "blind"):
            body = {"password": name, "tags": "management"}
            assert client.put(f"/users/{name}", json=body).status_code in {201, 204}
        none, every = "^$", ".*"
        reader = {"configure": none, "write": none, "read": every}
        writer = {"configure": none, "write": "^amq.default$|^dlx$", "read": every}
        client.put("/permissions/%2F/reader", json=reader)
        client.put("/permissions/%2F/writer", json=writer)
        blind = {"configure": every, "write": every, "read": none}
        client.put("/permissions/%2F/blind", json=blind)
        yield client


@pytest.fixture
def channel(broker):
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port)) as made:
        channel = made.channel()
        channel.confirm_delivery()
        yield channel


def as_user(http, name):
    return HttpClient(str(http.base_url), name)


@pytest.mark.covers("C-202")
def test_schedules_are_listed_shown_put_off_and_called_off(http, channel):
    channel.queue_declare("later", durable=True)
    for number in range(3):
        headers = {"x-delay": HOUR_MS * (number + 1), "x-schedule-id": f"s{number}"}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish("", "later", b"body", properties)
    base = f"{LEVERET}/schedules/%2F"
    first = http.get(base, params={"limit": 2}).json()
    assert [row["id"] for row in first["rows"]] == ["s0", "s1"]
    rest = http.get(base, params={"after": first["after"]}).json()
    assert ([row["id"] for row in rest["rows"]], rest["pending"]) == (["s2"], 3)
    assert http.get(f"{base}/messages/s1").json()["id"] == "s1"
    assert http.get(f"{base}/messages/none").status_code == 404
    found = http.get(base, params={"header": "x-schedule-id=s1"}).json()["rows"]
    assert [row["headers"]["x-schedule-id"] for row in found] == ["s1"]
    with as_user(http, "writer") as writer:
        rows = writer.get(base).json()["rows"]
        assert all("x-schedule-id" in row["headers"] for row in rows)
        searched = {"header": "x-schedule-id=s1"}
        assert writer.get(base, params=searched).status_code == 401  # among all exchanges'
        answer = writer.get(base, params={**searched, "exchange": ""})
        assert [row["id"] for row in answer.json()["rows"]] == ["s1"]
    with as_user(http, "reader") as reader:
        rows = reader.get(base).json()["rows"]
        assert [row["id"] for row in rows] == ["s0", "s1", "s2"]
        assert not any("headers" in row for row in rows)
        for searched in ({}, {"exchange": ""}, {"exchange": "gone"}):
            params = {"header": "x-schedule-id=s1", **searched}
            assert reader.get(base, params=params).status_code == 401
        assert reader.get(f"{base}/messages/s1").status_code == 401
        assert reader.post(f"{base}/cancel", json={"id": "s1"}).status_code == 401
        assert reader.post(f"{base}/cancel", json={"all": True}).status_code == 401
    assert http.post(f"{base}/cancel", json={"id": "s1"}).json() == {"count": 1}
    assert http.post(f"{base}/cancel", json={"id": "s1"}).status_code == 404
    answer = http.post(f"{base}/reschedule", json={"id": "s2", "delay_ms": 2 * HOUR_MS})
    assert answer.json() == {"count": 1}
    assert http.post(f"{base}/reschedule", json={"id": "s2"}).status_code == 400
    assert http.post(f"{base}/deliver", json={"all": True}).json() == {"count": 2}
    assert http.post(f"{base}/deliver", json={}).status_code == 400
    assert len(_all(channel, "later", 2)) == 2


@pytest.mark.covers("C-202", "C-217")
def test_tasks_that_a_queue_holds_are_listed_shown_and_called_off(http, channel):
    channel.queue_declare("tasks", durable=True, arguments={"x-celery-eta": True})
    for number in range(3):
        headers = {"task": "t", "id": str(number), "eta": f"2999-01-0{number + 1}T00:00:00Z"}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish("", "tasks", b"body", properties)
    base, held = f"{LEVERET}/schedules/%2F", {"queue": "tasks"}
    found = http.get(base, params=held).json()
    rows = found["rows"]
    assert [row["headers"]["id"] for row in rows] == ["0", "1", "2"]
    assert (found["pending"], http.get(base).json()["pending"]) == (3, 0)
    searched = http.get(base, params={**held, "header": "id=1"}).json()["rows"]
    assert searched == [rows[1]]
    first = rows[0]["id"]
    assert http.get(f"{base}/messages/{first}", params=held).json()["payload"] == "body"
    assert http.get(f"{base}/messages/{first}").status_code == 404  # none of the exchanges'
    assert http.get(base, params={"queue": "none"}).status_code == 404
    for verb in ("deliver", "reschedule"):  # a task's time is its own
        asked = {"all": True, "delay_ms": 1, **held}
        assert http.post(f"{base}/{verb}", json=asked).status_code == 400
    with as_user(http, "writer") as writer, as_user(http, "blind") as blind:
        assert blind.get(base).status_code == 200
        assert blind.get(base, params=held).status_code == 401
        assert blind.get(f"{base}/messages/{first}", params=held).status_code == 401
        assert blind.post(f"{base}/cancel", json={"id": first, **held}).status_code == 401
        # Who may purge the queue may call off what comes to it.
        assert writer.post(f"{base}/cancel", json={"id": first, **held}).json() == {"count": 1}
    assert http.post(f"{base}/cancel", json=held).status_code == 400
    assert http.post(f"{base}/cancel", json={"all": True, **held}).json() == {"count": 2}
    assert http.get(base, params=held).json()["pending"] == 0


def test_retries_are_listed_brought_back_and_given_up(http, channel):
    arguments = {"x-retry-delays": [HOUR_MS], "x-retry-max-attempts": 3}
    channel.queue_declare("again", durable=True, arguments=arguments)
    for number in range(3):
        channel.basic_publish("", "again", b"%d" % number)
    for method in _all(channel, "again", 3, auto_ack=False):
        channel.basic_nack(method.delivery_tag, requeue=False)
    base = f"{LEVERET}/retries/%2F/again"
    rows = _until(lambda: http.get(base).json()["rows"], 3)
    assert http.get(f"{base}/messages/{rows[0]['id']}").json()["id"] == rows[0]["id"]
    with as_user(http, "writer") as writer:
        assert len(writer.get(base).json()["rows"]) == 3
    assert http.post(f"{base}/cancel", json={"ids": [rows[0]["id"]]}).json() == {"count": 1}
    assert http.post(f"{base}/retry", json={"all": True}).json() == {"count": 2}
    assert http.post(f"{base}/retry", json={"ids": "all"}).status_code == 400
    assert http.get(f"{LEVERET}/retries/%2F/none").status_code == 404
    assert len(_all(channel, "again", 2)) == 2


@pytest.mark.covers("C-202")
def test_a_purge_takes_what_waits_where_it_is_told_to(http, channel):
    arguments = {"x-celery-eta": True, "x-retry-delays": [HOUR_MS]}
    channel.queue_declare("full", durable=True, arguments=arguments)
    headers = {"task": "t", "id": "1", "eta": "2999-01-01T00:00:00Z"}
    channel.basic_publish("", "full", b"task", pika.BasicProperties(headers=headers))
    channel.basic_publish("", "full", b"failing")
    [method] = _all(channel, "full", 1, auto_ack=False)
    channel.basic_nack(method.delivery_tag, requeue=False)
    retries, tasks = f"{LEVERET}/retries/%2F/full", f"{LEVERET}/schedules/%2F?queue=full"
    assert len(_until(lambda: http.get(retries).json()["rows"], 1)) == 1
    contents = "/queues/%2F/full/contents"
    assert http.delete(contents).status_code == 204
    assert [http.get(path).json()["pending"] for path in (retries, tasks)] == [1, 1]
    assert http.delete(contents, params={"waiting": "perhaps"}).status_code == 400
    assert http.delete(contents, params={"waiting": "true"}).status_code == 204
    assert [http.get(path).json()["pending"] for path in (retries, tasks)] == [0, 0]


def test_dead_letters_are_listed_redriven_and_deleted(http, channel):
    channel.exchange_declare("dlx", "fanout", durable=True)
    channel.queue_declare("dead", durable=True)
    channel.queue_bind("dead", "dlx")
    channel.queue_declare("work", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    for number in range(4):
        properties = pika.BasicProperties(message_id=f"m{number}", delivery_mode=2)
        channel.basic_publish("", "work", b"%d" % number, properties)
    for method in _all(channel, "work", 4, auto_ack=False):
        channel.basic_nack(method.delivery_tag, requeue=False)
    base = f"{LEVERET}/dead-letters/%2F/dead"
    rows = _until(lambda: http.get(base).json()["rows"], 4)
    assert [row["message_id"] for row in rows] == ["m0", "m1", "m2", "m3"]
    page = http.get(base, params={"limit": 3, "reason": "rejected"}).json()
    after = {"after": page["after"]}
    assert [row["message_id"] for row in http.get(base, params=after).json()["rows"]] == ["m3"]
    assert http.get(f"{base}/messages/2").json()["payload"] == "2"
    assert http.get(f"{base}/redrive").status_code == 404
    with as_user(http, "writer") as writer:
        elsewhere = {"message_ids": ["m0"], "exchange": "dlx"}
        assert writer.post(f"{base}/redrive", json={"message_ids": ["m0"]}).status_code == 401
        assert writer.post(f"{base}/redrive", json=elsewhere).status_code == 200
        assert writer.post(f"{base}/redrive/cancel").status_code == 401
    _until(lambda: [http.get(f"{base}/redrive").json()["phase"]], ["done"])
    assert http.post(f"{base}/delete", json={"message_ids": ["m3"]}).json() == {"count": 1}
    assert http.post(f"{base}/delete", json={}).status_code == 400
    assert http.post(f"{base}/redrive", json={"source": "work"}).status_code == 200
    status = _until(lambda: [http.get(f"{base}/redrive").json()["phase"]], ["done"])
    assert status == ["done"]
    assert http.post(f"{base}/redrive/rewind").status_code == 404
    assert len(_all(channel, "work", 2)) == 2  # the first went elsewhere


def _all(channel, queue, count, *, auto_ack=True):
    """Return the method frames of `count` messages that basic.get brings."""
    found = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        method, _, _ = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            found.append(method)
    return found


def _until(look, wanted):
    """Return what is seen once it is as wanted: equal, or so many; the last, where it never is."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        found = look()
        if found == wanted or len(found) == wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
