"""Publishing and getting by HTTP, as a client would, and refused as a client would be."""

import base64
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.harness.broker import BrokerProcess

MESSAGE = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
GET = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("node") / "data") as broker:
        yield re.findall(r"^ready .*http=(\S+)", broker.log(), re.MULTILINE)[-1]


@pytest.fixture
def http(address):
    with httpx.Client(
        base_url=f"http://{address}/api", auth=("guest", "guest"), timeout=60
    ) as client:
        client.delete("/queues/%2F/q")
        assert client.put("/queues/%2F/q", json={"durable": True}).status_code == 201
        yield client


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


def test_guesses_are_counted_however_many_come_at_once(address, http):
    # Of a user who is not there: nobody who tests something else is kept waiting.
    def guess(number):
        asked = {"username": "nobody", "password": f"bad{number}"}
        if number % 2:
            return httpx.post(f"http://{address}/api/login", data=asked, timeout=60)
        return httpx.get(f"http://{address}/api/whoami", auth=tuple(asked.values()), timeout=60)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(guess, range(32)))
    counted = Counter(answer.status_code for answer in answers)
    assert counted[401] + counted[429] == 32
    assert counted[401] < 16
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"] == "too_many_requests"
    assert http.get("/whoami").status_code == 200
    feature_counters = http.get(f"/auth/attempts/{http.get('/overview').json()['node']}").json()
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
    http.delete("/queues/%2F/full")
    http.put("/queues/%2F/full", json={"durable": True, "arguments": arguments})
    assert publish(http, routing_key="full").json() == {"routed": True}
    answer = publish(http, routing_key="full")
    assert (answer.status_code, answer.json()["reason"]) == (
        400,
        "rejected Unable to publish message. Check queue limits.",
    )


def limit(http, **values):
    """Rates of virtual host /."""
    for name in ("publish-rate", "publish-burst", "consume-rate"):
        http.delete(f"/vhost-limits/%2F/{name}")
    for name, value in values.items():
        path = f"/vhost-limits/%2F/{name.replace('_', '-')}"
        assert http.put(path, json={"value": value}).status_code in {201, 204}


def told_to_wait(answer):
    """For how many seconds."""
    assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
    return int(answer.headers["retry-after"])


def test_who_is_over_a_rate_is_told_when_to_come_again(http):
    limit(http, publish_rate=0)
    try:
        assert told_to_wait(publish(http)) == 60
    finally:
        limit(http)
    assert publish(http).json() == {"routed": True}
    assert len(get(http).json()) == 1


def test_a_short_wait_for_a_rate_is_waited(http):
    limit(http, publish_rate=2, publish_burst=1)
    try:
        with ThreadPoolExecutor(8) as threads:  # they take four seconds
            answers = list(threads.map(lambda _: publish(http), range(8)))
    finally:
        limit(http)
    counted = Counter(answer.status_code for answer in answers)
    assert counted.keys() <= {200, 429}
    assert counted[200] >= 1
    assert all(told_to_wait(each) >= 1 for each in answers if each.status_code == 429)
    assert len(get(http).json()) == counted[200]  # who is refused has published nothing


def test_the_rate_of_a_queue_holds_for_http(http):
    http.delete("/queues/%2F/slow")
    slow = {"durable": True, "arguments": {"x-publish-rate": 1, "x-publish-burst": 1}}
    assert http.put("/queues/%2F/slow", json=slow).status_code == 201
    answers = [publish(http, routing_key="slow") for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused
    assert all(told_to_wait(each) >= 1 for each in refused)
    limit(http, consume_rate=0)
    try:
        assert told_to_wait(get(http, "slow")) == 60
    finally:
        limit(http)
    assert len(get(http, "slow", count=100).json()) == 40 - len(refused)
    http.delete("/queues/%2F/slow")


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


def test_who_may_not_is_refused(http, address):
    http.put("/exchanges/%2F/amq.direct", json={"type": "direct", "durable": True})
    wrong = ("guest", "wrong")
    with httpx.Client(base_url=f"http://{address}/api", auth=wrong, timeout=60) as stranger:
        assert publish(stranger).status_code == 401
        assert get(stranger).status_code == 401
