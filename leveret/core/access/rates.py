"""Who may publish and consume how fast: rates of users, virtual hosts, connections and queues.

`Rates` keeps the buckets that several connections share. A connection that a rate concerns has a
`PublishMeter`, asked for each read, and each of its consumers a `ConsumeMeter`, asked for each
offer; all others have None, decided when a connection opens and when a limit or policy changes.
`leveret.amqp.rate_hold` stops the reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.features.rates import Bucket, Rate, rate_of, retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.settings import QueueSettings
    from leveret.core.timers import Timers
    from leveret.ports.definitions import UserDefinition, VhostDefinition
    from leveret.ports.records import BatchBuilder

__all__ = [
    "NO_RATES",
    "ConnectionRates",
    "ConsumeMeter",
    "Limit",
    "PublishMeter",
    "QueueRates",
    "Rates",
]

# Whoever has to wait waits for this part of what a second brings, so that a connection is blocked
# and unblocked a few times a second at most.
PUBLISH_PARTS = 4
# Deliveries go on in smaller steps: nobody is told of them.
CONSUME_PARTS = 50
# So many messages are read at a time where queues have rates: which ones is known only afterwards.
UNROUTED_MAX = 256
NEVER_MS = 60_000  # who may never pass is to look again after this


class Limit(NamedTuple):
    """One bucket, and what to call it to a client."""

    bucket: Bucket
    name: str  # as in "publish-rate of user 'u'"

    def __str__(self) -> str:
        return f"{self.name} ({self.bucket.rate.per_second}/s)"


class ConnectionRates(NamedTuple):
    """What every connection of the node may do by itself. None: as much as it can."""

    publish: Rate | None = None
    consume: Rate | None = None


NO_RATES = ConnectionRates()


class QueueRates:
    """The buckets of one queue; `position` is the end of what was counted of its records."""

    __slots__ = ("consume", "position", "publish")

    def __init__(self) -> None:
        self.publish: Limit | None = None
        self.consume: Limit | None = None
        self.position = 0

    @property
    def are_none(self) -> bool:
        """Whether the queue has no rate."""
        return self.publish is None and self.consume is None

    def follow(self, queue: OpenQueue, settings: QueueSettings, now_ms: int) -> None:
        """Go by the queue's settings from now on."""
        name = f"queue '{queue.name}' in vhost '{queue.definition.vhost}'"
        if self.publish is None:
            self.position = queue.log.end + queue.builder.count
        self.publish = _followed(
            self.publish, settings.publish_rate, f"publish-rate of {name}", now_ms
        )
        self.consume = _followed(
            self.consume, settings.consume_rate, f"consume-rate of {name}", now_ms
        )

    def count(self, queue: OpenQueue, now_ms: int) -> None:
        """Take what has come into the queue since the last call, whoever brought it."""
        position = queue.log.end + queue.builder.count
        count, self.position = position - self.position, position
        if self.publish is not None and count > 0:
            self.publish.bucket.take(count, now_ms)


def _followed(limit: Limit | None, rate: Rate | None, name: str, now_ms: int) -> Limit | None:
    """A limit that goes by `rate` from now on; None where there is none."""
    if rate is None:
        return None
    if limit is None:
        return Limit(Bucket(rate, now_ms), name)
    if limit.bucket.rate != rate:
        limit.bucket.change(rate, now_ms)
    return limit


class Rates:
    """All rates of a node. `changed` is told that connections have to look at theirs again.

    `user` looks a user up by name.
    """

    def __init__(
        self,
        timers: Timers,
        user: Callable[[str], UserDefinition | None],
        of_connection: ConnectionRates,
        changed: Callable[[], None],
    ) -> None:
        self.timers = timers
        self._user = user
        self._of_connection = of_connection
        self._changed = changed
        self._shared: dict[str, Limit] = {}  # by name
        self._queues: dict[str, set[OpenQueue]] = {}  # those with a rate, by virtual host

    # -- what has rates

    def follow_queue(self, queue: OpenQueue) -> None:
        """A queue was opened, or its settings have changed."""
        rates, settings = queue.rates, queue.settings
        if rates is None:
            if settings.publish_rate is None and settings.consume_rate is None:
                return
            rates = queue.rates = QueueRates()
        before = rates.publish, rates.consume
        rates.follow(queue, settings, self.timers.wall_ms())
        if rates.are_none:
            self.forget_queue(queue)
        else:
            self._queues.setdefault(queue.definition.vhost, set()).add(queue)
        if before != (rates.publish, rates.consume):
            self._changed()

    def forget_queue(self, queue: OpenQueue) -> None:
        """A queue is gone, or has no rate any more."""
        if queue.rates is not None:
            queue.rates = None
            queues = self._queues[queue.definition.vhost]
            queues.discard(queue)
            if not queues:
                del self._queues[queue.definition.vhost]

    def limits_changed(self) -> None:
        """Limits of a user or a virtual host have changed."""
        self._changed()

    # -- for connections

    def publish_meter(
        self, user: str, vhost: VhostDefinition, own: Limit | None
    ) -> PublishMeter | None:
        """What counts a connection's publishes; None where nobody does. `own`: see `own_limit`."""
        limits = self._limits("publish", user, vhost, own)
        has_queues = any(
            queue.rates is not None and queue.rates.publish is not None
            for queue in self._queues.get(vhost.name, ())
        )
        if not (limits or has_queues):
            return None
        return PublishMeter(limits, self.timers.wall_ms, counts_queues=has_queues)

    def consume_limits(
        self, user: str, vhost: VhostDefinition, own: Limit | None
    ) -> Sequence[Limit]:
        """What all consumers of a connection share."""
        return self._limits("consume", user, vhost, own)

    def own_limit(self, what: str) -> Limit | None:
        """A bucket for one connection alone, which it keeps. `what`: "publish" or "consume"."""
        rate: Rate | None = getattr(self._of_connection, what)
        if rate is None:
            return None
        return Limit(Bucket(rate, self.timers.wall_ms()), f"{what}-rate of a connection")

    def _limits(
        self, what: str, user: str, vhost: VhostDefinition, own: Limit | None
    ) -> list[Limit]:
        definition = self._user(user)
        of_user: Mapping[str, int] = {} if definition is None else definition.limits
        shared = [
            self._of(f"{what}-rate of user '{user}'", rate_of(of_user, what)),
            self._of(f"{what}-rate of vhost '{vhost.name}'", rate_of(vhost.limits, what)),
        ]
        return [limit for limit in (own, *shared) if limit is not None]

    def _of(self, name: str, rate: Rate | None) -> Limit | None:
        """The bucket that everybody shares who is meant by `name`."""
        limit = _followed(self._shared.get(name), rate, name, self.timers.wall_ms())
        if limit is None:
            self._shared.pop(name, None)
        else:
            self._shared[name] = limit
        return limit

    # -- for those without a connection

    def publish_wait_seconds(
        self, user: str, vhost: VhostDefinition, queues: Iterable[OpenQueue] = ()
    ) -> int:
        """0 if somebody may publish a message to `queues` by HTTP now, else when to try again.

        In seconds, for Retry-After of an answer 429. Nothing is taken: its connection does that.
        """
        limits, now_ms = self._limits("publish", user, vhost, None), self.timers.wall_ms()
        for queue in queues:
            if queue.rates is not None and queue.rates.publish is not None:
                queue.rates.count(queue, now_ms)
                limits.append(queue.rates.publish)
        return self._seconds(limits, 1)

    def pull_wait_seconds(self, user: str, vhost: VhostDefinition, queue: OpenQueue) -> int:
        """0 if somebody may get a message by HTTP now, else when to try again, as above."""
        return self._seconds(self._of_pull(user, vhost, queue), 1)

    def pulled(self, user: str, vhost: VhostDefinition, queue: OpenQueue, count: int) -> None:
        """So many messages were got by HTTP."""
        for limit in self._of_pull(user, vhost, queue):
            limit.bucket.take(count, self.timers.wall_ms())

    def _of_pull(self, user: str, vhost: VhostDefinition, queue: OpenQueue) -> list[Limit]:
        limits = self._limits("consume", user, vhost, None)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        return limits

    def _seconds(self, limits: Iterable[Limit], count: int) -> int:
        """0 if `count` may pass now, else Retry-After."""
        now_ms = self.timers.wall_ms()
        waits = [limit.bucket.wait_ms(count, now_ms) for limit in limits]
        if all(wait == 0 for wait in waits):
            return 0
        return max(retry_after_seconds(NEVER_MS if wait is None else wait) for wait in waits)


class PublishMeter:
    """How much one connection may publish.

    What it published is counted first, then it is told how much may follow.
    """

    def __init__(
        self, limits: Sequence[Limit], wall_ms: Callable[[], int], *, counts_queues: bool
    ) -> None:
        self._limits = limits
        self._wall_ms = wall_ms
        self.counts_queues = counts_queues
        self._queues: set[OpenQueue] = set()  # those with a rate that it has published to

    def published(self, count: int, builders: Collection[BatchBuilder]) -> None:
        """It has published `count` messages; `builders` are those of the queues they went to."""
        now_ms = self._wall_ms()
        for limit in self._limits:
            limit.bucket.take(count, now_ms)
        for builder in builders:
            queue: OpenQueue = builder.owner
            if queue.rates is not None and queue.rates.publish is not None:
                self._queues.add(queue)
                queue.rates.count(queue, now_ms)

    def allowance(self) -> int | None:
        """How many messages may come next; None: any number, as far as is known."""
        now_ms = self._wall_ms()
        counts = [limit.bucket.available(now_ms) for limit in self._current()]
        if self.counts_queues:
            counts.append(UNROUTED_MAX)
        return min(counts, default=None)

    def wait(self) -> tuple[int | None, str]:
        """Milliseconds until more may come, None for never, and which limit is to blame."""
        now_ms = self._wall_ms()
        longest: tuple[int | None, str] = (0, "")
        for limit in self._current():
            wait_ms = _wait_ms(limit.bucket, PUBLISH_PARTS, now_ms)
            if wait_ms is None:
                return None, str(limit)
            if longest[0] is not None and wait_ms > longest[0]:
                longest = wait_ms, str(limit)
        return longest

    def _current(self) -> list[Limit]:
        """The limits that count, of which those of queues may have gone meanwhile."""
        self._queues = {queue for queue in self._queues if queue.rates is not None}
        of_queues = [queue.rates.publish for queue in self._queues if queue.rates is not None]
        return [*self._limits, *(limit for limit in of_queues if limit is not None)]


class ConsumeMeter:
    """How much one consumer may be delivered. `wake` is called when it may have more."""

    def __init__(self, limits: Sequence[Limit], timers: Timers, wake: Callable[[], None]) -> None:
        self._buckets = [limit.bucket for limit in limits]
        self._wall_ms = timers.wall_ms
        self._timer = timers.timer(wake)

    def available(self) -> int:
        """How many deliveries may follow now; with none, `wake` will be called."""
        now_ms = self._wall_ms()
        count = min(bucket.available(now_ms) for bucket in self._buckets)
        if count == 0 and self._timer.due_ms is None:
            self._timer.set(self._wake_ms(now_ms))
        return count

    def _wake_ms(self, now_ms: int) -> int | None:
        """When a part of what a second brings may pass; None: it never may."""
        latest = now_ms + 1
        for bucket in self._buckets:
            if not bucket.available(now_ms):
                wake_ms = bucket.wake_ms(max(bucket.rate.per_second // CONSUME_PARTS, 1), now_ms)
                if wake_ms is None:
                    return None
                latest = max(latest, wake_ms)
        return latest

    def delivered(self, count: int) -> None:
        """So many were."""
        now_ms = self._wall_ms()
        for bucket in self._buckets:
            bucket.take(count, now_ms)

    def wait_ms(self) -> int | None:
        """Milliseconds until one message may pass; None: it never may."""
        now_ms = self._wall_ms()
        longest = 0
        for bucket in self._buckets:
            wait_ms = bucket.wait_ms(1, now_ms)
            if wait_ms is None:
                return None
            longest = max(longest, wait_ms)
        return longest

    def stop(self) -> None:
        """Another meter takes its place, or the consumer is gone."""
        self._timer.set(None)


def _wait_ms(bucket: Bucket, parts: int, now_ms: int) -> int | None:
    if bucket.available(now_ms):
        return 0
    return bucket.wait_ms(max(bucket.rate.per_second // parts, 1), now_ms)
