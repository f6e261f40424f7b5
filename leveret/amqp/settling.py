"""Deliveries of a channel: the credit of its consumers, what is unsettled, and its settlement."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from leveret.amqp.getting import Getter
from leveret.amqp.protocol import ChannelBase, ConnectionBase
from leveret.amqp.settlements import SLICE_RUNS, Settlements
from leveret.amqp.timeouts import DeliveryAges, Leases, consumer_timeout_ms, visibility_timeout_ms
from leveret.amqp.unacked import Unacked
from leveret.core.routing.message import StoredMessage
from leveret.core.settings.discard_reasons import Reason
from leveret.errors import ChannelError
from leveret.ports.contents import open_header
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.amqp.settlements import Holding
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.ports.counters import Counters, DeliveryStatistics
    from leveret.ports.records import Batch

DELIVERY_STATISTICS_MIN = (
    32  # queues that a channel counts for before it looks which of them are gone
)


class ChannelDeliveries(Settlements, ChannelBase):
    """Deliveries of one channel that are not settled, and the counters of all."""

    def __init__(self, connection: ConnectionBase, number: int) -> None:
        super().__init__(connection, number)
        self.delivery_ages = DeliveryAges()
        self.leases: Leases | None = None  # see needed_leases
        self._getters: dict[OpenQueue, Getter] = {}
        self.delivery_statistics_by_queue: dict[
            DeclaredQueue, dict[int, DeliveryStatistics]
        ] = {}  # see delivery_statistics
        self._delivery_statistics_max = DELIVERY_STATISTICS_MIN

    @abstractmethod
    def consumer_gone(self, tag: str) -> None:
        """Forget a consumer whose queue is gone; send basic.cancel if the client supports it."""

    # -- settling

    def resume_members(self) -> None:
        """Have groups deliver again to members that were too slow: their client settles."""
        suspended, self.suspended = self.suspended, {}
        for member, group in suspended.items():
            group.resume(member)

    def settling(self, kind: int, last: int, cause: Reason = Reason.REQUEUED) -> Iterator[None]:
        """Settle, return or discard all outstanding deliveries up to tag `last`, in slices."""
        while held := self.unacked.take_up_to(last, SLICE_RUNS):
            self.apply(kind, held, cause)
            yield

    def restore(self, tag: int, held: list[Holding]) -> None:
        """Make settled deliveries outstanding again, from `tag` on: their transaction failed.

        Where they have a visibility timeout it begins anew, since it may have passed meanwhile.
        """
        for holder, first, stop in held:
            count = stop - first
            self.unacked.restore(tag, count, first, holder)
            term_ms = visibility_timeout_ms(holder)
            if term_ms is not None and self.alive:
                self.needed_leases().begin(holder, tag, count, term_ms)
            tag += count

    def wake_consumers(self) -> None:
        """Wake the queues of all the channel's consumers, so that they deliver again."""
        for consumer in self.consumers.values():
            consumer.wake()

    # -- time limits

    def needed_leases(self) -> Leases:
        """Return the channel's lease timers; create them when the first delivery needs one."""
        if self.leases is None:
            self.leases = Leases(self.unacked, self.broker.timers, self.apply)
        return self.leases

    def check_acknowledged(self, now_ms: int, node_timeout_ms: int) -> None:
        """Raise ChannelError 406 where a consumer has not settled a delivery in time."""
        oldest = self.unacked.oldest()
        oldest_tag = None if oldest is None else oldest[0]
        age_ms = self.delivery_ages.sweep(now_ms, oldest_tag, self.slot.delivery_tag)
        if self.leases is not None:
            oldest = self.leases.oldest_untimed()
            age_ms = 0 if oldest is None else self.delivery_ages.age(now_ms, oldest[0])
        if oldest is None:
            return
        timeout_ms = consumer_timeout_ms(oldest[1], node_timeout_ms)
        if timeout_ms and age_ms >= timeout_ms:
            raise ChannelError(
                406,
                f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
                f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide "
                "to learn more",
            )

    # -- who is delivered to, and counted

    def getter(self, queue: OpenQueue) -> Getter:
        """Return the lease holder for basic.get from `queue` on this channel."""
        getter = self._getters.get(queue)
        if getter is None or queue.deleted:
            getter = self._getters[queue] = Getter(queue, self)
        return getter

    def delivery_statistics(self, queue: DeclaredQueue, mode: int) -> DeliveryStatistics:
        """Return the counters of deliveries from a queue to this channel in one mode (get, …).

        All consumers of the channel and the queue share them. They stay when a consumer ends, since
        counters never become less.
        """
        queue = queue.whole
        of_queue = self.delivery_statistics_by_queue.get(queue)
        if of_queue is None:
            if len(self.delivery_statistics_by_queue) >= self._delivery_statistics_max:
                self._forget_deleted()
            of_queue = self.delivery_statistics_by_queue[queue] = {}
        found = of_queue.get(mode)
        if found is None:
            found = of_queue[mode] = self.broker.statistics.delivery_statistics(
                mode, queue, self.slot.counters
            )
        return found

    def _forget_deleted(self) -> None:
        """Forget the counters of deleted queues, so that short-lived queues do not take memory.

        Called when there may be as many deleted ones as others, or a few.
        """
        self.delivery_statistics_by_queue = {
            q: of for q, of in self.delivery_statistics_by_queue.items() if not q.deleted
        }
        self._getters = {q: getter for q, getter in self._getters.items() if not q.deleted}
        self._delivery_statistics_max = max(
            DELIVERY_STATISTICS_MIN, 2 * len(self.delivery_statistics_by_queue)
        )

    def pairs(self) -> Iterator[Counters]:
        """Iterate over all counters of publishes to an exchange and of deliveries from a queue."""
        yield from self.slot.publish_statistics_by_exchange.values()
        for of_queue in self.delivery_statistics_by_queue.values():
            yield from of_queue.values()

    def trace_deliveries(
        self, queue: OpenQueue, batches: list[Batch], first: int, stop: int, *, redelivered: bool
    ) -> None:
        """Publish the delivered records [first, stop) to the firehose."""
        for batch in batches:
            for offset in range(max(first, batch.base_offset), min(stop, batch.stop_offset)):
                flags, _, exchange, routing_key, header, body = batch.record(offset)
                if flags & RecordFlag.BLIND_COPIED:
                    header = open_header(header)
                self.broker.tracer.delivered(
                    self.vhost,
                    StoredMessage(exchange, routing_key, header, body, flags),
                    queue.name,
                    self.origin,
                    redelivered=redelivered,
                )

    def forget_deliveries(self) -> None:
        """Drop references from and to the channel, so that no garbage collector is needed."""
        self.leases = None
        self.unacked = Unacked()
        self.suspended.clear()
        self._getters.clear()
