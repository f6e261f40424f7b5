"""Queues of the load, and what is in the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pika

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pika.adapters.blocking_connection import BlockingChannel

QUORUM = {"x-queue-type": "quorum"}
# Without it, a consumer that comes while the broker does not know yet that its predecessor is gone
# is first delivered what is behind that one's messages.
ORDERED = {**QUORUM, "x-single-active-consumer": True}
PLAIN, LATE, MAILS, LEFT, VIEWS, JAVA = "plain", "late", "mails", "left", "views", "java"
QUEUES: dict[str, dict[str, Any]] = {
    PLAIN: ORDERED,
    LATE: QUORUM,
    MAILS: {**ORDERED, "x-retry-delays": [300, 1000, 3000]},
    LEFT: ORDERED,
    VIEWS: {"x-queue-type": "stream"},
    JAVA: ORDERED,
}
GROUP = "readers"
TX = "tx"  # publishes to LEFT and VIEWS at once
OF_EACH = 2  # messages of a transaction in each of its queues
CONNECTING_SECONDS = 6.0
HEARTBEAT_SECONDS = 4


class ParsedBody(NamedTuple):
    """Body of a message. `more` has what only some publishers say."""

    publisher: str
    number: int
    more: int = 0


def body_of(publisher: str, number: int, more: int = 0) -> bytes:
    return f"{publisher} {number} {more}".encode()


def parse(body: bytes) -> ParsedBody:
    publisher, number, more = body.decode().split()
    return ParsedBody(publisher, int(number), int(more))


def connected(port: int) -> pika.BlockingConnection:
    """Return a connection that notices within seconds that nobody answers."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port,
            heartbeat=HEARTBEAT_SECONDS,
            socket_timeout=CONNECTING_SECONDS,
            stack_timeout=CONNECTING_SECONDS,
            blocked_connection_timeout=10,
        )
    )


def declare(channel: BlockingChannel, names: Sequence[str] = tuple(QUEUES)) -> None:
    for name in names:
        channel.queue_declare(name, durable=True, arguments=QUEUES[name])
