"""Looking at what the broker itself has published: a queue's records, with their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.contents import decode_properties

if TYPE_CHECKING:
    from pamqp import commands

    from tests.support.stage import Stage


class Stored(NamedTuple):
    """One message of a queue."""

    exchange: str
    key: str
    properties: commands.Basic.Properties
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


def listen(stage: Stage, exchange: str, key: str = "#", queue: str = "listener") -> None:
    """Bind a new queue to an exchange, whoever may; what that brings about is forgotten."""
    vhost = stage.broker.vhosts["/"]
    vhost.declare_queue(
        queue, durable=False, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    vhost.bind_queue(queue, exchange, key, {}, None)
    heard(stage, queue)


def heard(stage: Stage, queue: str = "listener") -> list[Stored]:
    """Return what has come to the queue since the last look."""
    stage.run()
    found = stage.queue(queue)
    batches = found.log.read(found.log.first, 1 << 30) or []
    settled = found.log.settled
    messages = [
        Stored(record[3].decode(), record[4].decode(), decode_properties(record[5]), record[6])
        for batch in batches
        for record in batch.records()
        if record[0] not in settled
    ]
    found.purge()
    return messages
