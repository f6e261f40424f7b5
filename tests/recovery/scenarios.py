"""Steps with each feature. A scenario stops at each `yield`, where the node may end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pamqp import commands

from leveret.features.browse.commands import message_delete, message_edit, message_move
from leveret.features.retry.commands import retry_cancel
from leveret.mgmt_ui.operations.topology import queue_purge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.recovery.node import Node

    Scenario = Callable[[Node], Iterator[None]]

__all__ = ["SCENARIOS"]

BODIES = [b"message %d" % number for number in range(9)]


def plain(node):
    node.declare("q")
    yield
    node.publish("q", *BODIES)
    yield
    node.take("q", 2)
    yield
    node.publish("q", b"more")
    yield


def priorities(node):
    node.declare("q", max_priority=5)
    for number, body in enumerate(BODIES):
        node.publish("q", body, priority=number % 3)
    yield
    node.take("q", 2)
    yield
    node.publish("q", b"more", priority=4)
    yield


def message_groups(node):
    node.declare("q", group_ordering=True)
    for number, body in enumerate(BODIES):
        node.publish("q", body, headers={"x-message-group": f"g{number % 2}"})
    yield
    node.take("q", 3)
    yield


def expirations_and_limits(node):
    node.declare("q", max_length_bytes=90)
    for number, body in enumerate(BODIES):
        node.publish("q", body, expiration=str(3000 if number % 2 else 60_000))
    yield
    node.publish("q", b"more")
    yield


def queue_window(node):
    node.declare("q", dedup_window=30_000)
    for number, body in enumerate(BODIES):
        node.publish("q", body, message_id=str(number))
        node.advance(0.01)
    yield
    node.take("q", 6)  # consumed messages are remembered, too
    yield
    node.publish("q", b"twice", message_id="1")
    node.publish("q", b"new", message_id="new")
    yield


def window_priorities_and_expirations(node):
    node.declare("q", dedup_window=30_000, max_priority=3)
    for number, body in enumerate(BODIES):
        node.publish("q", body, message_id=str(number), priority=number % 2, expiration="60000")
    yield
    node.take("q", 3)
    yield


def exchange_window(node):
    node.declare("q")
    node.client.call(
        commands.Exchange.Declare(
            exchange="x",
            exchange_type="fanout",
            durable=True,
            arguments={"x-dedup-window": True},
        )
    )
    node.client.call(commands.Queue.Bind(queue="q", exchange="x"))
    yield
    for number, body in enumerate(BODIES):
        node.publish("", body, exchange="x", message_id=str(number))
    yield
    node.publish("", b"twice", exchange="x", message_id="3")
    yield


def idempotent_producers(node):
    node.declare("q")
    node.client.call(commands.Confirm.Select())
    for number, body in enumerate(BODIES):
        headers = {
            "x-producer-id": f"p{number % 6}",
            "x-producer-epoch": 1,
            "x-producer-seq": number // 6,
        }
        node.publish("q", body, headers=headers)
        node.client.received()
    yield
    node.publish("q", b"twice", headers=headers)
    node.client.received()
    yield


def unrouted_publishes(node):
    arguments = {"x-dedup-window": True}
    node.client.call(
        commands.Exchange.Declare(
            exchange="x", exchange_type="direct", durable=True, arguments=arguments
        )
    )
    node.client.call(commands.Confirm.Select())
    for number in range(9):
        headers = {"x-producer-id": f"p{number}", "x-producer-epoch": 1, "x-producer-seq": 0}
        mandatory = {"exchange": "x", "mandatory": number % 2 == 1}
        node.publish("k", b"nobody's", message_id=f"m{number}", **mandatory)
        node.publish("k", b"nobody's", headers=headers, **mandatory)
        node.client.received()
    yield
    node.declare("q")
    node.client.call(commands.Queue.Bind(queue="q", exchange="x", routing_key="k"))
    for number in range(9):
        node.publish("k", b"again", message_id=f"m{number}", exchange="x")
        node.client.received()
    yield


def prepared_messages(node):
    node.declare("q")
    node.declare("asked")
    for number, body in enumerate(BODIES):
        node.publish(
            "q",
            body,
            message_id=f"m{number}",
            headers={"x-prepare": True, "x-check-queue": "asked", "x-check-after": 5000},
        )
    yield
    for command, number in (("commit", 1), ("rollback", 2)):
        node.publish(
            command, b"", exchange="leveret.prepare", headers={"x-prepare-id": f"m{number}"}
        )
    yield


def transactions(node):
    node.declare("q")
    node.declare("r")
    node.publish("q", *BODIES)
    node.client.call(commands.Tx.Select())
    yield
    for tag in node.get("q", 2):
        node.client.send(commands.Basic.Ack(delivery_tag=tag))
    node.publish("r", b"first", b"second")
    node.client.call(commands.Tx.Commit())
    yield
    node.publish("r", b"third")
    node.client.call(commands.Tx.Rollback())
    yield


def retries(node):
    node.declare("q", retry_delays=[1000, 5000])
    node.publish("q", *BODIES)
    yield
    node.reject("q", 4)
    yield
    node.advance(1.1)
    yield


def key_order(node):
    node.declare("q", retry_delays=[1000, 5000], retry_keep_order="key")
    for number, body in enumerate(BODIES):
        node.publish("q", body, headers={"x-message-group": f"g{number % 3}"})
    yield
    node.reject("q", 3)
    yield
    node.advance(1.1)
    yield
    node.take("q")
    yield


def key_order_with_a_long_backlog(node):
    node.declare("q", retry_delays=[1000], retry_keep_order="key")
    for number in range(8):
        node.publish("q", b"%d" % number * 100_000, headers={"x-message-group": f"g{number}"})
    node.reject("q")
    yield


def expiring_queues(node):
    node.declare("unused", expires=1500)
    node.declare("lasting")
    node.publish("unused", *BODIES)
    yield


def celery_eta(node):
    node.declare("q", celery_eta=True)
    for number, body in enumerate(BODIES):
        moment = datetime.fromtimestamp(node.now / 1000 + number, UTC).isoformat()
        node.publish("q", body, headers={"eta": moment, "task": "t", "id": str(number)})
    yield
    node.advance(3.5)
    yield


def delayed_messages(node):
    node.declare("q")
    for number, body in enumerate(BODIES):
        headers = {"x-delay": 1000 * (number + 1)}
        if number % 2:
            headers["x-schedule-id"] = f"s{number}"
        node.publish("q", body, headers=headers)
    yield
    node.publish("q", b"instead", headers={"x-delay": 7000, "x-schedule-id": "s3"})
    yield
    node.advance(3.5)
    yield


def repeated_messages(node):
    node.declare("q")
    for number in range(8):
        headers = {"x-delay": 1000, "x-repeat-every": 2000, "x-schedule-id": f"s{number}"}
        node.publish("q", BODIES[number], headers=headers)
    yield
    for _ in range(4):
        node.advance(2)
    yield


def dead_letters(node):
    node.declare("q", dead_letter_topic=True)
    node.publish("q", *BODIES)
    yield
    node.reject("q", 5)
    yield
    node.take("q.dlq")
    yield


def erased_messages(node):
    node.declare("q", retention="14d", retry_delays=[5000, 5000], dead_letter_topic=True)
    node.declare("other", retention="14d")
    node.publish("q", *BODIES)
    node.take("q", 2)
    node.reject("q", 3)
    yield
    chosen = {"after": None, "limit": None}
    node.operate(message_delete, queue="q", select={"offsets": [0, 5]}, **chosen)
    node.operate(retry_cancel, queue="q", ids=["0"], all_=False)
    yield
    target = {"to_queue": "other", "exchange": None, "routing_key": None}
    node.operate(message_move, queue="q", select={"offsets": [6]}, **chosen, **target)
    node.operate(message_edit, queue="q", offset=7, changes={"payload": "edited"})
    yield
    node.advance(6)  # the failed ones are back
    yield
    node.operate(queue_purge, name="q", waiting=False)
    yield


def filters(node):
    node.declare("q")
    for number, body in enumerate(BODIES):
        node.publish("q", body, headers={"kind": number % 2})
    yield
    node.client.consume("q", no_ack=True, arguments={"x-filter-sql": "kind = 1"})
    node.client.received()
    node.client.call(commands.Basic.Cancel(consumer_tag="c"))
    yield


def streams(node):
    node.declare("q", queue_type="stream", dedup_window=30_000)
    for number, body in enumerate(BODIES):
        node.publish("q", body, message_id=str(number))
    yield
    node.publish("q", b"twice", message_id="4")
    yield


def single_active_consumers(node):
    node.declare("q", single_active_consumer=True)
    node.publish("q", *BODIES)
    yield
    for tag in ("first", "second"):
        node.client.consume("q", tag, no_ack=True)
        node.client.received()
    yield
    for tag in ("first", "second"):
        node.client.call(commands.Basic.Cancel(consumer_tag=tag))
    node.publish("q", *BODIES)
    yield


def quorum_returns(node):
    node.declare("q", queue_type="quorum", delivery_limit=4)
    node.publish("q", *BODIES)
    yield
    for _ in range(3):
        node.reject("q", requeue=True)
    yield
    node.take("q")
    yield


SCENARIOS: list[Scenario] = [
    plain,
    priorities,
    message_groups,
    expirations_and_limits,
    queue_window,
    window_priorities_and_expirations,
    exchange_window,
    idempotent_producers,
    unrouted_publishes,
    prepared_messages,
    transactions,
    retries,
    key_order,
    key_order_with_a_long_backlog,
    expiring_queues,
    celery_eta,
    delayed_messages,
    repeated_messages,
    dead_letters,
    erased_messages,
    filters,
    streams,
    single_active_consumers,
    quorum_returns,
]
