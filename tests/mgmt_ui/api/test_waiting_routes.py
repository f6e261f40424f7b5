"""Schedules, retries and dead letters by HTTP, on a node."""

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.waiting import wait_until

LEVERET = "/leveret"
HOUR_MS = 3_600_000
RIGHTS = {  # to configure, write and read
    "reader": ("^$", "^$", ".*"),
    "writer": ("^$", "^amq.default$|^dlx$", ".*"),
    "blind": (".*", ".*", "^$"),
}


@pytest.fixture
def channel(live_site):
    return Client(live_site.stage).open()


def as_user(site, name):
    site.add_user(name, "management")
    site.permit(name, "/", *RIGHTS[name])
    return site.http_client("/api", name)


def take(http, queue, ackmode="ack_requeue_false"):
    """Return how many messages somebody gets who settles them all so."""
    asked = {"count": 100, "ackmode": ackmode, "encoding": "auto"}
    return len(http.post(f"/queues/%2F/{queue}/get", json=asked).json())


@pytest.mark.covers("C-202")
def test_schedules_are_listed_shown_put_off_and_called_off(http, live_site, channel):
    channel.declare("later", durable=True)
    for number in range(3):
        headers = {"x-delay": HOUR_MS * (number + 1), "x-schedule-id": f"s{number}"}
        channel.publish("later", b"body", headers=headers, delivery_mode=2)
    base = f"{LEVERET}/schedules/%2F"
    first = http.get(base, params={"limit": 2}).json()
    assert [row["id"] for row in first["rows"]] == ["s0", "s1"]
    rest = http.get(base, params={"after": first["after"]}).json()
    assert ([row["id"] for row in rest["rows"]], rest["pending"]) == (["s2"], 3)
    assert http.get(f"{base}/messages/s1").json()["id"] == "s1"
    assert http.get(f"{base}/messages/none").status_code == 404
    found = http.get(base, params={"header": "x-schedule-id=s1"}).json()["rows"]
    assert [row["headers"]["x-schedule-id"] for row in found] == ["s1"]
    with as_user(live_site, "writer") as writer:
        rows = writer.get(base).json()["rows"]
        assert all("x-schedule-id" in row["headers"] for row in rows)
        searched = {"header": "x-schedule-id=s1"}
        assert writer.get(base, params=searched).status_code == 401  # among all exchanges'
        answer = writer.get(base, params={**searched, "exchange": ""})
        assert [row["id"] for row in answer.json()["rows"]] == ["s1"]
    with as_user(live_site, "reader") as reader:
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
    assert take(http, "later") == 2


@pytest.mark.covers("C-202", "C-217")
def test_tasks_that_a_queue_holds_are_listed_shown_and_called_off(http, live_site, channel):
    channel.declare("tasks", durable=True, arguments={"x-celery-eta": True})
    for number in range(3):
        headers = {"task": "t", "id": str(number), "eta": f"2999-01-0{number + 1}T00:00:00Z"}
        channel.publish("tasks", b"body", headers=headers, delivery_mode=2)
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
    with as_user(live_site, "writer") as writer, as_user(live_site, "blind") as blind:
        assert blind.get(base).status_code == 200
        assert blind.get(base, params=held).status_code == 401
        assert blind.get(f"{base}/messages/{first}", params=held).status_code == 401
        assert blind.post(f"{base}/cancel", json={"id": first, **held}).status_code == 401
        # Who may purge the queue may call off what comes to it.
        assert writer.post(f"{base}/cancel", json={"id": first, **held}).json() == {"count": 1}
    assert http.post(f"{base}/cancel", json=held).status_code == 400
    assert http.post(f"{base}/cancel", json={"all": True, **held}).json() == {"count": 2}
    assert http.get(base, params=held).json()["pending"] == 0


def test_retries_are_listed_brought_back_and_given_up(http, live_site, channel):
    arguments = {"x-retry-delays": [HOUR_MS], "x-retry-max-attempts": 3}
    channel.declare("again", durable=True, arguments=arguments)
    for number in range(3):
        channel.publish("again", b"%d" % number)
    assert take(http, "again", "reject_requeue_false") == 3
    base = f"{LEVERET}/retries/%2F/again"
    rows = http.get(base).json()["rows"]
    assert len(rows) == 3
    assert http.get(f"{base}/messages/{rows[0]['id']}").json()["id"] == rows[0]["id"]
    with as_user(live_site, "writer") as writer:
        assert len(writer.get(base).json()["rows"]) == 3
    assert http.post(f"{base}/cancel", json={"ids": [rows[0]["id"]]}).json() == {"count": 1}
    assert http.post(f"{base}/retry", json={"all": True}).json() == {"count": 2}
    assert http.post(f"{base}/retry", json={"ids": "all"}).status_code == 400
    assert http.get(f"{LEVERET}/retries/%2F/none").status_code == 404
    assert take(http, "again") == 2


@pytest.mark.covers("C-202")
def test_a_purge_takes_what_waits_where_it_is_told_to(http, channel):
    arguments = {"x-celery-eta": True, "x-retry-delays": [HOUR_MS]}
    channel.declare("full", durable=True, arguments=arguments)
    headers = {"task": "t", "id": "1", "eta": "2999-01-01T00:00:00Z"}
    channel.publish("full", b"task", headers=headers)
    channel.publish("full", b"failing")
    assert take(http, "full", "reject_requeue_false") == 1
    retries, tasks = f"{LEVERET}/retries/%2F/full", f"{LEVERET}/schedules/%2F?queue=full"
    assert len(http.get(retries).json()["rows"]) == 1
    contents = "/queues/%2F/full/contents"
    assert http.delete(contents).status_code == 204
    assert [http.get(path).json()["pending"] for path in (retries, tasks)] == [1, 1]
    assert http.delete(contents, params={"waiting": "perhaps"}).status_code == 400
    assert http.delete(contents, params={"waiting": "true"}).status_code == 204
    assert [http.get(path).json()["pending"] for path in (retries, tasks)] == [0, 0]


def test_dead_letters_are_listed_redriven_and_deleted(http, live_site, channel):
    channel.call(commands.Exchange.Declare(exchange="dlx", exchange_type="fanout", durable=True))
    channel.declare("dead", durable=True)
    channel.call(commands.Queue.Bind(queue="dead", exchange="dlx"))
    channel.declare("work", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    for number in range(4):
        channel.publish("work", b"%d" % number, message_id=f"m{number}", delivery_mode=2)
    assert take(http, "work", "reject_requeue_false") == 4
    base = f"{LEVERET}/dead-letters/%2F/dead"
    rows = http.get(base).json()["rows"]
    assert [row["message_id"] for row in rows] == ["m0", "m1", "m2", "m3"]
    page = http.get(base, params={"limit": 3, "reason": "rejected"}).json()
    after = {"after": page["after"]}
    assert [row["message_id"] for row in http.get(base, params=after).json()["rows"]] == ["m3"]
    assert http.get(f"{base}/messages/2").json()["payload"] == "2"
    assert http.get(f"{base}/redrive").status_code == 404
    with as_user(live_site, "writer") as writer:
        elsewhere = {"message_ids": ["m0"], "exchange": "dlx"}
        assert writer.post(f"{base}/redrive", json={"message_ids": ["m0"]}).status_code == 401
        assert writer.post(f"{base}/redrive", json=elsewhere).status_code == 200
        assert writer.post(f"{base}/redrive/cancel").status_code == 401
    wait_until(lambda: http.get(f"{base}/redrive").json()["phase"] == "done")
    assert http.post(f"{base}/delete", json={"message_ids": ["m3"]}).json() == {"count": 1}
    assert http.post(f"{base}/delete", json={}).status_code == 400
    assert http.post(f"{base}/redrive", json={"source": "work"}).status_code == 200
    wait_until(lambda: http.get(f"{base}/redrive").json()["phase"] == "done")
    assert http.post(f"{base}/redrive/rewind").status_code == 404
    assert take(http, "work") == 2  # the first went elsewhere
