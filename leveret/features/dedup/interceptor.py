"""Publish interceptors for idempotent producers and exchanges' de-duplication windows.

`DedupInterceptor` has a writer for each virtual host that needs one; a virtual host without
numbered messages and exchange windows has no topics for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import ChannelError, StorageError
from leveret.features.dedup.exchange_log import SEEN_TOPIC, ExchangeDedupLog, key_in
from leveret.features.dedup.keys import text_key
from leveret.features.dedup.producers import PRODUCERS_TOPIC, Producer, Producers
from leveret.features.dedup.sequences import read_sequence_headers
from leveret.features.dedup.writer import DedupEntry, DedupWriter
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Committing
    from leveret.core.publish_interceptors import PublishContext
    from leveret.core.vhost import Vhost
    from leveret.features.dedup.sequences import SequenceHeaders

__all__ = ["DEDUP_TOPICS", "DedupInterceptor", "IdempotencyLimits"]

DEDUP_TOPICS = (PRODUCERS_TOPIC, SEEN_TOPIC)
IDLE_CHECK_MS = 60_000  # extra time before an idle publisher is forgotten


@dataclass(frozen=True, slots=True)
class IdempotencyLimits:
    """Limits, each explained in the configuration."""

    producers_max: int = 100_000
    producer_idle_ms: int = 604_800_000
    prepared_messages_max: int = 100_000
    prepared_checks_max: int = 15


class DedupInterceptor:
    """Publish interceptor (see leveret.core.publish_interceptors) and its writers."""

    def __init__(self, core: CoreServices, limits: IdempotencyLimits, keys_max: int) -> None:
        self.writers: dict[str, DedupWriter] = {}
        self._topics = core.internal_topics
        self._core = core
        self._keys_max = keys_max
        self._limits = limits
        self._idle_timer = core.timers.timer(self._forget_idle)

    # -- the step

    def intercept(self, context: PublishContext) -> Collection[Committing] | None:
        """Take a numbered or de-duplicated message. Raises ChannelError 406 and 506."""
        entry = self._entry(context)
        if entry is None:
            return None
        writer = self._writer(context.vhost)
        if entry.stated is not None:
            self._admit(writer.producers, entry.producer)
        return (writer.add(entry),)

    def would_take(self, context: PublishContext) -> bool:
        """Whether a message is numbered or de-duplicated. Raises ChannelError 406."""
        return self._entry(context) is not None

    def _entry(self, context: PublishContext) -> DedupEntry | None:
        stated = self._sequence_headers(context)
        message = context.message
        exchange = context.vhost.exchanges.get(message.exchange.decode(errors="replace"))
        key = None
        if exchange is not None and exchange.dedup_window_ms is not None:
            key = key_in(message.exchange, message)
        if stated is None and key is None:
            return None
        if context.channel.is_transactional:
            raise ChannelError(406, "no message of a transaction is numbered, or has a window")
        return DedupEntry(context, stated, key)

    @staticmethod
    def _sequence_headers(context: PublishContext) -> SequenceHeaders | None:
        if not context.requests & RecordFlag.WANTS_ORDER:
            return None
        try:
            return read_sequence_headers(context.message.headers)
        except ValueError as error:
            raise ChannelError(406, f"invalid message header: {error}") from None

    def _admit(self, producers: Producers, producer: Producer) -> None:
        """Raise 406 if there may be no more publishers."""
        if producers.get(producer) is None and len(producers) >= self._limits.producers_max:
            raise ChannelError(
                406,
                f"producer '{producer.id}': there are {len(producers)} producers already, of "
                "which none has been idle for long enough to be forgotten",
            )

    def _writer(self, vhost: Vhost) -> DedupWriter:
        writer = self.writers.get(vhost.name)
        if writer is None:
            try:
                writer = self.writers[vhost.name] = self._open(vhost)
            except StorageError as error:
                raise ChannelError(506, f"cannot remember what was published: {error}") from error
        return writer

    def _open(self, vhost: Vhost) -> DedupWriter:
        """Open the topics of a virtual host and return their writer. Raises StorageError."""
        open_log, incarnation = self._topics.open, vhost.incarnation
        producers = Producers(open_log(vhost.name, PRODUCERS_TOPIC, incarnation), self._core)
        log = open_log(vhost.name, SEEN_TOPIC, incarnation)
        seen = ExchangeDedupLog(vhost, log, self._core, self._keys_max)
        writer = DedupWriter(producers, seen, self._core, self)
        for topic in (producers, seen):
            topic.when_released(lambda _: writer.resume())
        if producers.held:
            producers.restore()
        if self._idle_timer.due_ms is None:
            self._idle_timer.set(self._core.timers.wall_ms() + IDLE_CHECK_MS)
        return writer

    # -- calls of the broker

    def forget_key(self, vhost: str, key: bytes | None) -> None:
        """Remove the key of a message that no queue has taken after all."""
        writer = self.writers.get(vhost)
        if writer is not None and key is not None:
            writer.seen.window.forget_key(text_key(key))

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Open the topics that an earlier run has left. Raises StorageError."""
        for vhost in vhosts:
            # A topic to which nothing was ever written leaves nothing behind.
            places = ((vhost.name, topic, vhost.incarnation) for topic in DEDUP_TOPICS)
            if any(self._topics.exists(*place) for place in places):
                self.writers[vhost.name] = self._open(vhost)

    def forget_vhost(self, name: str) -> None:
        """Delete the topics of a deleted virtual host."""
        writer = self.writers.pop(name, None)
        if writer is not None:
            writer.close()
            writer.producers.close()
            writer.seen.close()
            self._core.spawn(writer.producers.log.delete())
            self._core.spawn(writer.seen.log.delete())

    def _forget_idle(self) -> None:
        now_ms = self._core.timers.wall_ms()
        for writer in self.writers.values():
            writer.producers.forget_idle(now_ms - self._limits.producer_idle_ms)
        self._idle_timer.set(now_ms + IDLE_CHECK_MS)
