"""Deliveries of a queue: those that are no matter of each message, beside the compiled part.

`Delivering` (delivering.pyx) has what every delivery passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.delivering import Delivering
from leveret.core.queues.open_queue import OPEN_QUEUE_SLOTS, PUMP_RECORDS_MAX, OpenQueue
from leveret.core.queues.sending import count, cut

if TYPE_CHECKING:
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.extensions import QueueExtension
    from leveret.core.queues.offers import Deliver
    from leveret.core.queues.sending import Runs
    from leveret.ports.records import Batch

__all__ = ["DeliveringQueue"]


class DeliveringQueue(Delivering, OpenQueue):
    """Base of `Queue`, which says what it delivers: state, reader and extensions."""

    __slots__ = OPEN_QUEUE_SLOTS

    def may_offer(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer may still get some of the present messages without outside events."""
        if not self.is_caught_up or self.reader.fetching:
            return True
        return self._delivering is not None and self._delivering.may_offer(consumer)

    def credit_once_sent(self) -> int:
        """Return how many deliveries consumers can take once their connections have sent all."""
        served: list[QueueConsumer] = self.state.served  # type: ignore[assignment]  # added so
        return sum(consumer.credit() for consumer in served)

    def _hands_over(self) -> bool:
        """Let the next single active consumer take over, if it may. Returns whether it did."""
        active: QueueConsumer = self.state.active  # type: ignore[assignment]  # there is one
        if active.in_flight:
            return False
        self.state.hand_over()
        return True

    def _pump_resting(self) -> bool:
        """Enforce lifetimes and limits while nothing is delivered."""
        return not self.is_restoring and self._pumped(delivered=False)

    def _pumped(self, *, delivered: bool) -> bool:
        """Let extensions act after deliveries. Returns whether another turn could do more."""
        more = False
        for extension in self._extensions:
            more |= extension.pumped(delivered=delivered)
        return more

    def _pump_by(self, extension: QueueExtension) -> bool:
        if self.state.is_handing_over:
            self._hands_over()
        delivered, more = extension.pump()
        held_up = self.state.ready_count > 0 and extension.is_held_up
        self._note_pump(delivered=delivered > 0, held_up=held_up)
        return more or self._pumped(delivered=delivered > 0)

    def alive(self, runs: list[tuple[int, int]], batches: list[Batch]) -> list[tuple[int, int]]:
        """Return those of these ready runs that may be delivered; the others are withdrawn."""
        for extension in self._ready_filters:
            runs = extension.filter_ready(runs, batches)
        return runs

    def _deliver_runs(self, offer: Deliver, batches: list[Batch]) -> int:
        """Send the next ready records that are not adjacent, as far as the batches contain them."""
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        limit = min(offer.limit, PUMP_RECORDS_MAX)
        found, redelivered = self.state.peek_runs(limit, batches[-1].stop_offset)
        runs = self.alive(found, batches)
        done = count(found) - count(runs)
        if runs:
            done += count(self.send_runs(consumer, runs, batches, redelivered=redelivered))
        return done

    def send_runs(
        self, consumer: QueueConsumer, runs: Runs, batches: list[Batch], *, redelivered: bool
    ) -> Runs:
        """Send ready runs that the batches contain, and lease what was sent. Returns its runs."""
        sent = cut(runs, consumer.send_runs(batches, runs, redelivered=redelivered))
        if sent:
            self.state.deliver_runs(consumer, sent)
            if consumer.no_ack:
                self.settle(sent)
        return sent

    def _gives_up(self, batch: Batch, offset: int) -> bool:
        """Whether a leased record must not be delivered: it has expired, or its key is blocked."""
        return any(extension.withholds(batch, offset) for extension in self._ready_filters)

    async def record_batch(self, offset: int) -> Batch | None:
        """Return the batch with a leased record, from memory or from the device.

        None if the record must not be delivered: it is lost, expired or blocked.
        """
        batch = await self.reader.leased_batch(offset)
        return None if batch is None or self._gives_up(batch, offset) else batch
