"""Publishing and getting by HTTP, as a client would, and refused as a client would be."""

import asyncio
import base64
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.amqp import in_process
from tests.harness.broker import BrokerProcess
from tests.support.waiting import LIMIT_SECONDS

MESSAGE = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
GET = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}


@pytest.fixture
def http(http):
    assert http.put("/queues/%2F/q", json={"durable": True}).status_code == 201
    return http


def publish(http, exchange="amq.default", **changes):
    content = json.dumps({**MESSAGE, **changes})
    return http.post(f"/exchanges/%2F/{exchange}/publish", content=content)


def get(http, queue="q", **changes):
    return http.post(f"/queues/%2F/{queue}/get", json={**GET, **changes})


def test_octets_of_headers_go_round_and_lose_nothing(http):
    headers = {"octets": {"$base64": "//4A"}, "nested": {"list": [{"$base64": "gA=="}, "é"]}}
    assert publish(http, properties={"headers": headers}).json() == {"routed": True}
    browsed = http.get("/leveret/queues/%2F/q/messages").json()["messages"]
    [pulled] = http.post("/leveret/queues/%2F/q/receive", json={}).json()["messages"]
    handles = {"receipt_handles": [pulled["receipt_handle"]]}
    http.post("/leveret/queues/%2F/q/nack", json=handles)
    [got] = get(http).json()
    for shown in (*browsed, pulled, got):
        assert shown["properties"]["headers"] == headers
    assert publish(http, properties={"headers": {"$base64": "//4A"}}).status_code == 400


@pytest.mark.usefixtures("processes")
def test_guesses_are_counted_however_many_come_at_once(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker:

        def guess(number):
            # Of a user who is not there: who looks at what was counted is not kept waiting.
            asked = {"username": "nobody", "password": f"bad{number}"}
            with broker.http_client("/api", user=None) as client:
                if number % 2:
                    return client.post("/login", data=asked)
                return client.get("/whoami", auth=tuple(asked.values()))

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(guess, range(32)))
        counted = Counter(answer.status_code for answer in answers)
        assert counted[401] + counted[429] == 32
        assert counted[401] < 16
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"] == "too_many_requests"
        with broker.http_client("/api") as http:
            assert http.get("/whoami").status_code == 200
            node = http.get("/overview").json()["node"]
            feature_counters = http.get(f"/auth/attempts/{node}").json()
        assert feature_counters[0]["auth_attempts_failed"] >= 32


@pytest.mark.covers("B-442")
def test_a_message_goes_there_and_back(http):
    properties = {
        "content_type": "text/plain",
        "headers": {"n": 1, "deep": {"list": [1.5, None, True]}},
        "delivery_mode": 2,
        "priority": 3,
        "timestamp": 1_700_000_000,
        "type": "greeting",
    }
    assert publish(http, properties=properties).json() == {"routed": True}
    [message] = get(http).json()
    assert message == {
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 0,
        "properties": properties,
        "payload": "hello",
        "payload_encoding": "string",
    }
    assert get(http).json() == []


@pytest.mark.covers("B-442")
def test_bytes_travel_as_base64(http):
    payload = base64.b64encode(b"\xff\x00").decode()
    publish(http, payload=payload, payload_encoding="base64")
    [message] = get(http, ackmode="ack_requeue_true").json()
    assert (message["payload"], message["payload_encoding"]) == (payload, "base64")
    [message] = get(http, truncate=1).json()
    assert message["payload"] == base64.b64encode(b"\xff").decode()
    assert message["payload_bytes"] == 2


@pytest.mark.covers("B-442")
def test_what_nobody_takes_is_not_routed(http):
    assert publish(http, routing_key="nowhere").json() == {"routed": False}


@pytest.mark.covers("B-442")
@pytest.mark.parametrize(
    ("ackmode", "left"),
    [
        ("ack_requeue_true", True),
        ("reject_requeue_true", True),
        ("ack_requeue_false", False),
        ("reject_requeue_false", False),
    ],
)
def test_what_was_got_stays_or_goes(http, ackmode, left):
    publish(http)
    assert len(get(http, ackmode=ackmode).json()) == 1
    again = get(http).json()
    assert [message["redelivered"] for message in again] == [True] * left


def test_features_of_messages_hold(http):
    publish(http, properties={"headers": {"x-delay": 3_600_000}})
    assert get(http).json() == []
    answer = publish(http, properties={"headers": {"x-delay": "soon"}})
    assert answer.status_code == 400
    assert answer.json()["reason"].startswith("406 PRECONDITION_FAILED - ")


def test_a_full_queue_refuses(http):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    http.put("/queues/%2F/full", json={"durable": True, "arguments": arguments})
    assert publish(http, routing_key="full").json() == {"routed": True}
    answer = publish(http, routing_key="full")
    assert (answer.status_code, answer.json()["reason"]) == (
        400,
        "rejected Unable to publish message. Check queue limits.",
    )


def limit(http, **values):
    """Rates of virtual host /."""
    for name, value in values.items():
        path = f"/vhost-limits/%2F/{name.replace('_', '-')}"
        assert http.put(path, json={"value": value}).status_code in {201, 204}


def told_to_wait(answer):
    """For how many seconds."""
    assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
    return int(answer.headers["retry-after"])


def test_who_is_over_a_rate_is_told_when_to_come_again(http):
    limit(http, publish_rate=0)
    assert told_to_wait(publish(http)) == 60
    http.delete("/vhost-limits/%2F/publish-rate")
    assert publish(http).json() == {"routed": True}
    assert len(get(http).json()) == 1


def test_a_short_wait_for_a_rate_is_waited(http, live_site, monkeypatch):
    monkeypatch.setattr(
        in_process, "HELD_SECONDS_MAX", LIMIT_SECONDS
    )  # while the node's clock runs
    limit(http, publish_rate=2, publish_burst=1)
    path = "/api/exchanges/%2F/amq.default/publish"

    async def publish_eight():
        return await asyncio.gather(*(live_site.ask("POST", path, MESSAGE) for _ in range(8)))

    began = live_site.stage.now
    answers = live_site.run(publish_eight())
    assert [answer.status_code for answer in answers] == [200] * 8
    assert live_site.stage.now >= began + 3_500
    assert len(get(http).json()) == 8


def test_the_rate_of_a_queue_holds_for_http(http, monkeypatch):
    monkeypatch.setattr(in_process, "HELD_SECONDS_MAX", 0)
    slow = {"durable": True, "arguments": {"x-publish-rate": 1, "x-publish-burst": 1}}
    assert http.put("/queues/%2F/slow", json=slow).status_code == 201
    answers = [publish(http, routing_key="slow") for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused
    assert all(told_to_wait(each) >= 1 for each in refused)
    limit(http, consume_rate=0)
    assert told_to_wait(get(http, "slow")) == 60
    http.delete("/vhost-limits/%2F/consume-rate")
    assert len(get(http, "slow", count=100).json()) == 40 - len(refused)


def test_a_large_message(http):
    payload = "x" * 3_000_000
    assert publish(http, payload=payload).json() == {"routed": True}
    assert get(http).json()[0]["payload"] == payload


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": None},
        {"payload": 5},
        {"payload_encoding": "rot13"},
        {"payload": "%", "payload_encoding": "base64"},
        {"payload": "\ud800"},
        {"routing_key": None},
        {"routing_key": "x" * 256},
        {"properties": 5},
        {"properties": {"delivery_mode": "2"}},
        {"properties": {"priority": 256}},
        {"properties": {"headers": {"n": 2**70}}},
        {"properties": {"no_such": 1}},
    ],
)
def test_what_cannot_be_published_is_refused(http, changes):
    answer = publish(http, **changes)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "changes", [{"count": 0}, {"count": "one"}, {"ackmode": "x"}, {"encoding": 1}, {"truncate": -1}]
)
def test_what_makes_no_sense_is_not_got(http, changes):
    assert get(http, **changes).status_code == 400


def test_where_there_is_nothing_404(http):
    assert publish(http, "no.such").status_code == 404
    assert get(http, "no.such").status_code == 404
    assert http.post("/exchanges/no/x/publish", json=MESSAGE).status_code == 404


def test_who_may_not_is_refused(http, live_site):
    http.put("/exchanges/%2F/amq.direct", json={"type": "direct", "durable": True})
    with live_site.http_client("/api", password="wrong") as stranger:
        assert publish(stranger).status_code == 401
        assert get(stranger).status_code == 401
