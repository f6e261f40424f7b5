"""Rate limits on publishing and consuming, of users, virtual hosts, connections and queues.

`Rates` keeps the buckets shared by connections. A connection with any rate limit has a
`PublishMeter`, consulted for each read, and each of its consumers a `ConsumeMeter`, consulted for
each delivery; all others have None, decided when a connection opens and when a limit or policy
changes. `leveret.amqp.rate_hold` stops the reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.core.settings.queue_settings import Rate, rate_of
from leveret.features.rates.rules import TokenBucket, retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.timers import Timers
    from leveret.core.vhost import Vhost
    from leveret.features.rates.rules import ConnectionRates
    from leveret.ports.definitions import UserDefinition, VhostDefinition
    from leveret.ports.records import BatchBuilder

__all__ = [
    "ConnectionLimits",
    "ConsumeMeter",
    "Limit",
    "PublishMeter",
    "QueueRates",
    "Rates",
]

# A blocked publisher waits for this fraction of a second's messages, so that a connection is
# blocked and unblocked only a few times a second.
PUBLISH_PARTS = 4
# Deliveries resume in smaller steps, since clients are not notified of them.
CONSUME_PARTS = 50
# Messages read at a time if queues have rates: their queues are known only afterwards.
UNROUTED_MAX = 256
NEVER_MS = 60_000  # those that may never pass check again after this time


class Limit(NamedTuple):
    """A rate limit's bucket, and its name for clients."""

    bucket: TokenBucket
    name: str  # as in "publish-rate of user 'u'"

    def __str__(self) -> str:
        return f"{self.name} ({self.bucket.rate.per_second}/s)"


class QueueRates:
    """Buckets of one queue; `position` is the end of its counted records."""

    __slots__ = ("consume", "position", "publish")

    def __init__(self) -> None:
        self.publish: Limit | None = None
        self.consume: Limit | None = None
        self.position = 0

    @property
    def are_none(self) -> bool:
        """Whether the queue has no rate."""
        return self.publish is None and self.consume is None

    def follow(self, queue: DeclaredQueue, settings: QueueSettings, now_ms: int) -> None:
        """Apply the queue's settings from now on."""
        name = f"queue '{queue.name}' in vhost '{queue.definition.vhost}'"
        if self.publish is None:
            self.position = queue.position
        self.publish = _followed(
            self.publish, settings.publish_rate, f"publish-rate of {name}", now_ms
        )
        self.consume = _followed(
            self.consume, settings.consume_rate, f"consume-rate of {name}", now_ms
        )

    def count(self, queue: DeclaredQueue, now_ms: int) -> None:
        """Charge the records added to the queue since the last call to its publish rate."""
        position = queue.position
        count, self.position = position - self.position, position
        if self.publish is not None and count > 0:
            self.publish.bucket.take(count, now_ms)


def _followed(limit: Limit | None, rate: Rate | None, name: str, now_ms: int) -> Limit | None:
    """Return a limit changed to `rate` from now on; None if there is none."""
    if rate is None:
        return None
    if limit is None:
        return Limit(TokenBucket(rate, now_ms), name)
    if limit.bucket.rate != rate:
        limit.bucket.change(rate, now_ms)
    return limit


class Rates:
    """All rate limits of a node. `changed` is called when connections must re-read theirs.

    `user` returns a user by name.
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
        self._queues: dict[str, set[DeclaredQueue]] = {}  # those with a rate, by virtual host

    # -- changes of rates

    def follow_queue(self, queue: DeclaredQueue) -> None:
        """Apply the rates of a queue that was opened or reconfigured."""
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

    def forget_queue(self, queue: DeclaredQueue) -> None:
        """Remove a queue that was deleted or has no rate any more."""
        if queue.rates is not None:
            queue.rates.publish = queue.rates.consume = None  # for meters that have them
            queue.rates = None
            queues = self._queues[queue.definition.vhost]
            queues.discard(queue)
            if not queues:
                del self._queues[queue.definition.vhost]

    def limits_changed(self) -> None:
        """Handle changed limits of a user or a virtual host."""
        self._changed()

    # -- for connections

    def publish_meter(
        self, user: str, vhost: VhostDefinition, own: Limit | None
    ) -> PublishMeter | None:
        """Return a meter of a connection's publishes; None without limits.

        `own`: see `own_limit`.
        """
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
        """Return the consume limits shared by all consumers of a connection."""
        return self._limits("consume", user, vhost, own)

    def own_limit(self, what: str) -> Limit | None:
        """Return a new bucket for a single connection. `what` is "publish" or "consume"."""
        rate: Rate | None = getattr(self._of_connection, what)
        if rate is None:
            return None
        return Limit(TokenBucket(rate, self.timers.wall_ms()), f"{what}-rate of a connection")

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
        """Return the shared bucket called `name`, with its rate updated; None without a rate."""
        limit = _followed(self._shared.get(name), rate, name, self.timers.wall_ms())
        if limit is None:
            self._shared.pop(name, None)
        else:
            self._shared[name] = limit
        return limit

    # -- for the HTTP API

    def publish_wait_seconds(
        self, user: str, vhost: VhostDefinition, queues: Iterable[DeclaredQueue] = ()
    ) -> int:
        """Return 0 if a message may be published to `queues` by HTTP now, else when to retry.

        In seconds, for Retry-After of an answer 429. No token is taken: the connection does that.
        """
        limits, now_ms = self._limits("publish", user, vhost, None), self.timers.wall_ms()
        for queue in queues:
            if queue.rates is not None and queue.rates.publish is not None:
                queue.rates.count(queue, now_ms)
                limits.append(queue.rates.publish)
        return self._seconds(limits, 1)

    def published(self, user: str, vhost: VhostDefinition, count: int) -> None:
        """Take tokens for messages that came by HTTP and without a connection."""
        for limit in self._limits("publish", user, vhost, None):
            limit.bucket.take(count, self.timers.wall_ms())

    def pull_wait_seconds(self, user: str, vhost: VhostDefinition, queue: DeclaredQueue) -> int:
        """Return 0 if a message may be got by HTTP now, else seconds for Retry-After."""
        return self._seconds(self._of_pull(user, vhost, queue), 1)

    def pulled(self, user: str, vhost: VhostDefinition, queue: DeclaredQueue, count: int) -> None:
        """Take tokens for messages that were got by HTTP."""
        for limit in self._of_pull(user, vhost, queue):
            limit.bucket.take(count, self.timers.wall_ms())

    def _of_pull(self, user: str, vhost: VhostDefinition, queue: DeclaredQueue) -> list[Limit]:
        limits = self._limits("consume", user, vhost, None)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        return limits

    def _seconds(self, limits: Iterable[Limit], count: int) -> int:
        """Return 0 if `count` messages may pass now, else seconds for Retry-After."""
        now_ms = self.timers.wall_ms()
        waits = [limit.bucket.wait_ms(count, now_ms) for limit in limits]
        if all(wait == 0 for wait in waits):
            return 0
        return max(retry_after_seconds(NEVER_MS if wait is None else wait) for wait in waits)


class ConnectionLimits:
    """Rate limits of one connection, determined when it opens and whenever a limit changes."""

    __slots__ = ("_own_consume", "_own_publish", "_rates", "_user", "_vhost", "consume")

    def __init__(self, rates: Rates, user: str, vhost: Vhost) -> None:
        self._rates = rates
        self._user = user
        self._vhost = vhost
        self._own_publish = rates.own_limit("publish")
        self._own_consume = rates.own_limit("consume")
        self.consume: Sequence[Limit] = ()  # limits that its consumers share

    def follow(self) -> PublishMeter | None:
        """Determine the limits again. Returns the meter of its publishes; None without a limit."""
        rates, user, vhost = self._rates, self._user, self._vhost.definition
        self.consume = rates.consume_limits(user, vhost, self._own_consume)
        return rates.publish_meter(user, vhost, self._own_publish)

    def meter(
        self, queue: DeclaredQueue, consumer: QueueConsumer | None = None
    ) -> ConsumeMeter | None:
        """Return a meter of deliveries from a queue; None without a limit."""
        limits = list(self.consume)
        if queue.rates is not None and queue.rates.consume is not None:
            limits.append(queue.rates.consume)
        if not limits:
            return None
        return ConsumeMeter(limits, self._rates.timers, lambda: queue.wake(consumer))


class PublishMeter:
    """Publish rate meter of one connection.

    Published messages are counted first; then `allowance` says how many may follow.
    """

    def __init__(
        self, limits: Sequence[Limit], wall_ms: Callable[[], int], *, counts_queues: bool
    ) -> None:
        self._limits = limits
        self._wall_ms = wall_ms
        self.counts_queues = counts_queues
        self._queues: set[QueueRates] = set()  # of those that it has published to

    def published(self, count: int, builders: Collection[BatchBuilder]) -> None:
        """Count `count` published messages; `builders` are those of their target queues."""
        now_ms = self._wall_ms()
        for limit in self._limits:
            limit.bucket.take(count, now_ms)
        for builder in builders:
            queue: DeclaredQueue = builder.owner.whole
            if queue.rates is not None and queue.rates.publish is not None:
                self._queues.add(queue.rates)
                queue.rates.count(queue, now_ms)

    def allowance(self) -> int | None:
        """Return how many messages may be read next; None: no known limit."""
        now_ms = self._wall_ms()
        counts = [limit.bucket.available(now_ms) for limit in self._current()]
        if self.counts_queues:
            counts.append(UNROUTED_MAX)
        return min(counts, default=None)

    def wait(self) -> tuple[int | None, str]:
        """Return (ms until more may be published, None for never; the limit that causes it)."""
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
        """Return the effective limits, without those of queues that lost their rate meanwhile."""
        self._queues = {rates for rates in self._queues if rates.publish is not None}
        of_queues = [rates.publish for rates in self._queues if rates.publish is not None]
        return [*self._limits, *of_queues]


class ConsumeMeter:
    """Delivery rate meter of one consumer. `wake` is called when more may be delivered."""

    def __init__(self, limits: Sequence[Limit], timers: Timers, wake: Callable[[], None]) -> None:
        self._buckets = [limit.bucket for limit in limits]
        self._wall_ms = timers.wall_ms
        self._timer = timers.timer(wake)

    def available(self) -> int:
        """Return how many deliveries may follow now; if 0, `wake` will be called later."""
        now_ms = self._wall_ms()
        count = min(bucket.available(now_ms) for bucket in self._buckets)
        if count == 0 and self._timer.due_ms is None:
            self._timer.set(self._wake_ms(now_ms))
        return count

    def _wake_ms(self, now_ms: int) -> int | None:
        """Return the time at which a fraction of a second's messages may pass; None: never."""
        latest = now_ms + 1
        for bucket in self._buckets:
            if not bucket.available(now_ms):
                wake_ms = bucket.wake_ms(max(bucket.rate.per_second // CONSUME_PARTS, 1), now_ms)
                if wake_ms is None:
                    return None
                latest = max(latest, wake_ms)
        return latest

    def delivered(self, count: int) -> None:
        """Count deliveries."""
        now_ms = self._wall_ms()
        for bucket in self._buckets:
            bucket.take(count, now_ms)

    def wait_ms(self) -> int | None:
        """Return ms until one message may pass; None: never."""
        now_ms = self._wall_ms()
        longest = 0
        for bucket in self._buckets:
            wait_ms = bucket.wait_ms(1, now_ms)
            if wait_ms is None:
                return None
            longest = max(longest, wait_ms)
        return longest

    def stop(self) -> None:
        """Stop the meter: it is replaced, or the consumer was cancelled."""
        self._timer.close()


def _wait_ms(bucket: TokenBucket, parts: int, now_ms: int) -> int | None:
    if bucket.available(now_ms):
        return 0
    return bucket.wait_ms(max(bucket.rate.per_second // parts, 1), now_ms)
