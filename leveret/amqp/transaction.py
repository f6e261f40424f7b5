"""A channel in transactional mode: publishes and settlements wait for tx.commit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.amqp import frames
from leveret.amqp.destinations import Destinations, answer, route, stored_form
from leveret.core.logs.log_writer import JointCommit
from leveret.core.publish_interceptors import InterceptedPublish
from leveret.errors import ChannelError
from leveret.ports.records import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from leveret.amqp.frames import Publish
    from leveret.amqp.settlements import Holding
    from leveret.amqp.settling import ChannelDeliveries
    from leveret.core.logs.atomic import AtomicWrite
    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue

    Deposit = tuple[Publish, Destinations]
    Buffered = tuple[Publish, Destinations | InterceptedPublish]
    Filled = dict[DeclaredQueue, tuple[int, int]]  # number of messages, bytes of their bodies
    Settlement = tuple[int, int, list[Holding]]  # kind, first tag, what it held

# A transaction is held in memory until it commits: more than this is refused, as a queue is the
# place for a backlog. A queue's part of it is one batch.
TRANSACTION_BYTES_MAX = 128 * 1024 * 1024

# What is done before somebody looks at the clock: publishes, and runs of settled deliveries. Some
# 0.2 ms each.
SLICE_PUBLISHES = 32
SLICE_SETTLES = 128
# Queues to which a commit writes in one turn: the first write of each makes its files, in up to
# half a millisecond.
QUEUES_TOGETHER = 16


class Transaction:
    """Publishes and settlements of a channel since tx.select, tx.commit or tx.rollback.

    Messages are routed when they are published, as RabbitMQ does. Settled tags leave the channel's
    outstanding ones at once, so that a tag cannot be settled twice; they reach their queues at the
    commit, and are outstanding again after a rollback.

    A message that a feature takes, such as a delayed one, reaches the feature at the commit and is
    safe there before the rest takes effect: a crash in between may store it twice, but never loses
    it. If a queue lacks copies or is full, the commit fails before any feature has taken a message.

    It may be long, so it is processed in steps, by `Connection.take_time`.
    """

    def __init__(self, channel: ChannelDeliveries) -> None:
        self._channel = channel
        self._publishes: deque[Buffered] = deque()
        self._publish_bytes = 0
        self._asks_features = False
        self._settles: deque[Settlement] = deque()
        self._commit: Commit | None = None  # what it has been gathered into, until that is begun

    def buffer_publish(self, publish: Publish, then: Destinations | InterceptedPublish) -> None:
        """Buffer a message for the commit, with its destinations or the feature that takes it."""
        stored = publish.exchange, publish.routing_key, publish.header, publish.body
        size = RECORD_BYTES_MIN + sum(map(len, stored))
        self._publish_bytes += size
        self._channel.connection.count_transaction(size)
        if self._publish_bytes > TRANSACTION_BYTES_MAX:
            raise ChannelError(
                406, f"a transaction holds at most {TRANSACTION_BYTES_MAX} bytes; commit more often"
            )
        self._publishes.append((publish, then))
        self._asks_features |= isinstance(then, InterceptedPublish)

    def buffer_settle(self, kind: int, first: int, last: int, *, multiple: bool) -> int | None:
        """Buffer a run of settlements for the commit. Returns the first tag that is unknown."""
        channel = self._channel
        unacked = channel.unacked
        if not multiple:
            unknown = unacked.first_unknown(first, last)
        else:
            known = last == frames.ALL_TAGS or unacked.is_outstanding(last)
            first, unknown = 0, None if known else last
        if unknown is not None:
            return unknown
        if self._take_runs(kind, first, last):
            # What is delivered meanwhile is not meant by it.
            last = min(last, channel.slot.delivery_tag)
            channel.connection.take_time(self._taking_runs(kind, first, last))
        return None

    def _take_runs(self, kind: int, first: int, last: int) -> bool:
        """Take some runs of outstanding tags. Returns whether there may be more."""
        unacked = self._channel.unacked
        runs = unacked.outstanding(last, first, SLICE_SETTLES)
        for run_first, run_last in runs:
            held, _ = unacked.take(run_first, run_last)
            self._settles.append((kind, run_first, held))
        return len(runs) == SLICE_SETTLES

    def _taking_runs(self, kind: int, first: int, last: int) -> Iterator[None]:
        while self._take_runs(kind, first, last):
            yield

    def committing(self) -> Generator[None, None, Commit | None]:
        """Gather everything so far into a Commit, in steps.

        Later publishes belong to the next transaction. None where the connection ends meanwhile:
        its end rolls everything back. Raises ChannelError where a feature refuses a message, or
        would take one though a queue is full or lacks copies for the rest; a call after an error
        continues behind what was gathered.
        """
        connection = self._channel.connection
        self._commit = commit = self._commit or Commit(self._channel)
        for _ in self._checking_queues(commit.began_ms):
            yield
            if not connection.is_open:
                return None
        publishes = self._publishes
        while publishes:
            for _ in range(min(SLICE_PUBLISHES, len(publishes))):
                commit.add_publish(*publishes[0])
                publishes.popleft()
            yield
            if not connection.is_open:
                return None
        for number, (kind, _, held) in enumerate(self._settles, 1):
            commit.add_settle(kind, held)
            if not number % SLICE_SETTLES:
                yield
                if not connection.is_open:
                    return None
        commit.settles, self._settles = self._settles, deque()
        self._commit = None
        self._forget_publishes()
        return commit

    def _checking_queues(self, now_ms: int) -> Iterator[None]:
        """Raise ChannelError if a feature refuses a message, or a queue is full or lacks copies.

        In steps, and only if a feature takes some: what one has taken would be stored although the
        rest fails, each time that it is repeated. Messages that none takes are routed.
        """
        if not self._asks_features:
            return
        found: set[DeclaredQueue] = set()
        filled: Filled = {}
        interceptors, lacks_copies = self._channel.broker.publish_interceptors, False
        checked: deque[Buffered] = deque()
        for number, (publish, intended) in enumerate(self._publishes, 1):
            then = intended
            if isinstance(then, InterceptedPublish):
                then = then.looked_at(now_ms)
                then = then if then.would_be_taken() else route(self._channel, publish)
            if isinstance(then, InterceptedPublish):
                lacks_copies = lacks_copies or interceptors.lacks_copies(then.context)
            else:
                found.update(builder.owner for builder in then.builders)
                _fill(filled, publish, then)
            checked.append((publish, then))
            if not number % SLICE_PUBLISHES:
                yield
        former, self._publishes = self._publishes, checked
        yield from forgetting(former)
        for number, (kind, _, held) in enumerate(self._settles, 1):
            if kind == frames.SETTLE:
                found.update(each.queue for each, _, _ in held if each.queue.settles_in_log)
            if not number % SLICE_SETTLES:
                yield
        there = [queue for queue in filled if not queue.deleted]
        is_full = any(not queue.has_room(*filled[queue]) for queue in there)
        if (
            is_full
            or lacks_copies
            or any(queue.lacks_copies for queue in found if not queue.deleted)
        ):
            raise ChannelError(406, "partial tx completion")

    def rolling_back(self) -> Iterator[None]:
        """Drop the publishes and make what was settled outstanding again, in steps."""
        commit, self._commit = self._commit, None
        if commit is not None:
            yield from forgetting(commit.publishes)
        yield from forgetting(self._publishes)
        self._forget_publishes()
        yield from restoring(self._channel, self._settles)

    def _forget_publishes(self) -> None:
        self._channel.connection.count_transaction(-self._publish_bytes)
        self._publish_bytes = 0
        self._asks_features = False


def _fill(filled: Filled, publish: Publish, destinations: Destinations) -> None:
    """Note a message with those of its queues that refuse what is too much."""
    for builder in destinations.builders:
        queue: DeclaredQueue = builder.owner
        if not queue.deleted and queue.settings.rejects:
            count, body_bytes = filled.get(queue, (0, 0))
            filled[queue] = count + 1, body_bytes + len(publish.body)


def forgetting(publishes: deque[Deposit] | deque[Buffered]) -> Iterator[None]:
    """Drop buffered messages, in steps, because freeing many at once takes long."""
    while publishes:
        for _ in range(min(SLICE_PUBLISHES, len(publishes))):
            publishes.popleft()
        yield


def restoring(channel: ChannelDeliveries, settles: deque[Settlement]) -> Iterator[None]:
    """Make settled deliveries outstanding again, in steps."""
    while settles:
        for _ in range(min(SLICE_SETTLES, len(settles))):
            _, tag, held = settles.popleft()
            channel.restore(tag, held)
        yield


class Commit:
    """One tx.commit in progress: publishes and acks take effect together, or none of them does.

    Rejected and returned deliveries are passed to their queues once the rest is safe: a crash in
    between delivers them again, as it does outside of transactions.
    """

    def __init__(self, channel: ChannelDeliveries) -> None:
        self.taken = JointCommit()  # by features; comes before anything takes effect
        self.publishes: deque[Deposit] = deque()
        self.settles: deque[Settlement] = deque()
        self.began_ms = channel.broker.timers.wall_ms()
        self._channel = channel
        self._writes = [channel.broker.atomic.begin()]  # decided as one
        self._write_of: dict[DeclaredQueue, AtomicWrite] = {}

    # -- what belongs to it

    def add_publish(self, publish: Publish, then: Destinations | InterceptedPublish) -> None:
        """Add a message to the atomic writes, unless a feature takes it. Raises ChannelError."""
        if isinstance(then, InterceptedPublish):
            committing = then.intercept()
            if committing is not None:
                self.taken.add(committing)
                return
            then = route(self._channel, publish)
        builders = [builder for builder in then.builders if not builder.owner.deleted]
        flags, header = stored_form(publish)
        for builder in builders:
            self._write_to(builder.owner.whole).publish(
                builder.owner, flags, publish.exchange, publish.routing_key, header, publish.body
            )
        self.publishes.append((publish, Destinations(builders, then.replies)))

    def add_settle(self, kind: int, held: list[Holding]) -> None:
        """Add acknowledgements to the atomic writes; all settlements must be in `settles`, too."""
        if kind == frames.SETTLE:
            for holder, first, stop in held:
                self._write_to(holder.queue.whole).settle(holder.queue, [(first, stop)])

    def _write_to(self, queue: DeclaredQueue) -> AtomicWrite:
        """Return the atomic write for a queue, whose partitions have their limits together."""
        write = self._write_of.get(queue)
        if write is None:
            if len(self._write_of) == QUEUES_TOGETHER * len(self._writes):
                self._writes.append(self._channel.broker.atomic.begin())
            write = self._write_of[queue] = self._writes[-1]
        return write

    # -- how it ends

    def await_commit(self, waiter: Waiter) -> None:
        """Start the atomic writes; tell `waiter` how it ended."""
        self._waiter = waiter
        if self.publishes:
            self._channel.connection.check_alarms()
        if len(self._writes) == 1:
            self._writes[0].commit(self)
        else:
            self._channel.broker.atomic.commit_together(self._writes, self)

    def done(self, *, failed: bool) -> None:
        """Finish the transaction after the atomic writes have committed or failed."""
        self._channel.connection.take_time(self._ending(failed=failed))

    def _ending(self, *, failed: bool) -> Iterator[None]:
        try:
            yield from self.giving_back() if failed else self._taking_effect()
        finally:
            self._waiter.done(failed=failed)

    def giving_back(self) -> Iterator[None]:
        """Undo a failed commit: make settled deliveries outstanding again, or return them."""
        channel = self._channel
        yield from forgetting(self.publishes)
        if channel.alive:
            yield from restoring(channel, self.settles)
        while self.settles:
            for _ in range(min(SLICE_SETTLES, len(self.settles))):
                channel.apply(frames.RETURN, self.settles.popleft()[2])
            yield

    def _taking_effect(self) -> Iterator[None]:
        channel = self._channel
        publishes, settles = self.publishes, self.settles
        while publishes:
            for _ in range(min(SLICE_PUBLISHES, len(publishes))):
                answer(channel, *publishes.popleft())
            yield
        while settles:
            for _ in range(min(SLICE_SETTLES, len(settles))):
                kind, _, held = settles.popleft()
                if kind == frames.SETTLE:
                    channel.release_credit(held)
                else:
                    channel.apply(kind, held)
            yield
