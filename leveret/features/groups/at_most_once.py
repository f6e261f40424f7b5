"""Delivery at most once: a member without acknowledgements gets what was committed before.

For its subscription it is a consumer like any other. What it is offered is settled, the settlement
is made durable, and only then the records go to the connection: a crash at any point may lose what
was under way, and repeats nothing. One run of records is under way at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.errors import StorageError

if TYPE_CHECKING:
    from leveret.core.queues.sending import Runs
    from leveret.core.queues.services import QueueServices
    from leveret.features.groups.subscription import Subscription
    from leveret.ports.records import Batch

__all__ = ["AtMostOnceShare"]

RUN_RECORDS_MAX = 1000  # committed together: what a crash, or the consumer's end, may lose
RETRY_MS = 1000  # after a disk has refused


class AtMostOnceShare:
    """Share of a member in one partition.

    `share` writes the deliveries, without acknowledgements.
    """

    no_ack = False  # for the subscription, which leases what it offers

    def __init__(self, share: Any, subscription: Subscription) -> None:
        self.share = share
        self.whole = share.whole
        self.channel = share.channel
        self.tag = share.tag
        self.priority = share.priority
        self.arguments = share.arguments
        self.in_flight = 0  # committed or being committed, and not sent
        self.visibility_timeout_ms: int | None = None
        self._subscription = subscription
        self._services: QueueServices = subscription.services
        self._batches: list[Batch] = []
        self._runs: Runs = []
        self._redelivered = False
        self._is_settled = self._is_safe = False

    # -- as a consumer of the subscription

    def capacity(self) -> int:
        """Return how many records may be committed next; none while some are under way."""
        if self._runs:
            return 0
        capacity: int = self.share.capacity()
        return min(capacity, self.whole.prefetch or RUN_RECORDS_MAX, RUN_RECORDS_MAX)

    def credit(self) -> int:
        """Return its capacity: whoever is served at most once has no claim on the next record."""
        return max(self.capacity(), 0)

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Take records to be committed. Returns the offset reached."""
        return self.send_runs(
            batches, [(first, min(stop, batches[-1].stop_offset))], redelivered=redelivered
        )

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Take records of several runs to be committed. Returns the offset reached."""
        self._batches, self._runs, self._redelivered = list(batches), list(runs), redelivered
        self._is_settled = self._is_safe = False
        self.in_flight = sum(stop - first for first, stop in runs)
        self._begin()
        return runs[-1][1]

    def _begin(self) -> None:
        self._services.spawn(self._commit())

    def queue_gone(self) -> None:
        """End the whole consumer: the queue was deleted."""
        self.share.queue_gone()

    # -- committing, then sending

    async def _commit(self) -> None:
        """Make it durable that the group has got the records, then send them."""
        subscription = self._subscription
        if subscription.deleted:
            return
        if not self._is_settled:
            self._is_settled = True
            subscription.settle(self._runs)
        try:
            await subscription.log.settlements_safe()
        except StorageError as error:
            self._services.report(subscription, error)
            self._services.timers.after(RETRY_MS, self._begin)
            return
        self._is_safe = True
        self.go_on()

    def go_on(self) -> None:
        """Send committed records as far as the connection takes them; drop them without one."""
        if not (self._runs and self._is_safe):
            return
        is_there = self.channel.alive and self.channel.consumers.get(self.tag) is self.whole
        while is_there and self._runs and self.share.capacity() > 0:
            first, stop = self._runs[0]
            batches = [batch for batch in self._batches if batch.stop_offset > first]
            reached = self.share.send(batches, first, stop, redelivered=self._redelivered)
            self.in_flight -= reached - first
            self._runs = self._runs[1:] if reached == stop else [(reached, stop), *self._runs[1:]]
        if not is_there or not self._runs:
            self._runs, self._batches, self.in_flight = [], [], 0
            self._subscription.handed_over()
            self._subscription.wake(self)
