"""A channel in transactional mode: publishes and settlements wait for tx.commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.amqp import frames
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel, Holding
    from leveret.amqp.frames import Publish
    from leveret.core.queue import Queue

# A transaction is held in memory until it commits: more than this is refused, as a queue is the place
# for a backlog.
TRANSACTION_BYTES_MAX = 128 * 1024 * 1024


class Transaction:
    """What a channel has asked for since tx.select, tx.commit or tx.rollback.

    Settlements leave the channel's outstanding tags at once, so that a tag cannot be settled twice, and
    reach their queues at the commit.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[Publish] = []
        self._publish_bytes = 0
        self._settles: list[tuple[int, list[Holding]]] = []

    def buffer_publish(self, publish: Publish) -> None:
        """Keep a message for the commit."""
        self._publish_bytes += len(publish.body) + len(publish.header)
        if self._publish_bytes > TRANSACTION_BYTES_MAX:
            raise ChannelError(
                406, f"a transaction holds at most {TRANSACTION_BYTES_MAX} bytes; commit more often"
            )
        self._publishes.append(publish)

    def buffer_settles(self, settles: list[tuple[int, int, int, bool]]) -> None:
        """Keep acknowledgements for the commit. Raises ChannelError for an unknown tag."""
        unacked = self._channel.unacked
        for kind, first, last, multiple in settles:
            if multiple:
                if last != frames.ALL_TAGS and not unacked.is_outstanding(last):
                    raise ChannelError(406, f"unknown delivery tag {last}")
                self._settles.append((kind, unacked.take_up_to(last)))
                continue
            held, unknown = unacked.take(first, last)
            self._settles.append((kind, held))
            if unknown is not None:
                raise ChannelError(406, f"unknown delivery tag {unknown}")

    def commit(self) -> set[Queue]:
        """Make everything take effect. Returns the queues that must have committed before commit-ok."""
        channel = self._channel
        publishes, self._publishes, self._publish_bytes = self._publishes, [], 0
        settles, self._settles = self._settles, []
        queues: set[Queue] = set()
        for publish in publishes:
            builders = channel.connection.route(publish)
            if builders:
                channel.connection.reader.deposit(channel.slot, builders, publish)
                queues.update(builder.owner for builder in builders)
            elif publish.mandatory:
                channel.connection.return_message(channel.number, publish)
        for kind, held in settles:
            channel.apply(kind, held)
        return queues

    def rollback(self) -> None:
        """Forget the publishes; the settled messages are outstanding no more and go back."""
        self._publishes, self._publish_bytes = [], 0
        settles, self._settles = self._settles, []
        for _, held in settles:
            self._channel.apply(frames.RETURN, held)
