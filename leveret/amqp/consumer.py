"""A consumer of a channel: its credit, and how deliveries are written to its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp.added import CountedFields, PlacedFields
from leveret.amqp.consumer_base import LACKS_SHARED, ConsumerBase
from leveret.core.queues.queue import Queue
from leveret.core.queues.stream import Stream
from leveret.core.settings.stream_offsets import STREAM_OFFSET
from leveret.ports.counters import DELIVER, DELIVER_NO_ACK

if TYPE_CHECKING:
    from leveret.amqp.added import AddedField
    from leveret.amqp.settling import ChannelDeliveries
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.groups.groups import ConsumerGroup
    from leveret.features.rates.rates import ConnectionLimits
    from leveret.ports.definitions import Arguments
    from leveret.ports.records import Batch

OFFSET = "x-offset"  # header of what groups get
RETRY_COUNT = "x-retry-count"  # the same; elsewhere it stands in the record (features.retry.rules)


class ChannelConsumer(ConsumerBase):
    """A consumer started by basic.consume: its tag, queue and prefetch limit."""

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
        counted = channel.delivery_statistics(queue, DELIVER_NO_ACK if no_ack else DELIVER)
        super().__init__(queue, counted, channel, tag, no_ack, prefetch, added, added_again)
        self.priority = priority
        self.arguments = arguments
        self.visibility_timeout_ms = arguments.get("x-visibility-timeout")

    def lease(self, tag: int, count: int) -> None:
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

    def capacity(self, once_sent: bool = False) -> int:
        """Return the capacity of the whole consumer, which its other shares use as well."""
        return self.whole.capacity(once_sent) or LACKS_SHARED

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
