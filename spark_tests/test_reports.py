"""Reports agree with the broker: dead letters with its page, usage with its counters."""

from __future__ import annotations

import csv
import json
import random
import time
from contextlib import suppress
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import AMQPError

from spark_tests.node import Node
from spark_tests.test_jobs import job

PERSISTENT = pika.BasicProperties(delivery_mode=2)
HOSTILE = "=cmd<script>alert(1)</script>"  # as a routing key


def rows_of(file):
    with file.open(newline="", encoding="utf-8-sig") as lines:
        return list(csv.DictReader(lines))


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listed(node, queue, **query):
    """Return what the broker's list of dead letters has, which its page shows."""
    path = f"leveret/dead-letters/%2F/{quote(queue)}?limit=1000"
    return node.ask("GET", path + "".join(f"&{k}={v}" for k, v in query.items()))


@pytest.fixture
def letters(node, channel, topic):
    """Make dead letters for several reasons, keys and queues; return the dead-letter queues."""
    work, short, exchange = f"{topic}-work", f"{topic}-short", f"{topic}-exchange"
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(work, durable=True, arguments={"x-dead-letter-topic": True})
    channel.queue_bind(work, exchange, "#")
    short_lived = {"x-dead-letter-topic": True, "x-message-ttl": 1}
    channel.queue_declare(short, durable=True, arguments=short_lived)
    for number in range(30):
        key = HOSTILE if number % 5 == 0 else f"key-{number % 3}"
        channel.basic_publish(exchange, key, b"x", PERSISTENT)
    for _ in range(30):
        method, _, _ = channel.basic_get(work)
        channel.basic_nack(method.delivery_tag, requeue=False)
    for _ in range(7):
        channel.basic_publish("", short, b"x", PERSISTENT)
    queues = [f"{work}.dlq", f"{short}.dlq"]
    for queue, count in zip(queues, (30, 7), strict=True):
        wait_for(lambda queue=queue, count=count: listed(node, queue)["ready"] == count)
    forged = {"x-death": [{"reason": "rejected", "queue": "forged", "count": 1}]}
    channel.basic_publish("", queues[0], b"x", pika.BasicProperties(headers=forged))
    return queues


def test_dead_letters_agree_with_the_page(node, channel, letters, tmp_path):
    told, _ = job(node, "dlq", ",".join(letters), "--to", str(tmp_path), "--json")
    summary = json.loads(told)
    pages = {queue: listed(node, queue) for queue in letters}
    assert {row["queue"]: row["messages"] for row in summary["queues"]} == {
        queue: page["ready"] + page["unacknowledged"] for queue, page in pages.items()
    }
    assert summary["reasons"] == {"rejected": 30, "expired": 7, "(no dead letter)": 1}
    found = rows_of(tmp_path / "dlq.csv")
    for reason in ("rejected", "expired"):
        for queue in letters:
            counted = sum(
                int(row["messages"])
                for row in found
                if (row["reason"], row["dead_letter_queue"]) == (reason, queue)
            )
            assert counted == len(listed(node, queue, reason=reason)["rows"])
    by_key = {row["routing_key"]: int(row["messages"]) for row in found if row["reason"]}
    assert by_key[f"'{HOSTILE}"] == 6  # no formula
    assert by_key["key-1"] == 8
    page = (tmp_path / "dlq.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def take(channel, queue):
    """Take all messages of a queue; return their bodies."""
    found = []
    while (delivery := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(delivery[2])
    return found


def test_dead_letters_agree_with_the_page_after_kills(tmp_path):
    """A message rejected right before a kill is in its queue, the dead-letter queue, or both."""
    node = Node(tmp_path / "data")
    node.directory.mkdir()
    letter = {"x-dead-letter-topic": True}
    queues = {"work": letter, "short": letter | {"x-message-ttl": 1}}
    published = set()
    with node.running():
        for turn in range(3):
            connection = pika.BlockingConnection(node.parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            for name, arguments in queues.items():
                channel.queue_declare(name, durable=True, arguments=arguments)
                for number in range(20):
                    body = b"%s %d %d" % (name.encode(), turn, number)
                    channel.basic_publish("", name, body, PERSISTENT)
                    published.add(body)
            for _ in range(15):
                method, _, _ = channel.basic_get("work")
                channel.basic_reject(method.delivery_tag, requeue=False)
            node.kill()
            with suppress(AMQPError):
                connection.close()
            node.start()
        wait_for(lambda: node.ask("GET", "queues/%2F/short")["messages"] == 0)
        letters = [f"{name}.dlq" for name in queues]
        told, _ = job(node, "dlq", ",".join(letters), "--to", str(tmp_path / "out"), "--json")
        pages = {queue: listed(node, queue)["ready"] for queue in letters}
        reasons = {
            reason: sum(len(listed(node, queue, reason=reason)["rows"]) for queue in letters)
            for reason in ("rejected", "expired")
        }
        with pika.BlockingConnection(node.parameters) as connection:
            channel = connection.channel()
            found = [body for queue in ("work", *letters) for body in take(channel, queue)]
    summary = json.loads(told)
    assert {row["queue"]: row["messages"] for row in summary["queues"]} == pages
    assert summary["reasons"] == reasons
    assert set(found) == published
    assert reasons["expired"] >= 60
    assert reasons["rejected"] > 0


def test_the_history_has_what_was_taken_away(node, spark, channel, topic, tmp_path):
    name = f"{topic}-work"
    channel.queue_declare(f"{name}.dlq", durable=True, arguments={"x-retention": "1h"})
    channel.queue_declare(name, durable=True, arguments={"x-dead-letter-topic": True})
    for _ in range(4):
        channel.basic_publish("", name, b"x", PERSISTENT)
        method, _, _ = channel.basic_get(name)
        channel.basic_reject(method.delivery_tag, requeue=False)
    wait_for(lambda: listed(node, f"{name}.dlq")["ready"] == 4)
    assert channel.basic_get(f"{name}.dlq", auto_ack=True)[0] is not None
    assert listed(node, f"{name}.dlq")["ready"] == 3
    told, _ = job(node, "dlq", f"{name}.dlq", "--history", "--to", str(tmp_path), "--json")
    assert json.loads(told)["messages"] == 4
    (row,) = spark.read.parquet(str(tmp_path / "dlq.parquet")).collect()
    assert (row.reason, row.queue, row.routing_key) == ("rejected", name, name)
    assert (row.messages, row.malformed) == (4, 0)


def test_usage_agrees_with_the_counters_after_kills(tmp_path):
    rng = random.Random(5)
    node = Node(tmp_path / "data")
    node.directory.mkdir()
    queues = {
        "orders": {"x-queue-type": "stream", "x-partitions": 2},
        "mails": {"x-retention": "1h"},
        "short": {"x-queue-type": "stream", "x-max-length-bytes": 500_000},
    }
    sent = dict.fromkeys(queues, 0)
    node.start()
    try:
        for turn in range(4):
            connection = pika.BlockingConnection(node.parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            for name, arguments in queues.items():
                if name == "short":
                    arguments |= {"x-stream-max-segment-size-bytes": 200_000}
                channel.queue_declare(name, durable=True, arguments=arguments)
                for _ in range(rng.randint(50, 150)):
                    size = 10_000 if name == "short" else 100
                    channel.basic_publish("", name, b"x" * size, PERSISTENT)
                    sent[name] += 1
            if turn == 1:
                node.ask("GET", "leveret/usage")  # writes it down
            node.kill()
            with suppress(AMQPError):
                connection.close()
            node.start()
        told, _ = job(node, "usage", "--to", str(tmp_path / "out"), "--hours", "3", "--json")
        summary = json.loads(told)
        audit = {row["queue"]: row for row in rows_of(tmp_path / "out" / "audit.csv")}
        counted = dict.fromkeys(queues, 0)
        for row in node.ask("GET", "leveret/usage?of=queue"):
            if row["name"] in counted:
                counted[row["name"]] += row["messages_in"]
    finally:
        node.stop()
    assert summary["ok"]
    assert summary["differences"] == []
    assert {name: int(audit[name]["counted"]) for name in queues} == sent == counted
    assert {name: int(audit[name]["stored"]) for name in queues} == sent
    rows = [row for row in rows_of(tmp_path / "out" / "usage.csv") if row["subject"] == "queue"]
    for name in ("orders", "mails"):
        mine = [row for row in rows if row["name"] == name]
        assert sum(int(row["log_messages"]) for row in mine) == sent[name]
        assert sum(int(row["log_bytes"]) for row in mine) == sum(int(r["bytes_in"]) for r in mine)
        assert {row["comparison"] for row in mine} <= {"agrees", "turn of the hour"}
    removed = [row for row in rows if row["name"] == "short"]
    assert sum(int(row["log_messages"]) for row in removed) < sent["short"]
    assert "partly removed" in {row["comparison"] for row in removed}
    assert "Queues that differ" in (tmp_path / "out" / "usage.html").read_text()
