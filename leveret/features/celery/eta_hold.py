"""Celery tasks with an ETA, delayed beside their queue until it has come (`x-celery-eta`).

A worker takes a task before its time and holds it, so that each blocks one of its prefetch slots.
Here such a message is moved from the queue's builder to the topic `<queue>.eta` before it is
written, and back to the queue's tail when it is due; the worker then runs it at once. Both ways are
at least once: a confirm waits for the topic, too, and a returned message is settled there when the
queue has committed it.

Called by the queue while it prepares a batch, after the overflow policy and before de-duplication:
a returning task is no duplicate of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.names import topic_beside
from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.errors import StorageError
from leveret.features.celery.eta_headers import eta_headers
from leveret.features.celery.rules import TEXT_BYTES_MAX, due_ms
from leveret.features.delay.due_delivery import DueDelivery
from leveret.features.delay.scheduled import broker_offset
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leveret.core.logs.log_writer import Committing, Waiter
    from leveret.core.queues.queue import Queue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.features.dead_letter.publish import Missing, Ranges
    from leveret.features.delay.store import (
        DelayedMessageStore,
        DelayedMessageStores,
        PendingMessage,
    )
    from leveret.ports import LogName
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import BatchBuilder

__all__ = ["EtaHold", "EtaHolds", "eta_topic"]

SUFFIX = ".eta"
PAGE_TASKS = 1000  # tasks cancelled in one step
RETRY_MS = 1000  # a full queue has room again when messages are consumed


def eta_topic(queue: str, partition: int = 0) -> str:
    """Return the name of a partition's ETA topic."""
    return topic_beside(queue, SUFFIX, partition)


class EtaHolds(ExtensionKind):
    """ETA stores of a node's queues."""

    def __init__(self, stores: DelayedMessageStores) -> None:
        self.stores = stores

    def follow(
        self,
        queue: Queue,
        present: QueueExtension | None,
        demand: Demand,  # noqa: ARG002
    ) -> QueueExtension | None:
        """See ExtensionKind. A queue that has tasks keeps its store. Raises StorageError."""
        if present is not None:
            return present
        exists = bool(self.logs(queue.definition, queue.settings, queue.number))
        if not exists and not queue.settings.celery_eta:
            return None
        hold = EtaHold(queue, self.stores)
        if exists:
            hold.open()
        return hold

    def logs(
        self, definition: QueueDefinition, _settings: QueueSettings, partition: int
    ) -> Sequence[LogName]:
        """Return the log of the tasks that an earlier run has left."""
        topic = eta_topic(definition.topic, partition)
        return self.stores.logs(definition.vhost, topic, definition.incarnation)


class EtaHold(QueueExtension):
    """Tasks of one queue that are not due."""

    outlives_reordering = True

    def __init__(self, queue: Queue, stores: DelayedMessageStores) -> None:
        self._queue = queue
        self._stores = stores
        self._topic = eta_topic(queue.definition.topic, queue.number)
        self._timers = queue.services.timers
        self.store: DelayedMessageStore | None = None  # created with the first task
        self._failed = False  # creating it has failed, and was reported

    def open(self) -> DelayedMessageStore:
        """Create or recover the topic. Raises StorageError."""
        if self.store is None:
            definition = self._queue.definition
            self.store = self._stores.open(
                definition.vhost, self._topic, self._due, definition.incarnation
            )
            self.reconfigure(self._queue.settings)
        return self.store

    def reconfigure(self, settings: QueueSettings) -> None:
        """Have the topic require as many copies as the queue: its tasks are confirmed as well."""
        if self.store is not None:
            self.store.log.require_copies(settings.copies_min)

    @property
    def pending_count(self) -> int:
        """Number of delayed tasks."""
        return 0 if self.store is None else self.store.pending_count

    # -- storing

    def admit(self, builder: BatchBuilder) -> Committing | None:
        """Move tasks that are not due from the builder to the topic."""
        is_asked = self._queue.settings.celery_eta and builder.features & RecordFlag.HAS_HEADERS
        if not is_asked or not builder.count:
            return None
        now_ms = self._timers.wall_ms()
        gathered = builder.preview(0)
        held = RangeSet()
        for index, text in eta_headers(gathered, TEXT_BYTES_MAX):
            eta_ms = due_ms(text.decode(errors="replace"))
            if eta_ms is None or eta_ms <= now_ms or not self._can_hold():
                continue
            flags, _, exchange, routing_key, header, body = gathered.record(index)
            self.open().add(eta_ms, flags, exchange, routing_key, header, body)
            held.add(index, index + 1)
        if held:
            builder.drop(held)
        return self if held else None

    def _can_hold(self) -> bool:
        """Whether the topic can be used; otherwise tasks are delivered early."""
        try:
            self.open()
        except StorageError as error:
            if not self._failed:
                self._queue.services.report(self._queue, error)
            self._failed = True
            return False
        return True

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when all tasks stored so far are committed."""
        if self.store is None:
            waiter.done(failed=False)
        else:
            self.store.await_commit(waiter)

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        """Whether all stored tasks are committed."""
        return self.store is None or self.store.is_caught_up

    # -- return

    def _due(self, messages: Sequence[PendingMessage]) -> None:
        """Put due tasks into the queue."""
        queue = self._queue
        if queue.deleted:
            return
        delivery = DueDelivery(messages, lambda _: (queue.builder,), self._timers.wall_ms())
        delivery.deliver(queue.services.turn, self._delivered)

    def _delivered(self, ranges: Ranges, missing: list[Missing]) -> None:
        if self.store is None or self._queue.deleted:
            return
        if ranges:
            self.store.settle(ranges)
        if missing:
            again_ms = self._timers.wall_ms() + RETRY_MS
            self.store.retry_later([(first, stop) for first, stop, _ in missing], again_ms)

    # -- as a Keeper of leveret.features.delay.schedules

    def find(self, id_: str, owner: str | None = None) -> int | None:  # noqa: ARG002
        """Return the offset of a delayed task by its broker-assigned id, or None."""
        offset = broker_offset(id_)
        return offset if offset is not None and self.is_pending(offset) else None

    def is_pending(self, offset: int) -> bool:
        """Whether a task is still delayed."""
        return self.store is not None and self.store.waits(offset)

    def cancel(self, message: PendingMessage) -> bool:
        """Cancel a task. Returns False if it is too late."""
        return self.store is not None and self.store.cancel(message.offset)

    def clear(self) -> Iterator[int]:
        """Cancel all tasks delayed now, some at each step, yielding their numbers."""
        store, after = self.store, None
        if store is None:
            return
        stop = store.log.end + store.builder.count
        while not store.deleted and (page := store.scan(after, None, PAGE_TASKS)):
            yield sum(store.cancel(offset) for _, offset in page if offset < stop)
            after = page[-1]

    # -- the end

    def delete(self) -> None:
        """Delete the topic with the deleted queue."""
        definition = self._queue.definition
        self._stores.delete(definition.vhost, self._topic, definition.incarnation)
