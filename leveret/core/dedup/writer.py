"""Stores messages once that their publishers number, or that go to exchanges with a window.

One `DedupWriter` for a virtual host. It decides about messages in the order in which they came, all
those of a turn together: what is stored, what was seen before, what is refused. The messages that
are stored, their keys and the places of their publishers are written at once
(leveret.core.logs.atomic). While one such write is under way the next one gathers, so that nothing
is ever decided by what may yet come to nothing; with many publishers the cost is that of a group
commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, cast

from leveret.core.dedup.exchange_log import SEEN_FLAGS, ExchangeDedupLog
from leveret.core.dedup.producers import Producer
from leveret.core.logs.log_writer import tell_each
from leveret.core.turn import TouchedQueue
from leveret.errors import ChannelError
from leveret.features.sequences import Position, Verdict, expected, judge
from leveret.ports.records import BatchBuilder, RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.dedup.producers import Producers
    from leveret.core.logs.atomic import AtomicWrite, AtomicWrites
    from leveret.core.logs.log_writer import Committing, Report, Waiter
    from leveret.core.publish_interceptors import (
        PublishContext,
        PublishInterceptor,
        PublishInterceptors,
    )
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.telemetry.feature_counters import FeatureCounters
    from leveret.core.telemetry.trace import Tracer
    from leveret.core.turn import Turn
    from leveret.features.sequences import Claim

__all__ = ["DedupWriter", "DedupWriterServices", "Entry"]


class Fate(Enum):
    """What became of a message that was not seen before."""

    TAKEN = 1  # by queues, or by another feature
    UNROUTED = 2  # no queue is for it: so it was not seen
    REFUSED = 3  # a queue has no room for it


@dataclass(frozen=True, slots=True)
class DedupWriterServices:
    """What the writers of a broker share. `own` are the steps that lead here."""

    atomic: AtomicWrites
    turn: Turn
    tracer: Tracer
    interceptors: PublishInterceptors
    own: list[PublishInterceptor]
    wall_ms: Callable[[], int]
    feature_counters: FeatureCounters


@dataclass(frozen=True, slots=True)
class Entry:
    """One message that is to be stored once: as its publisher's next, or by its key, or both."""

    context: PublishContext
    claim: Claim | None
    key: bytes | None

    @property
    def producer(self) -> Producer:
        """Who numbers, where there is a claim."""
        return Producer("" if self.claim is None else self.claim.producer, self.context.user)


@dataclass(eq=False, slots=True)
class Batch:
    """Messages that are decided about together. Their confirms wait for it (see Committing)."""

    entries: list[Entry] = field(default_factory=list)
    forgotten: list[Producer] = field(default_factory=list)  # who may begin anew
    waiters: list[Waiter] = field(default_factory=list)
    outcome: bool | None = None  # whether it has failed; None: it is under way

    def await_commit(self, waiter: Waiter) -> None:
        """See Committing."""
        if self.outcome is None:
            self.waiters.append(waiter)
        else:
            waiter.done(failed=self.outcome)

    def finish(self, report: Report, *, failed: bool) -> None:
        """All of it is safe, or nothing of it was stored; `report` as of `tell_each`."""
        self.outcome = failed
        waiters, self.waiters = self.waiters, []
        tell_each(waiters, report, failed=failed)


@dataclass(slots=True)
class Plan:
    """What one batch does, as far as it is decided."""

    batch: Batch
    write: AtomicWrite
    now_ms: int
    moved: dict[Producer, Position] = field(default_factory=dict)
    keys: dict[bytes, None] = field(default_factory=dict)
    filled: dict[OpenQueue, BatchBuilder] = field(default_factory=dict)  # where room is limited
    elsewhere: list[Committing] = field(default_factory=list)  # with other features
    is_empty: bool = True
    record: bytes = b""  # of the publishers' new places


class DedupWriter(TouchedQueue):
    """Decides and writes for one virtual host; the turn works it off."""

    def __init__(
        self, producers: Producers, seen: ExchangeDedupLog, services: DedupWriterServices
    ) -> None:
        self.producers = producers
        self.seen = seen
        self._services = services
        self._next: Batch | None = None
        self._writing: Plan | None = None
        self._awaited = 0  # of `elsewhere`

    def __repr__(self) -> str:
        return f"DedupWriter({self.seen!r})"

    def add(self, entry: Entry) -> Committing:
        """Take a message. What comes back says when its fate is decided, and safe."""
        if self._next is None:
            self._next = Batch()
        self._next.entries.append(entry)
        self.resume()
        return self._next

    def forget_producer(self, id_: str, user: str | None, waiter: Waiter) -> bool:
        """Let a publisher begin anew, of whichever users have one of this id; None: of all.

        `waiter` is told when that is so. False: it is unknown.
        """
        named = [each for each in self.producers.named(id_) if user in {None, each.user}]
        if not named:
            return False
        if self._next is None:
            self._next = Batch()
        self._next.forgotten += named
        self._next.waiters.append(waiter)
        self.resume()
        return True

    def resume(self) -> None:
        """Something may be decided."""
        if not self.deleted:
            self._services.turn.touch(self)

    def flush(self) -> None:
        """Decide about what has come, unless a write is under way."""
        if self._next is None or self._writing is not None or self.deleted:
            return
        if self.producers.held or self.seen.held:
            return
        batch, self._next = self._next, None
        services = self._services
        plan = self._writing = Plan(batch, services.atomic.begin(), services.wall_ms())
        for producer in batch.forgotten:
            # Its record tells of others, too: it is written again without it.
            plan.moved.update(self.producers.beside(producer))
        for producer in batch.forgotten:
            plan.moved.pop(producer, None)
        plan.is_empty = not plan.moved
        for entry in batch.entries:
            try:
                self._decide(entry, plan)
            except ChannelError as error:
                entry.context.channel.close(error)
        if plan.elsewhere:
            # What other features keep must be safe first: should the node die in between, it is
            # kept twice; the other way round it would be lost.
            self._awaited = len(plan.elsewhere)
            for committing in plan.elsewhere:
                committing.await_commit(Elsewhere(self, plan))
        else:
            self._commit(plan)

    def pump(self) -> bool:
        """Nothing is delivered here."""
        return False

    # -- deciding

    def _decide(self, entry: Entry, plan: Plan) -> None:
        claim, key = entry.claim, entry.key
        if claim is not None and not self._is_next(entry, claim, plan):
            return
        exchange = entry.context.message.exchange
        if key is not None and (key in plan.keys or self.seen.is_known(exchange, key, plan.now_ms)):
            name = exchange.decode()
            self.seen.duplicates[name] = self.seen.duplicates.get(name, 0) + 1
            self._services.feature_counters.duplicates += 1
        else:
            fate = self._store(entry.context, plan)
            if fate is Fate.REFUSED:
                return
            if fate is Fate.UNROUTED and entry.context.mandatory:
                return  # its publisher hears of that, and may send it again
            if fate is Fate.TAKEN and key is not None:
                plan.keys[key] = None
                plan.is_empty = False
        if claim is not None:
            plan.moved[entry.producer] = Position(claim.epoch, claim.sequence)
            plan.is_empty = False

    def _is_next(self, entry: Entry, claim: Claim, plan: Plan) -> bool:
        """Whether a message is its publisher's next. Raises ChannelError 406."""
        known = plan.moved.get(entry.producer) or self.producers.get(entry.producer)
        verdict = judge(known, claim)
        if verdict is Verdict.SEEN:
            self.producers.duplicates += 1
            self._services.feature_counters.duplicates += 1
        elif verdict is Verdict.FENCED and known is not None:
            raise ChannelError(
                406,
                f"producer '{claim.producer}' has begun epoch {known.epoch}: "
                f"nothing of epoch {claim.epoch} is taken any more",
            )
        elif verdict is Verdict.GAP:
            context = entry.context
            if not context.channel.confirms_publishes:
                raise ChannelError(
                    406,
                    f"producer '{claim.producer}': expected sequence "
                    f"{expected(known, claim.epoch)}, got {claim.sequence}",
                )
            context.channel.refused(context.tag, context.tag + 1)
        return verdict is Verdict.NEXT

    def _store(self, context: PublishContext, plan: Plan) -> Fate:
        """Let a message be stored, or go back where no queue is for it. Raises ChannelError."""
        message = context.message
        services, vhost = self._services, context.vhost
        for step in services.interceptors.for_publish(vhost, message.exchange, context.requests):
            if step not in services.own and (taken := step.intercept(context)) is not None:
                plan.elsewhere += taken
                return Fate.TAKEN
        queues = self._route(context)
        if vhost.traced:
            names = [queue.name for queue in queues]
            services.tracer.published(vhost, message, context.keys, names, context.channel.origin)
        if not self._have_room(queues, context, plan):
            context.channel.refused(context.tag, context.tag + 1)
            return Fate.REFUSED
        for queue in queues:
            plan.write.publish(
                queue,
                message.flags & RecordFlag.STORED,
                message.exchange,
                message.routing_key,
                message.header,
                message.body,
            )
            plan.is_empty = False
        if queues:
            return Fate.TAKEN
        if context.mandatory and context.channel.alive:
            context.channel.send_back(message)
        return Fate.UNROUTED

    @staticmethod
    def _route(context: PublishContext) -> list[OpenQueue]:
        """The queues that a message is for now, by its alternate exchange where it has one."""
        vhost, message = context.vhost, context.message
        exchange = vhost.exchanges.get(message.exchange.decode())
        if exchange is None:
            return []  # deleted since it was published to
        keys = [key.decode(errors="replace") for key in context.keys]
        return cast("list[OpenQueue]", vhost.route(exchange, keys, message))

    @staticmethod
    def _have_room(queues: list[OpenQueue], context: PublishContext, plan: Plan) -> bool:
        """Whether every queue takes one more: one that is full must not keep all others waiting."""
        message, ok = context.message, True
        for queue in queues:
            if queue.settings.rejects:
                filled = plan.filled.setdefault(queue, BatchBuilder())
                filled.add(
                    message.flags & RecordFlag.STORED,
                    plan.now_ms,
                    message.exchange,
                    message.routing_key,
                    message.header,
                    message.body,
                )
                ok = ok and queue.has_room(filled)
        return ok

    # -- writing

    def _commit(self, plan: Plan) -> None:
        if plan.is_empty:
            self.done(failed=False)
            return
        for key in plan.keys:
            header = ExchangeDedupLog.header(key)
            plan.write.publish(self.seen, SEEN_FLAGS, b"", b"", header, b"")
        if plan.moved:
            plan.record = self.producers.record(plan.moved, plan.now_ms)
            plan.write.publish(self.producers, RecordFlag.PERSISTENT, b"", b"", b"", plan.record)
        plan.write.commit(self)

    def done(self, *, failed: bool) -> None:
        """See Waiter: the write has taken effect, or nothing of it has."""
        plan, self._writing = self._writing, None
        if plan is None:
            return
        if not failed:
            if plan.record:
                self.producers.learn(plan.record)
            for producer in plan.batch.forgotten:
                self.producers.forget(producer)
        plan.batch.finish(self._services.atomic.report, failed=failed)
        self.resume()

    def kept_elsewhere(self, plan: Plan, *, failed: bool) -> None:
        """One of the topics of other features has committed, or has not."""
        if plan is not self._writing:
            return
        if failed:
            # Nothing of the rest is written either: all of it comes again.
            self.done(failed=True)
            return
        self._awaited -= 1
        if not self._awaited:
            self._commit(plan)

    def close(self) -> None:
        """The virtual host is deleted: whoever waits hears yes, as of deleted queues."""
        self.deleted = True
        batches = [self._next, None if self._writing is None else self._writing.batch]
        self._next = self._writing = None
        for batch in batches:
            if batch is not None:
                batch.finish(self._services.atomic.report, failed=False)


class Elsewhere:
    """Waits for what another feature keeps."""

    def __init__(self, writer: DedupWriter, plan: Plan) -> None:
        self._writer = writer
        self._plan = plan

    def done(self, *, failed: bool) -> None:
        """See Waiter."""
        self._writer.kept_elsewhere(self._plan, failed=failed)
