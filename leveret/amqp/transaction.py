"""A channel in transactional mode: publishes and settlements wait for tx.commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp import frames
from leveret.amqp.destinations import Destinations
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel, Holding
    from leveret.amqp.frames import Publish
    from leveret.core.open_queue import OpenQueue

# A transaction is held in memory until it commits: more than this is refused, as a queue is the
# place for a backlog.
TRANSACTION_BYTES_MAX = 128 * 1024 * 1024


class Transaction:
    """What a channel has asked for since tx.select, tx.commit or tx.rollback.

    Messages are routed when they are published, as RabbitMQ does. Settled tags leave the channel's
    outstanding ones at once, so that a tag cannot be settled twice; they reach their queues at the
    commit, and are outstanding again after a rollback.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[tuple[Publish, Destinations]] = []
        self._publish_bytes = 0
        self._settles: list[tuple[int, int, list[Holding]]] = []  # (kind, first tag, what it held)
        self.is_partial = False  # a queue has not taken what was published to it

    def refused(self, _first: int, _stop: int) -> None:
        """A queue has found no room for a message (see leveret.core.origins)."""
        self.is_partial = True

    def buffer_publish(self, publish: Publish, destinations: Destinations) -> None:
        """Keep a message for the commit."""
        self._publish_bytes += len(publish.body) + len(publish.header)
        if self._publish_bytes > TRANSACTION_BYTES_MAX:
            raise ChannelError(
                406, f"a transaction holds at most {TRANSACTION_BYTES_MAX} bytes; commit more often"
            )
        self._publishes.append((publish, destinations))

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

    def commit(self) -> set[OpenQueue]:
        """Make everything take effect. Returns the queues that must have committed first."""
        channel = self._channel
        publishes, self._publishes, self._publish_bytes = self._publishes, [], 0
        settles, self._settles = self._settles, []
        queues: set[OpenQueue] = set()
        for publish, found in publishes:
            builders = [builder for builder in found.builders if not builder.owner.deleted]
            channel.deposit(publish, Destinations(builders, found.replies))
            for builder in builders:
                queues.add(builder.owner)
                if builder.origins is not None:
                    builder.origins.add(self, 0, builder.count - 1)
        for kind, _, held in settles:
            channel.apply(kind, held)
        return queues

    def rollback(self) -> None:
        """Forget the publishes; what was settled is outstanding again under its old tags."""
        self._publishes, self._publish_bytes = [], 0
        settles, self._settles = self._settles, []
        for _, first_tag, held in settles:
            tag = first_tag
            for holder, first, stop in held:
                self._channel.unacked.restore(tag, stop - first, first, holder)
                tag += stop - first
