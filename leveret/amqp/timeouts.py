"""How long a channel's oldest delivery has waited to be acknowledged.

Nothing is noted per delivery: a sweep over the channels notes now and then which delivery tag was
the last at that time. So an age is known to within the interval of the sweeps, and never too high.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.errors import ChannelError

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel
    from leveret.amqp.consumer import ChannelConsumer, Getter


class DeliveryAges:
    """The sweeps over one channel that still tell something of an outstanding delivery."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # (time, last tag delivered until then)

    def sweep(self, now_ms: int, oldest_tag: int | None, last_tag: int) -> int:
        """Take note of the last tag. Returns how many ms the oldest one is known to have waited."""
        marks = self._marks
        while marks and (oldest_tag is None or marks[0][1] < oldest_tag):
            marks.popleft()
        age_ms = now_ms - marks[0][0] if marks else 0
        if oldest_tag is not None and (not marks or marks[-1][1] < last_tag):
            marks.append((now_ms, last_tag))
        return age_ms


def check_acknowledged(channel: Channel, now_ms: int, node_timeout_ms: int) -> None:
    """Raise ChannelError 406 where a consumer has not settled a delivery in time."""
    oldest = channel.unacked.oldest()
    oldest_tag = None if oldest is None else oldest[0]
    age_ms = channel.delivery_ages.sweep(now_ms, oldest_tag, channel.slot.delivery_tag)
    if oldest is None:
        return
    timeout_ms = _timeout_ms(oldest[1], node_timeout_ms)
    if timeout_ms and age_ms >= timeout_ms:
        raise ChannelError(
            406,
            f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
            f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to "
            "learn more",
        )


def _timeout_ms(holder: ChannelConsumer | Getter, node_timeout_ms: int) -> int:
    """What the consumer asked for, else its queue, else the node; 0 is for ever."""
    settings = holder.queue.settings
    own = holder.arguments.get("x-consumer-timeout")
    if isinstance(own, int) and settings.counts_deliveries:  # consumers of quorum queues may ask
        return own
    queue_timeout_ms = settings.consumer_timeout_ms
    return node_timeout_ms if queue_timeout_ms is None else queue_timeout_ms
