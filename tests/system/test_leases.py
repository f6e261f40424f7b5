"""Leases and groups on a whole node: with pika, by HTTP, and across a kill."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import suppress

import httpx
import pika
import pytest
from pika.exceptions import AMQPError

from tests.harness.broker import BrokerProcess
from tests.harness.pika_client import await_count, connected, declare, publish
from tests.support.waiting import LIMIT_SECONDS


@pytest.fixture
def broker(tmp_path, processes):
    with BrokerProcess(tmp_path / "data", http=True, consumer_check_interval_ms=100) as broker:
        yield broker
        broker.check_untroubled()


def command(channel, key, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    channel.basic_publish("leveret.lease", key, b"", pika.BasicProperties(headers=headers))


def notice_the_end(connection):
    """Let the client see that its connection is gone, and close its sockets."""
    with suppress(AMQPError, OSError):
        while connection.is_open:
            connection.process_data_events(0.1)


def await_get(channel, queue):
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            return method, properties, body
        time.sleep(0.02)
    raise AssertionError("nothing comes")


@pytest.mark.covers("C-210")
def test_what_is_not_settled_in_time_comes_back_and_the_channel_lives(broker):
    connection, channel = connected(broker)
    declare(channel, "q", visibility_timeout=300)
    publish(channel, "q", b"job")
    late, _, _ = await_get(channel, "q")
    again, _, body = await_get(channel, "q")
    assert (body, again.redelivered) == (b"job", True)
    channel.basic_ack(late.delivery_tag)  # too late: nothing happens
    channel.basic_ack(again.delivery_tag)
    await_count(channel, "q", 0)
    connection.close()


@pytest.mark.covers("C-210")
@pytest.mark.usefixtures("processes")
def test_a_long_job_keeps_its_delivery_and_its_channel(tmp_path):
    """Far beyond both timeouts, by asking for more time now and then."""
    settings = {"consumer_timeout_ms": 1000, "consumer_check_interval_ms": 100}
    with BrokerProcess(tmp_path / "data", **settings) as broker:
        connection, channel = connected(broker)
        declare(channel, "hidden", visibility_timeout=500)
        declare(channel, "plain")
        publish(channel, "hidden", b"job")
        publish(channel, "plain", b"job")
        tags = [await_get(channel, queue)[0].delivery_tag for queue in ("hidden", "plain")]
        for _ in range(20):
            for tag in tags:
                command(channel, "extend", x_delivery_tag=tag, x_extend=1500)
            connection.process_data_events(0.15)
        for queue in ("hidden", "plain"):
            assert channel.basic_get(queue)[0] is None
        for tag in tags:
            channel.basic_ack(tag)
        await_count(channel, "plain", 0)
        connection.close()


@pytest.mark.covers("C-211")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.usefixtures("processes")
def test_groups_move_on_when_a_consumer_dies_and_when_the_node_does(tmp_path, kind):
    groups = [f"g{number}" for number in range(5)]
    bodies = [f"{groups[number % 5]} {number:03}" for number in range(100)]
    broker = BrokerProcess(tmp_path / "data")
    try:
        broker.start()
        connection, channel = connected(broker)
        declare(channel, "q", queue_type=kind, group_ordering=True)
        for body in bodies:
            properties = pika.BasicProperties(
                headers={"x-message-group": body[:2]}, delivery_mode=2
            )
            channel.basic_publish("", "q", body.encode(), properties)
        done = []

        def take(channel, count):
            """Work through `count` messages; the last ones stay unsettled."""
            channel.basic_qos(prefetch_count=3)
            out = Counter()
            for method, _, body in channel.consume("q", inactivity_timeout=5):
                assert method is not None, "nothing comes"
                out[body[:2]] += 1
                assert out[body[:2]] == 1, "one of a group"
                if count == 0:
                    return
                channel.basic_ack(method.delivery_tag)
                out[body[:2]] -= 1
                done.append(body.decode())
                count -= 1

        doomed, doomed_channel = connected(broker)
        take(doomed_channel, 10)
        doomed._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # without a goodbye
        notice_the_end(doomed)
        take(channel, 20)
        broker.kill()
        notice_the_end(connection)
        broker.start()
        connection, channel = connected(broker)
        rest = []
        while len({*done, *rest}) < len(bodies):
            method, _, body = await_get(channel, "q")
            channel.basic_ack(method.delivery_tag)
            rest.append(body.decode())
        assert rest.count(rest[0]) == 1
        for group in groups:
            of_group = [body for body in rest if body.startswith(group)]
            assert of_group == sorted(of_group)
        broker.check_untroubled()
        connection.close()
    finally:
        broker.kill()


def receive(queue, **asked):
    return queue.post("receive", json=asked).json()["messages"]


def test_receipts_are_good_until_the_node_is_killed(broker):
    connection, channel = connected(broker)
    declare(channel, "q")
    path = "/api/leveret/queues/%2F/q/"
    with broker.http_client(path) as queue:
        asked = time.monotonic()
        assert receive(queue, wait_ms=300) == []
        assert time.monotonic() - asked >= 0.3
        with pytest.raises(httpx.ReadTimeout):
            queue.post("receive", json={"wait_ms": 20_000}, timeout=0.3)  # who goes away …
        time.sleep(0.5)
        publish(channel, "q", b"1")
        publish(channel, "q", b"2")
        first, second = receive(queue, count=5, wait_ms=5000)
        assert first["payload"] == "1"  # … has taken nothing along
        handles = [first["receipt_handle"], second["receipt_handle"]]
        answer = queue.post("ack", json={"receipt_handles": handles[:1]}).json()
        assert answer["results"][0]["result"] == "ok"
        time.sleep(0.5)  # settlements are written behind
        broker.kill()
        notice_the_end(connection)
        broker.start()
        queue.base_url = f"http://{broker.addresses['http']}{path}"
        answer = queue.post("ack", json={"receipt_handles": handles}).json()
        assert [result["result"] for result in answer["results"]] == ["stale", "stale"]
        (again,) = receive(queue, count=5, wait_ms=5000)
        assert (again["payload"], again["redelivered"]) == ("2", True)


@pytest.mark.usefixtures("processes")
def test_a_node_stops_while_somebody_waits(tmp_path):
    with BrokerProcess(tmp_path / "data", http=True) as broker:
        connection, channel = connected(broker)
        declare(channel, "q")
        connection.close()
        host, port = broker.addresses["http"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as client:
            body = b'{"wait_ms": 20000}'
            client.sendall(
                b"POST /api/leveret/queues/%2F/q/receive HTTP/1.1\r\nhost: localhost\r\n"
                b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
                b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
            )
            time.sleep(0.5)
            broker.stop()
            assert client.recv(4096).endswith(b'{"messages":[]}')  # who takes a second is cut off
        broker.check_untroubled()
