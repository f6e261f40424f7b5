"""SIGTERM while an operator's requests are under way: each ends, soon, and the log stays clean."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.harness.broker import BrokerProcess
from tests.support.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("processes")

AUTHORIZATION = b"Authorization: Basic " + b64encode(b"guest:guest")


def connected(broker):
    host, port = broker.addresses["http"].rsplit(":", 1)
    return socket.create_connection((host, int(port)))


@contextmanager
def asking(broker, head: str, body: bytes = b"", *, length: int | None = None, cookie: str = ""):
    """A request that was sent, whole or not, and whose answer nobody reads."""
    lines = [head.encode() + b" HTTP/1.1", b"Host: localhost", AUTHORIZATION]
    lines += [b"Cookie: " + cookie.encode()] if cookie else []
    if body or length:
        lines += [b"Content-Type: application/json"]
        lines += [b"Content-Length: %d" % (len(body) if length is None else length)]
    with connected(broker) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        yield connection


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def declare(broker, *names):
    with broker.http_client("/api") as client:
        for name in names:
            client.put(f"/queues/%2F/{name}", json={"durable": True}).raise_for_status()


@contextmanager
def a_long_listing(broker):
    queues = [
        {"name": f"queue {number}", "vhost": "/", "durable": True, "auto_delete": False}
        | {"arguments": {}}
        for number in range(3000)
    ]
    with broker.http_client("/api") as client:
        client.post("/definitions", json={"queues": queues}).raise_for_status()
    with (
        asking(broker, "GET /api/queues"),
        asking(broker, "GET /metrics/per-object"),
        asking(broker, "GET /api/definitions"),
    ):
        yield


@contextmanager
def streams_of_pages(broker):
    with Visitor(broker) as visitor:
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.client.cookies.items())
        with (
            asking(broker, "GET /live/overview", cookie=cookie) as first,
            asking(broker, "GET /live/overview", cookie=cookie),
        ):
            assert b"200" in first.recv(100)
            yield


@contextmanager
def a_redrive(broker):
    declare(broker, "q")
    with broker.http_client("/api") as client:
        client.put("/queues/%2F/q.dlq", json={"durable": True}).raise_for_status()
        asked = {"properties": {"delivery_mode": 2}, "payload_encoding": "string"}
        for number in range(50):
            asked |= {"routing_key": "q.dlq", "payload": f"{number}"}
            client.post("/exchanges/%2F/amq.default/publish", json=asked)
        wanted = {"exchange": "", "routing_key": "q", "rate": 10}
        redriven = client.post("/leveret/dead-letters/%2F/q.dlq/redrive", json=wanted)
        assert redriven.status_code < 300, redriven.text
    yield


@contextmanager
def an_upload(broker):
    with (
        asking(broker, "POST /api/definitions", b'{"queues": [', length=1_000_000),
        asking(broker, "POST /definitions/import", b"", length=1_000_000),
    ):
        yield


@contextmanager
def a_pull_that_waits(broker):
    declare(broker, "q")
    body = json.dumps({"wait_ms": 20_000}).encode()
    with (
        asking(broker, "POST /api/leveret/queues/%2F/q/receive", body),
        asking(broker, "POST /api/leveret/queues/%2F/q/receive", body),
    ):
        yield


@contextmanager
def webhooks_that_nobody_answers(broker):
    declare(broker, "q")
    rules = "/api/leveret/alert-rules/%2F"
    with silent_server() as webhook, broker.http_client(rules) as client:
        for number in range(20):
            rule = {"condition": "memory_bytes", "above": 1, "for_seconds": 0}
            rule["webhook"] = f"{webhook}{number % 7}"
            client.put(f"/r{number}", json=rule).raise_for_status()
        time.sleep(0.5)
        yield


@contextmanager
def half_requests(broker):
    with (
        connected(broker) as silent,
        connected(broker) as half,
        socket.socket(socket.AF_UNIX) as control,
        socket.socket(socket.AF_UNIX) as asked,
    ):
        half.sendall(b"GET /api/overview HTTP/1.1\r\nHost: ")
        for one in (control, asked):
            one.connect(str(broker.data / "control.sock"))
        control.sendall(b'{"operation": "queue.list"')
        asked.sendall(b'{"operation": "node.diagnose", "parameters": {}}\n' * 3)
        assert silent.fileno()
        yield


@contextmanager
def operations_in_a_row(broker):
    """A browser that goes on and on."""
    declare(broker, "q")
    stopping = threading.Event()

    def go_on():
        with suppress(httpx.HTTPError), broker.http_client("/api") as client:
            for number in range(100_000):
                if stopping.is_set():
                    return
                asked = {"arguments": {"x-max-length": number + 10}}
                client.patch("/leveret/queues/%2F/q", json=asked)
                asked = {"properties": {}, "routing_key": "q", "payload": "x"}
                asked["payload_encoding"] = "string"
                client.post("/exchanges/%2F/amq.default/publish", json=asked)

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "under_way",
    [
        a_long_listing,
        streams_of_pages,
        a_redrive,
        an_upload,
        a_pull_that_waits,
        webhooks_that_nobody_answers,
        half_requests,
        operations_in_a_row,
    ],
)
def test_a_stop_waits_for_nobody(tmp_path, under_way):
    with BrokerProcess(tmp_path / "data", http=True, alert_interval_ms=100) as broker:
        with under_way(broker):
            time.sleep(0.05)
            broker.stop()
        broker.check_untroubled()
        log = broker.log()
        for trouble in ("ERROR", "never retrieved", "was destroyed", "Exception", "never awaited"):
            assert trouble not in log, log[-4000:]
