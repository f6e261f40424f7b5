"""A consumer of a channel: its credit, and how deliveries are written to its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.added import CountedFields, PlacedFields
from leveret.amqp.timeouts import LeaseHolder
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.settings.stream_offsets import STREAM_OFFSET
from leveret.ports.counters import DELIVER, DELIVER_NO_ACK

if TYPE_CHECKING:
    from leveret.amqp.added import AddedField
    from leveret.amqp.settling import ChannelDeliveries
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.features.rates.rates import ConnectionLimits, ConsumeMeter
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

OFFSET = "x-offset"  # header of what groups get
RETRY_COUNT = "x-retry-count"  # the same; elsewhere it stands in the record (features.retry.rules)
UNLIMITED = 1 << 32  # capacity of a consumer without prefetch
LACKS_SHARED = -1  # the capacity of a consumer that waits for what others may take, too


class ChannelConsumer(LeaseHolder):
    """A consumer started by basic.consume: its tag, queue and prefetch limit.

    `in_flight` counts its unsettled deliveries. A consumer without acknowledgements has no limit
    but the connection's ability to send.
    """

    def __init__(
        self,
        channel: ChannelDeliveries,
        queue: OpenQueue,
        tag: str,
        *,
        no_ack: bool,
        prefetch: int,
        priority: int,
        arguments: Arguments,
        added: AddedField | None = None,
        added_again: AddedField | None = None,
    ) -> None:
        """`added` goes into the headers of first deliveries, `added_again` of redeliveries."""
        super().__init__(
            queue, channel.delivery_statistics(queue, DELIVER_NO_ACK if no_ack else DELIVER)
        )
        self.channel = channel
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.priority = priority
        self.arguments = arguments
        self.added = added
        self.added_again = added_again
        self.visibility_timeout_ms = arguments.get("x-visibility-timeout")
        self.in_flight = 0
        self.meter: ConsumeMeter | None = None  # where a rate limits what it is delivered

    def capacity(self, *, once_sent: bool = False) -> int:
        """Return the number of deliveries that prefetch limits, rates and outbox still allow.

        0 where its own prefetch is used up; negative where the channel's prefetch, the room of the
        connection or a rate is, which other consumers share. `once_sent`: when the connection has
        sent what it has.
        """
        channel = self.channel
        connection = channel.connection
        limit = UNLIMITED
        if not self.no_ack:
            if self.prefetch:
                limit = self.prefetch - self.in_flight
                if limit <= 0:
                    return 0
            if channel.prefetch:
                shared = channel.prefetch - channel.in_flight
                limit = shared if shared < limit else limit
        if not (connection.keeps_up if once_sent else connection.can_send):
            return LACKS_SHARED
        if self.meter is not None:
            available = self.meter.available()
            limit = available if available < limit else limit
        return limit if limit > 0 else LACKS_SHARED

    def credit(self) -> int:
        """Return the deliveries it could take once the outbox is sent (see QueueConsumer)."""
        return max(self.capacity(once_sent=True), 0)

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries into the connection's outbox until it is full."""
        channel = self.channel
        connection, slot = channel.connection, channel.slot
        tag = slot.delivery_tag + 1
        connection.touch()
        reached = connection.outbox.deliver(
            slot,
            self.tag_bytes,
            batches,
            first,
            stop,
            redelivered,
            self.added_again if redelivered else self.added,
            self.counted,
        )
        if channel.vhost.traced:
            channel.trace_deliveries(self.queue, batches, first, reached, redelivered=redelivered)
        if self.meter is not None:
            self.meter.delivered(reached - first)
        if not self.no_ack:
            count = reached - first
            channel.unacked.add(tag, count, first, self)
            self.in_flight += count
            channel.in_flight += count
            if self.visibility_timeout_ms or self.queue.settings.visibility_timeout_ms:
                self._lease(tag, count)
        return reached

    def send_runs(
        self, batches: list[Batch], runs: list[tuple[int, int]], *, redelivered: bool
    ) -> int:
        """Write deliveries of several runs [(first, stop)] in order, otherwise as `send`."""
        channel = self.channel
        connection, slot = channel.connection, channel.slot
        tag = slot.delivery_tag + 1
        added = self.added_again if redelivered else self.added
        connection.touch()
        reached = connection.outbox.deliver_runs(
            slot, self.tag_bytes, batches, runs, redelivered, added, self.counted
        )
        if runs[-1][1] > reached:
            runs = [(first, min(stop, reached)) for first, stop in runs if first < reached]
        if channel.vhost.traced:
            for first, stop in runs:
                channel.trace_deliveries(self.queue, batches, first, stop, redelivered=redelivered)
        count = slot.delivery_tag + 1 - tag
        if self.meter is not None:
            self.meter.delivered(count)
        if not self.no_ack:
            channel.unacked.add_runs(tag, runs, self)
            self.in_flight += count
            channel.in_flight += count
            self._lease(tag, count)
        return reached

    def _lease(self, tag: int, count: int) -> None:
        """Start the visibility timeout of `count` deliveries from `tag` on, if one is set."""
        term_ms = self.visibility_timeout_ms or self.queue.settings.visibility_timeout_ms
        if term_ms is not None and count:
            self.channel.needed_leases().begin(self, tag, count, term_ms)

    def share(self, partition: OpenQueue) -> ConsumerShare:
        """Return what this consumer gets of one partition of its queue.

        Deliveries of a stream say of which partition they are, and where in it.
        """
        if isinstance(partition, Stream):
            placed = PlacedFields(partition.number, STREAM_OFFSET, {})
            return ConsumerShare(self, partition, placed, placed)
        return ConsumerShare(self, partition, None, return_counts(partition))

    def member_share(self, queue: OpenQueue, partition: int) -> ConsumerShare:
        """Return what this member of a group gets of one partition, by the group's subscription."""
        counts = _counts(queue)
        if isinstance(queue, Queue) and queue.settings.retry is not None:
            counts[RETRY_COUNT] = queue.state.returns.failures
        placed = PlacedFields(partition, OFFSET, counts)
        return ConsumerShare(self, queue, placed, placed)

    def suspended(self, group: ConsumerGroup) -> None:
        """Note that a group assigns no partitions to it until it settles something."""
        self.channel.suspended[self] = group

    def follow(self, limits: ConnectionLimits) -> None:
        """Be delivered to within the rate limits that apply now."""
        if self.meter is not None:
            self.meter.stop()
        self.meter = limits.meter(self.queue, self)

    def end(self) -> None:
        """Be delivered to no more, and leave no cycle."""
        if self.meter is not None:
            self.meter.stop()
            self.meter = None

    def release(self, count: int) -> None:
        """Return the credit of `count` deliveries that were settled or returned."""
        self.in_flight -= count
        self.channel.in_flight -= count

    def wake(self) -> None:
        """Wake its queue, so that it delivers to this consumer again."""
        self.queue.wake(self)

    def queue_gone(self) -> None:
        """End the consumer of a deleted queue; send basic.cancel if the client supports it."""
        if self.channel.consumers.get(self.tag) is not self:
            return  # it was cancelled before
        self.end()
        self.channel.consumer_gone(self.tag)


class ConsumerShare(ChannelConsumer):
    """Part of a consumer that one of several queues serves: a partition, or a subscription to one.

    `whole` is the consumer as its client knows it, whose credit all of its shares use.
    """

    def __init__(
        self,
        whole: ChannelConsumer,
        queue: OpenQueue,
        added: AddedField | None,
        added_again: AddedField | None,
    ) -> None:
        super().__init__(
            whole.channel,
            queue,
            whole.tag,
            no_ack=whole.no_ack,
            prefetch=whole.prefetch,
            priority=whole.priority,
            arguments=whole.arguments,
            added=added,
            added_again=added_again,
        )
        self.whole = whole

    def capacity(self, *, once_sent: bool = False) -> int:
        """Return the capacity of the whole consumer, which its other shares use as well."""
        return self.whole.capacity(once_sent=once_sent) or LACKS_SHARED

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries, see ChannelConsumer."""
        before = self.channel.slot.delivery_tag
        reached = super().send(batches, first, stop, redelivered=redelivered)
        self._sent(self.channel.slot.delivery_tag - before)
        return reached

    def send_runs(
        self, batches: list[Batch], runs: list[tuple[int, int]], *, redelivered: bool
    ) -> int:
        """Write deliveries of several runs, see ChannelConsumer."""
        before = self.channel.slot.delivery_tag
        reached = super().send_runs(batches, runs, redelivered=redelivered)
        self._sent(self.channel.slot.delivery_tag - before)
        return reached

    def _sent(self, count: int) -> None:
        """Charge deliveries to the whole consumer."""
        if not self.no_ack:
            self.whole.in_flight += count
        if self.whole.meter is not None:
            self.whole.meter.delivered(count)

    def release(self, count: int) -> None:
        """Return the credit of settled or returned deliveries."""
        super().release(count)
        self.whole.in_flight -= count

    def wake(self) -> None:
        """Wake all queues that the whole consumer is served by."""
        self.whole.wake()

    def queue_gone(self) -> None:
        """End the whole consumer."""
        self.whole.queue_gone()


def return_counts(queue: OpenQueue) -> AddedField | None:
    """Return the header fields with delivery counts for consumers of a quorum queue, else None.

    x-acquired-count is the number of deliveries so far, x-delivery-count the number of those that
    count towards the delivery limit.
    """
    counts = _counts(queue)
    return CountedFields(counts) if counts else None


def _counts(queue: OpenQueue) -> dict[str, dict[int, int]]:
    """Return the delivery counts of a quorum queue by header field."""
    if not (isinstance(queue, Queue) and queue.settings.counts_deliveries):
        return {}
    state = queue.state
    return {"x-delivery-count": state.counts, "x-acquired-count": state.acquired}
