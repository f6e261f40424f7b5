"""Writer of messages that are numbered, or go to exchanges with a de-duplication window.

One `DedupWriter` for a virtual host. It decides about messages in order of arrival, all those of a
turn together: which are stored, duplicates, or refused. Stored messages, their keys and the
positions of their publishers are written atomically (leveret.core.logs.atomic). While one such
write is in progress the next one gathers, so that no decision depends on a write that may fail;
with many publishers the cost is that of a group commit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, cast

from leveret.core.logs.log_writer import PendingCommit
from leveret.core.publish_interceptors import REFUSED, InterceptedPublish
from leveret.core.turn import TouchedQueue
from leveret.errors import BROKER_ERROR, AmqpError, ChannelError, ConnectionClosingError
from leveret.features.dedup.exchange_log import SEEN_FLAGS, ExchangeDedupLog
from leveret.features.dedup.producers import Producer
from leveret.features.dedup.sequences import Position, Verdict, expected, judge
from leveret.ports.after_all import AfterAll
from leveret.ports.authentication import UnansweredError
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.logs.log_writer import Committing, Report, Waiter
    from leveret.core.publish_interceptors import (
        PublishContext,
        PublishInterceptor,
    )
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.features.dedup.producers import Producers
    from leveret.features.dedup.sequences import SequenceHeaders

__all__ = ["DedupEntry", "DedupWriter"]


class PublishOutcome(Enum):
    """Result for a message that is no duplicate."""

    TAKEN = 1  # by queues, or by another interceptor
    UNROUTED = 2  # no queue matches, so that it is not remembered
    REFUSED = 3  # a queue is full, or lacks copies


@dataclass(frozen=True, slots=True)
class DedupEntry:
    """Message to be stored once: as the next of its publisher, by its key, or both."""

    context: PublishContext
    stated: SequenceHeaders | None
    key: bytes | None

    @property
    def producer(self) -> Producer:
        """Publisher of a numbered message."""
        return Producer("" if self.stated is None else self.stated.producer, self.context.user)


class DedupBatch(PendingCommit):
    """Messages decided together. Their confirms wait for it."""

    def __init__(self, report: Report, *, for_features: bool = False) -> None:
        """`for_features`: other features take its messages.

        What they take stays there if the rest fails, so that no queue may be part of the rest.
        """
        super().__init__(report)
        self.for_features = for_features
        self.entries: list[DedupEntry] = []
        self.forgotten: list[Producer] = []  # publishers whose position is removed


@dataclass(slots=True)
class BatchEffects:
    """Effects of one batch, as far as decided."""

    batch: DedupBatch
    write: AtomicWrite
    now_ms: int
    undecided: deque[DedupEntry]
    moved: dict[Producer, Position] = field(default_factory=dict)
    keys: dict[bytes, None] = field(default_factory=dict)
    # For queues with limits: number of messages, and bytes of their bodies.
    filled: dict[DeclaredQueue, tuple[int, int]] = field(default_factory=dict)
    elsewhere: list[Committing] = field(default_factory=list)  # commits of other features
    is_empty: bool = True
    record: bytes = b""  # record with the publishers' new positions


class DedupWriter(TouchedQueue):
    """De-duplicating writer of one virtual host, flushed by the turn, behind `interceptor`."""

    def __init__(
        self,
        producers: Producers,
        seen: ExchangeDedupLog,
        services: CoreServices,
        interceptor: PublishInterceptor,
    ) -> None:
        self.producers = producers
        self.seen = seen
        self._services = services
        self._interceptor = interceptor
        self._gathered: deque[DedupBatch] = deque()
        self._writing: BatchEffects | None = None

    def __repr__(self) -> str:
        return f"DedupWriter({self.seen!r})"

    def add(self, entry: DedupEntry) -> Committing:
        """Add a message. The returned Committing is done when it is decided and safe.

        Raises ChannelError where another feature refuses it.
        """
        batch = self._last(for_features=self._intercepted(entry.context).would_be_taken())
        batch.entries.append(entry)
        self.resume()
        return batch

    def _last(self, *, for_features: bool | None = None) -> DedupBatch:
        """Return the batch that gathers, a new one if the last one is of another kind."""
        last = self._gathered[-1] if self._gathered else None
        if last is None or for_features not in {None, last.for_features}:
            last = DedupBatch(self._services.atomic.report, for_features=bool(for_features))
            self._gathered.append(last)
        return last

    def forget_producer(self, id_: str, user: str | None, waiter: Waiter) -> bool:
        """Remove the positions of a publisher, of one user or of all (None).

        `waiter` is notified when that is safe. Returns False if the publisher is unknown.
        """
        named = [each for each in self.producers.named(id_) if user in {None, each.user}]
        if not named:
            return False
        batch = self._last()
        batch.forgotten += named
        batch.await_commit(waiter)
        self.resume()
        return True

    def resume(self) -> None:
        """Schedule a flush: something may be decided."""
        if not self.deleted:
            self._services.turn.touch(self)

    def flush(self) -> None:
        """Decide about the gathered messages, unless a write is in progress."""
        if not self._gathered or self._writing is not None or self.deleted:
            return
        if self.producers.held or self.seen.held:
            return
        batch = self._gathered.popleft()
        services = self._services
        now_ms = services.timers.wall_ms()
        undecided = deque(batch.entries)
        effects = self._writing = BatchEffects(batch, services.atomic.begin(), now_ms, undecided)
        for producer in batch.forgotten:
            # Its record has positions of others, too, which are written again.
            effects.moved.update(self.producers.beside(producer))
        for producer in batch.forgotten:
            effects.moved.pop(producer, None)
        effects.is_empty = not effects.moved
        self._decide_all(effects)

    def _decide_all(self, effects: BatchEffects) -> None:
        """Decide about the messages of a batch, then commit that.

        A message that is refused, for whatever reason, keeps no other from being stored. If its
        publisher's rights must be asked for, all behind it wait for the answer.
        """
        while effects.undecided:
            entry = effects.undecided[0]
            channel, report = entry.context.channel, self._services.report
            try:
                self._decide(entry, effects)
            except UnansweredError as question:
                self._services.spawn(self._go_on_when_answered(question, effects))
                return
            except AmqpError as error:
                channel.close(error)
            except Exception as error:  # noqa: BLE001  # those behind it wait
                report(self, error)
                channel.close(ConnectionClosingError(541, BROKER_ERROR))
            effects.undecided.popleft()
        if effects.elsewhere:
            # Other features must be safe first: a crash in between then stores a message twice; in
            # the other order it would be lost.
            safe = AfterAll(len(effects.elsewhere), partial(self._kept_elsewhere, effects))
            for committing in effects.elsewhere:
                committing.await_commit(safe)
        else:
            self._commit(effects)

    async def _go_on_when_answered(self, question: UnansweredError, effects: BatchEffects) -> None:
        await question.ask()
        if effects is self._writing:
            self._decide_all(effects)

    def pump(self) -> bool:
        """Deliver nothing."""
        return False

    # -- deciding

    def _decide(self, entry: DedupEntry, effects: BatchEffects) -> None:
        stated, key = entry.stated, entry.key
        if stated is not None and not self._is_next(entry, stated, effects):
            return
        exchange = entry.context.message.exchange
        if key is not None and (
            key in effects.keys or self.seen.is_known(exchange, key, effects.now_ms)
        ):
            name = exchange.decode()
            self.seen.duplicates[name] = self.seen.duplicates.get(name, 0) + 1
            self._services.feature_counters.duplicates += 1
        else:
            outcome = self._store(entry.context, effects)
            if outcome is PublishOutcome.REFUSED:
                return
            if outcome is PublishOutcome.UNROUTED and entry.context.mandatory:
                return  # the publisher is notified and may send it again
            if outcome is PublishOutcome.TAKEN and key is not None:
                effects.keys[key] = None
                effects.is_empty = False
        if stated is not None:
            effects.moved[entry.producer] = Position(stated.epoch, stated.sequence)
            effects.is_empty = False

    def _is_next(self, entry: DedupEntry, stated: SequenceHeaders, effects: BatchEffects) -> bool:
        """Whether a message is the next of its publisher. Raises ChannelError 406."""
        known = effects.moved.get(entry.producer) or self.producers.get(entry.producer)
        verdict = judge(known, stated)
        if verdict is Verdict.SEEN:
            self.producers.duplicates += 1
            self._services.feature_counters.duplicates += 1
        elif verdict is Verdict.FENCED and known is not None:
            raise ChannelError(
                406,
                f"producer '{stated.producer}' has begun epoch {known.epoch}: "
                f"epoch {stated.epoch} is fenced off",
            )
        elif verdict is Verdict.GAP:
            context = entry.context
            if not context.channel.confirms_publishes:
                raise ChannelError(
                    406,
                    f"producer '{stated.producer}': expected sequence "
                    f"{expected(known, stated.epoch)}, got {stated.sequence}",
                )
            context.channel.refused(context.tag, context.tag + 1)
        return verdict is Verdict.NEXT

    def _store(self, context: PublishContext, effects: BatchEffects) -> PublishOutcome:
        """Store a message, or return it if it is unroutable. Raises ChannelError."""
        message = context.message
        services, vhost = self._services, context.vhost
        taken = self._intercepted(context).intercept()
        if taken is REFUSED:
            context.channel.refused(context.tag, context.tag + 1)
            return PublishOutcome.REFUSED
        if taken is not None:
            effects.elsewhere += taken
            return PublishOutcome.TAKEN
        queues = self._route(context)
        if vhost.traced:
            names = [queue.name for queue in queues]
            services.tracer.published(vhost, message, context.keys, names, context.channel.origin)
        if not self._have_room(queues, context, effects):
            context.channel.refused(context.tag, context.tag + 1)
            return PublishOutcome.REFUSED
        for queue in queues:
            effects.write.publish(
                queue,
                message.flags & RecordFlag.STORED,
                message.exchange,
                message.routing_key,
                message.header,
                message.body,
            )
            effects.is_empty = False
        if queues:
            return PublishOutcome.TAKEN
        if context.mandatory and context.channel.alive:
            context.channel.send_back(message)
        return PublishOutcome.UNROUTED

    def _intercepted(self, context: PublishContext) -> InterceptedPublish:
        """Return a message as the other features that want to see it look at it."""
        steps = self._services.publish_interceptors.for_publish(
            context.vhost, context.message.exchange, context.requests
        )
        others = [step for step in steps if step is not self._interceptor]
        return InterceptedPublish(context, others)

    @staticmethod
    def _route(context: PublishContext) -> list[DeclaredQueue]:
        """Return the queues of a message, including those of alternate exchanges."""
        vhost, message = context.vhost, context.message
        exchange = vhost.exchanges.get(message.exchange.decode())
        if exchange is None:
            return []  # deleted since the publish
        keys = [key.decode(errors="replace") for key in context.keys]
        return cast("list[DeclaredQueue]", vhost.route(exchange, keys, message))

    @staticmethod
    def _have_room(
        queues: list[DeclaredQueue], context: PublishContext, effects: BatchEffects
    ) -> bool:
        """Whether every queue can take one more.

        One that is full or lacks copies would have the messages of all others refused as well. What
        other features have stored by then would be stored again, each time that it is repeated.
        """
        if any(queue.lacks_copies for queue in queues):
            return False
        filled = {}
        for queue in queues:
            if queue.settings.rejects:
                count, body_bytes = effects.filled.get(queue, (0, 0))
                filled[queue] = count + 1, body_bytes + len(context.message.body)
        if not all(queue.has_room(*more) for queue, more in filled.items()):
            return False
        effects.filled.update(filled)
        return True

    # -- writing

    def _commit(self, effects: BatchEffects) -> None:
        if effects.is_empty:
            self.done(failed=False)
            return
        for key in effects.keys:
            header = ExchangeDedupLog.header(key)
            effects.write.publish(self.seen, SEEN_FLAGS, b"", b"", header, b"")
        if effects.moved:
            effects.record = self.producers.record(effects.moved, effects.now_ms)
            effects.write.publish(
                self.producers, RecordFlag.PERSISTENT, b"", b"", b"", effects.record
            )
        effects.write.commit(self)

    def done(self, *, failed: bool) -> None:
        """Handle the end of the atomic write, as a Waiter."""
        effects, self._writing = self._writing, None
        if effects is None:
            return
        if not failed:
            if effects.record:
                self.producers.apply(effects.record)
            for producer in effects.batch.forgotten:
                self.producers.forget(producer)
        effects.batch.finish(failed=failed)
        self.resume()

    def _kept_elsewhere(self, effects: BatchEffects, *, failed: bool) -> None:
        """Handle the commits of other features, or that one of them has failed."""
        if effects is not self._writing:
            return
        if failed:
            # Nothing else is written either: publishers send all of it again.
            self.done(failed=True)
        else:
            self._commit(effects)

    def close(self) -> None:
        """Stop: the virtual host was deleted; waiters are confirmed, as for deleted queues."""
        self.deleted = True
        batches = [*self._gathered, *([] if self._writing is None else [self._writing.batch])]
        self._gathered.clear()
        self._writing = None
        for batch in batches:
            batch.finish(failed=False)
