"""A channel in transactional mode: publishes and settlements wait for tx.commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp import frames
from leveret.amqp.destinations import Destinations, stored_form
from leveret.core.intake import Concern
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel, Holding
    from leveret.amqp.frames import Publish
    from leveret.core.logs.appender import Committing, Waiter

    Deposit = tuple[Publish, Destinations]
    Buffered = tuple[Publish, Destinations | Concern]
    Settlement = tuple[int, int, list[Holding]]  # kind, first tag, what it held

# A transaction is held in memory until it commits: more than this is refused, as a queue is the
# place for a backlog.
TRANSACTION_BYTES_MAX = 128 * 1024 * 1024


class Transaction:
    """What a channel has asked for since tx.select, tx.commit or tx.rollback.

    Messages are routed when they are published, as RabbitMQ does. Settled tags leave the channel's
    outstanding ones at once, so that a tag cannot be settled twice; they reach their queues at the
    commit, and are outstanding again after a rollback.

    What a feature wants to see, such as a message that is due later, it sees at the commit, and has
    it safe before the rest takes effect: a crash in between may leave it twice, but never loses it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[Buffered] = []
        self._publish_bytes = 0
        self._settles: list[Settlement] = []

    def buffer_publish(self, publish: Publish, then: Destinations | Concern) -> None:
        """Keep a message for the commit, and where it goes or who wants to see it then."""
        size = len(publish.body) + len(publish.header)
        self._publish_bytes += size
        self._channel.connection.count_transaction(size)
        if self._publish_bytes > TRANSACTION_BYTES_MAX:
            raise ChannelError(
                406, f"a transaction holds at most {TRANSACTION_BYTES_MAX} bytes; commit more often"
            )
        self._publishes.append((publish, then))

    def buffer_settle(self, kind: int, first: int, last: int, *, multiple: bool) -> int | None:
        """Keep a run of settlements for the commit. Returns the first tag that is unknown."""
        unacked = self._channel.unacked
        if not multiple:
            unknown = unacked.first_unknown(first, last)
        else:
            known = last == frames.ALL_TAGS or unacked.is_outstanding(last)
            first, unknown = 0, None if known else last
        if unknown is not None:
            return unknown
        for run_first, run_last in unacked.outstanding(last, first):
            held, _ = unacked.take(run_first, run_last)
            self._settles.append((kind, run_first, held))
        return None

    def commit(self) -> Commit:
        """Everything so far, to be awaited; what comes next belongs to the next transaction.

        Raises ChannelError where a feature refuses a message.
        """
        deposits: list[Deposit] = []
        taken: set[Committing] = set()
        for publish, then in self._publishes:
            committing = then.take() if isinstance(then, Concern) else None
            if committing is not None:
                taken.update(committing)
            elif isinstance(then, Concern):
                deposits.append((publish, self._channel.route(publish)))
            else:
                deposits.append((publish, then))
        commit = Commit(self._channel, deposits, self._settles, taken)
        self._forget_publishes()
        self._settles = []
        return commit

    def rollback(self) -> None:
        """Forget the publishes; what was settled is outstanding again under its old tags."""
        self._forget_publishes()
        settles, self._settles = self._settles, []
        restore(self._channel, settles)

    def _forget_publishes(self) -> None:
        self._channel.connection.count_transaction(-self._publish_bytes)
        self._publishes, self._publish_bytes = [], 0


def restore(channel: Channel, settles: list[Settlement]) -> None:
    """Let what was settled be outstanding again."""
    for _, first_tag, held in settles:
        tag = first_tag
        for holder, first, stop in held:
            channel.unacked.restore(tag, stop - first, first, holder)
            tag += stop - first


class Commit:
    """One tx.commit under way: publishes and acks take effect together, or none of them does.

    What a client rejects or gives back is told to its queues once the rest is safe: a crash in
    between delivers it again, as it does outside of transactions.
    """

    def __init__(
        self,
        channel: Channel,
        publishes: list[Deposit],
        settles: list[Settlement],
        taken: set[Committing],
    ) -> None:
        """`taken`: who must have committed before anything takes effect."""
        self.taken = taken
        self._channel = channel
        self._settles = settles
        self._publishes = [
            (
                publish,
                Destinations([b for b in found.builders if not b.owner.deleted], found.replies),
            )
            for publish, found in publishes
        ]

    def await_commit(self, waiter: Waiter) -> None:
        """Begin, and tell `waiter` how it ended."""
        self._waiter = waiter
        if self._publishes:
            self._channel.connection.mind_alarms()
        write = self._channel.broker.atomic.begin()
        for publish, found in self._publishes:
            flags, header = stored_form(publish)
            for queue in [builder.owner for builder in found.builders]:
                if queue.deleted:
                    continue  # since it was routed
                write.publish(
                    queue, flags, publish.exchange, publish.routing_key, header, publish.body
                )
        for kind, _, held in self._settles:
            if kind == frames.SETTLE:
                for holder, first, stop in held:
                    write.settle(holder.queue, [(first, stop)])
        write.commit(self)

    def done(self, *, failed: bool) -> None:
        """The write has taken effect, or has not."""
        if failed:
            self.give_back()
        else:
            self._take_effect()
        self._waiter.done(failed=failed)

    def give_back(self) -> None:
        """Nothing takes effect: what was settled is outstanding again, or back in its queue."""
        if self._channel.alive:
            restore(self._channel, self._settles)
            return
        for _, _, held in self._settles:
            self._channel.apply(frames.RETURN, held)

    def _take_effect(self) -> None:
        channel = self._channel
        for publish, found in self._publishes:
            channel.answer(publish, found)
        for kind, _, held in self._settles:
            if kind == frames.SETTLE:
                channel.release_credit(held)
            else:
                channel.apply(kind, held)
