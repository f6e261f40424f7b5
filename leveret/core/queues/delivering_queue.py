"""Deliveries of a queue: to its consumers, by offers, and to basic.get.

Which consumer gets which records next is decided by the state; a delivery sends them from the
batches that the reader has, past the extensions that look at records before they are delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.open_queue import PUMP_RECORDS_MAX, OpenQueue
from leveret.core.queues.sending import count, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.extensions import QueueExtension
    from leveret.core.queues.offers import Deliver
    from leveret.core.queues.reading import QueueReader
    from leveret.core.queues.sending import Runs
    from leveret.core.queues.state import QueueState
    from leveret.ports.records import Batch

__all__ = ["DeliveringQueue"]


class DeliveringQueue(OpenQueue):
    """Base of `Queue`, which says what it delivers: state, reader and extensions.

    A base class and no part, because each delivery passes here: it costs no further call.
    """

    __slots__ = (
        "_delivering",
        "_lease_next",
        "_ready_filters",
        "_rests",
        "is_restoring",
        "reader",
        "state",
    )

    state: QueueState
    reader: QueueReader
    is_restoring: bool  # the backlog is being read: nothing is offered until then
    _rests: bool  # no deliveries: the backlog is being read, or it is paused
    _lease_next: Callable[[], tuple[int, bool] | None]
    _delivering: QueueExtension | None  # delivers instead of the queue
    _ready_filters: tuple[QueueExtension, ...]  # look at records before they are delivered

    def may_offer(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer may still get some of the present messages without outside events."""
        if not self.is_caught_up or self.reader.fetching:
            return True
        return self._delivering is not None and self._delivering.may_offer(consumer)

    def pump(self) -> bool:
        """Deliver ready messages to consumers. Returns whether another turn could do more."""
        delivered = 0
        if self._rests:
            return self._pump_resting()
        if self._delivering is not None:
            return self._pump_by(self._delivering)
        while delivered < PUMP_RECORDS_MAX:
            offer = self.next_offer()
            if offer is None:
                if not self.state.ready_count:
                    self.reader.clear()
                break
            batches = self.reader.read(offer.first)
            if batches is None:
                break
            delivered += self.deliver(offer, batches)
        else:
            self.passed_over_in = 0
            return True
        if self.passed_over_in or (not delivered and self.state.is_held_up):
            held_up = self.state.ready_count > 0 and self.state.is_held_up
            self._note_pump(delivered=delivered > 0, held_up=held_up)
        return bool(self._extensions) and self._pumped(delivered=delivered > 0)

    def next_offer(self) -> Deliver | None:
        """Return the next offer to a consumer that has capacity; None if there is none."""
        state = self.state
        while True:
            consumer: QueueConsumer | None = state.next()  # type: ignore[assignment]  # were added so
            if consumer is None:
                if not (state.is_handing_over and self._hands_over()):
                    return None
            elif (offer := state.credit(consumer, consumer.capacity())) is not None:
                return offer

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

    def deliver(self, offer: Deliver, batches: list[Batch]) -> int:
        """Send one offer. Returns how many records were sent (at least one), or expired."""
        if offer.is_partial and not self.state.has_groups:
            return self._deliver_runs(offer, batches)
        if self._ready_filters:
            stop = min(offer.stop, batches[-1].stop_offset)  # extensions look at records
            passing = self.alive([(offer.first, stop)], batches)
            if not passing:
                return stop - offer.first
            offer = offer.cut(*passing[0])
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        stop = consumer.send(batches, offer.first, offer.stop, redelivered=offer.redelivered)
        self.state.deliver(offer, stop)
        if consumer.no_ack:
            self.settle([(offer.first, stop)])
        return stop - offer.first

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

    def get(self) -> tuple[int, bool] | None:
        """Lease the next ready message for basic.get: (offset, redelivered), or None."""
        if self.settings.expires_ms is not None:
            self.used()
        while not self.deleted and (leased := self._lease_next()) is not None:
            offset = leased[0]
            batch = self.reader.batch_at_hand(offset) if self._ready_filters else None
            if batch is None or not self._gives_up(batch, offset):
                return leased
        return None

    def _gives_up(self, batch: Batch, offset: int) -> bool:
        """Whether a leased record must not be delivered: it has expired, or its key is blocked."""
        return any(extension.withholds(batch, offset) for extension in self._ready_filters)

    async def record_batch(self, offset: int) -> Batch | None:
        """Return the batch with a leased record, from memory or from the device.

        None if the record must not be delivered: it is lost, expired or blocked.
        """
        batch = await self.reader.leased_batch(offset)
        return None if batch is None or self._gives_up(batch, offset) else batch

    def batch_at_hand(self, offset: int) -> Batch | None:
        """Return the batch with `offset` if that takes no waiting, else None."""
        return self.reader.batch_at_hand(offset)
