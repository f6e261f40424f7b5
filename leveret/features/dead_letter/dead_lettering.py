"""Dead-lettering: publish the messages that queues discard to dead-letter exchanges or topics.

Called by the queues (see `leveret.features.dead_letter.worker.DeadLetterSink`).
`leveret.features.dead_letter.rules` computes a message's new headers,
`leveret.features.dead_letter.packing` writes the records. Nothing waits here: when a call returns,
the records are in the builders of their target queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import BLIND_COPIES, OPEN_COPIES, StoredMessage
from leveret.core.topology.predeclared import DEFAULT_EXCHANGE
from leveret.features.dead_letter.packing import DeadLetterTemplate, DeadLetterWriter
from leveret.features.dead_letter.rules import (
    Death,
    dead_headers,
    further_keys,
    history_of,
    is_cycle,
    record,
)
from leveret.features.dead_letter.topics import dead_letter_topic
from leveret.ports.tables import (
    MalformedFieldError,
    decode_raw_table,
    encode_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from leveret.core.queues.discarding import BatchSlice
    from leveret.core.queues.queue import Queue
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.core.settings.discard_reasons import Reason
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost
    from leveret.features.dead_letter.publish import DeadLetterPublish
    from leveret.features.dead_letter.rules import Entry
    from leveret.features.dead_letter.topics import DeadLetterTopics
    from leveret.ports.partitioner import RecordTarget
    from leveret.ports.tables import RawValue

SHORT_STRING_BYTES_MAX = 255


class DeadLettering:
    """Callable to which queues pass their dead messages."""

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        topics: DeadLetterTopics,
        turn: Turn,
        wall_ms: Callable[[], int],
    ) -> None:
        """Create it; `wall_ms` is the time of deaths, in ms since 1970."""
        self._vhosts = vhosts
        self._topics = topics
        self._turn = turn
        self._wall_ms = wall_ms

    def __call__(
        self,
        queue: Queue,
        slices: Sequence[BatchSlice],
        reason: Reason,
        publish: DeadLetterPublish | None = None,
    ) -> Collection[Queue]:
        """Publish dead messages, see DeadLetterSink; without an exchange they are dropped."""
        settings = queue.settings
        name, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
        vhost = self._vhosts.get(queue.definition.vhost)
        if vhost is None or vhost.queues.get(queue.definition.name) is not queue.whole:
            return ()  # its virtual host is being deleted; another one may have the name
        if name is None and reason in settings.dead_letter_topic:
            if not self._topics.is_open(queue, safely=publish is not None):
                return ()
            name, key = DEFAULT_EXCHANGE, dead_letter_topic(queue.name)
        if name is None or name not in vhost.exchanges:
            return ()
        now = self._wall_ms()
        composer = _Composer(
            queue, vhost, vhost.exchanges[name], key, reason=reason, seconds=now // 1000
        )
        route = None if composer.key_decides else composer.route
        writer = DeadLetterWriter(composer.compose, now, route, publish)
        for part in slices:
            writer.write(*part)
        if publish is not None:
            publish.deposited(writer.given, writer.unrouted)
        targets = [builder.owner for builder in writer.touched]
        for target in targets:
            self._turn.touch(target)
        return targets


class _Composer:
    """Rewriting of messages that die in one queue, for one reason, in one second."""

    def __init__(
        self,
        queue: Queue,
        vhost: Vhost,
        exchange: Exchange,
        key: str | None,
        *,
        reason: Reason,
        seconds: int,
    ) -> None:
        """Create it; without a `key` messages keep their routing keys."""
        self.key_decides = exchange.cache.cacheable
        self._queue = queue.name.encode()
        self._vhost = vhost
        self._exchange = exchange
        self._reason = reason
        self._seconds = seconds
        self._key = None if key is None else _short(key)

    def compose(
        self,
        exchange: bytes,
        routing_key: bytes,
        expiration: bytes | None,
        headers: bytes | None,
        is_dead_letter: bool,
    ) -> DeadLetterTemplate:
        """Return the template of the dead letters of a kind of record.

        An x-death published by a client is dropped.
        """
        own = _readable(headers)
        death = Death(
            self._queue,
            self._reason,
            self._seconds,
            exchange,
            [routing_key, *further_keys(own, OPEN_COPIES)],
            expiration,
        )
        history = record(history_of(own) if is_dead_letter else [], death)
        if self._key is None:
            keys = [*death.routing_keys, *further_keys(own, BLIND_COPIES)]
        else:
            keys = [self._key]
            own.pop(OPEN_COPIES, None)
            own.pop(BLIND_COPIES, None)
        table = encode_table(dead_headers(own, history, death))
        address = (self._exchange.name.encode(), keys[0])
        if not self.key_decides:
            return _RoutedTemplate(*address, table, keys, history)
        return DeadLetterTemplate(*address, table, _without_cycles(history, self._remembered(keys)))

    def _remembered(self, keys: Sequence[bytes]) -> Collection[RecordTarget]:
        """Return the builders that all messages with these keys are routed to."""
        if len(keys) == 1:
            return self._vhost.reach_by_key(self._exchange, keys[0])
        return self._routed(keys, None)

    def _routed(self, keys: Sequence[bytes], message: Message | None) -> list[RecordTarget]:
        texts = [key.decode() for key in keys]
        return [q.builder for q in self._vhost.reach(self._exchange, texts, message)]

    def route(
        self, template: DeadLetterTemplate, flags: int, header: bytes, body: bytes
    ) -> tuple[RecordTarget, ...]:
        """Return the builders that one message is routed to, without cycles."""
        assert isinstance(template, _RoutedTemplate), "compose has made it"
        exchange, key = self._exchange.name.encode(), template.keys[0]
        message = StoredMessage(exchange, key, header, body, flags)
        return tuple(_without_cycles(template.history, self._routed(template.keys, message)))


class _RoutedTemplate(DeadLetterTemplate):
    """Template whose destination depends on headers, properties or chance of each message."""

    def __init__(
        self,
        exchange: bytes,
        routing_key: bytes,
        headers: bytes,
        keys: Sequence[bytes],
        history: Sequence[Entry],
    ) -> None:
        super().__init__(exchange, routing_key, headers, ())
        self.keys = keys
        self.history = history


def _without_cycles(
    history: Sequence[Entry], found: Collection[RecordTarget]
) -> list[RecordTarget]:
    """Return `found` without queues that would cause a dead-letter cycle."""
    return [
        builder
        for builder in found
        if not is_cycle(history, builder.owner.definition.name.encode())
    ]


def _short(text: str) -> bytes:
    """Return a text cut to the size of a short string, at a character boundary."""
    return text.encode()[:SHORT_STRING_BYTES_MAX].decode(errors="ignore").encode()


def _readable(headers: bytes | None) -> dict[str, RawValue]:
    """Decode a headers table.

    Empty if malformed, since the message matters more than its headers.
    """
    if headers is None:
        return {}
    try:
        return decode_raw_table(headers)
    except MalformedFieldError:
        return {}
