"""Dead lettering: what queues give up goes to their dead-letter exchanges, within the broker.

Called by the queues (see `leveret.core.queue.DeadLetter`). `leveret.features.deaths` decides what
a message's headers become, `leveret.core.dead_letters` writes the records. Nothing waits here: when
a call returns, the letters stand in the builders of the queues they are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.dead_letters import Letter, LetterWriter
from leveret.core.message import MadeMessage
from leveret.features.deaths import (
    SENDER_SELECTED,
    Death,
    carbon_copies,
    dead_headers,
    history_of,
    is_cycle,
    record,
)
from leveret.ports.tables import (
    MalformedFieldError,
    decode_raw_table,
    decode_table,
    encode_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from leveret.core.exchange import Exchange
    from leveret.core.queue import Queue, Reason, Window
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost
    from leveret.features.deaths import Entry
    from leveret.ports.records import BatchBuilder
    from leveret.ports.tables import RawValue

SHORT_STRING_BYTES_MAX = 255


class DeadLettering:
    """The callable that queues hand their dead messages to."""

    def __init__(self, vhosts: Mapping[str, Vhost], turn: Turn, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` is the time of a death, in milliseconds since 1970."""
        self._vhosts = vhosts
        self._turn = turn
        self._wall_ms = wall_ms

    def __call__(
        self, queue: Queue, windows: Sequence[Window], reason: Reason
    ) -> Collection[Queue]:
        """See `leveret.core.queue.DeadLetter`. Without an exchange the messages are dropped."""
        name = queue.settings.dead_letter_exchange
        vhost = self._vhosts.get(queue.definition.vhost)
        if name is None or vhost is None or name not in vhost.exchanges:
            return ()
        now = self._wall_ms()
        letters = _Letters(queue, vhost, vhost.exchanges[name], reason, now // 1000)
        writer = LetterWriter(letters.compose, now, letters.reads_headers)
        for window in windows:
            writer.write(*window)
        targets = [builder.owner for builder in writer.touched]
        for target in targets:
            self._turn.touch(target)
        return targets


class _Letters:
    """What messages become that die in one queue, of one reason, in one second."""

    def __init__(
        self, queue: Queue, vhost: Vhost, exchange: Exchange, reason: Reason, seconds: int
    ) -> None:
        self.reads_headers = not exchange.cache.cacheable
        self._queue = queue.name.encode()
        self._vhost = vhost
        self._exchange = exchange
        self._reason = reason
        self._seconds = seconds
        key = queue.settings.dead_letter_routing_key
        self._key = None if key is None else key.encode()[:SHORT_STRING_BYTES_MAX]

    def compose(
        self,
        exchange: bytes,
        routing_key: bytes,
        expiration: bytes | None,
        headers: bytes | None,
        is_dead_letter: bool,
    ) -> Letter:
        """See `LetterWriter`. An x-death that a client has published is no history."""
        own = _readable(headers)
        death = Death(
            self._queue,
            self._reason,
            self._seconds,
            exchange,
            [routing_key, *carbon_copies(own)],
            expiration,
        )
        history = record(history_of(own) if is_dead_letter else [], death)
        keys = death.routing_keys
        if self._key is not None:
            keys = [self._key]
            own.pop(SENDER_SELECTED, None)
        table = encode_table(dead_headers(own, history, death))
        return Letter(
            self._exchange.name.encode(), keys[0], table, self._targets(keys, table, history)
        )

    def _targets(
        self, keys: Sequence[bytes], table: bytes, history: Sequence[Entry]
    ) -> list[BatchBuilder]:
        """List where the letter goes: each queue once, none of them round in circles."""
        found: dict[BatchBuilder, None] = {}
        for key in keys:
            found |= dict.fromkeys(self._route(key, table))
        return [
            builder
            for builder in found
            if not is_cycle(history, builder.owner.definition.name.encode())
        ]

    def _route(self, key: bytes, table: bytes) -> Collection[BatchBuilder]:
        if not self.reads_headers:
            return self._exchange.cache.lookup(key).builders
        message = MadeMessage(self._exchange.name.encode(), key, decode_table(table))
        queues = self._vhost.route(self._exchange, key.decode(), message)
        return [queue.builder for queue in queues]


def _readable(headers: bytes | None) -> dict[str, RawValue]:
    """The fields of a table; none where it cannot be read: the letter matters more than they do."""
    if headers is None:
        return {}
    try:
        return decode_raw_table(headers)
    except MalformedFieldError:
        return {}
