"""Length limits of a queue, and the overflow policy.

Ready messages count, and those delayed after a requeue. A publish is judged as if it came alone:
messages that consumers can take at once do not count. Bytes are those of bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.logs.publish_tags import PublishTags
from leveret.core.settings.queue_settings import Overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.state import QueueState
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.records import Batch, BatchBuilder

UNLIMITED = (1 << 64) - 1


class OverflowPolicy:
    """Length limits of one queue. With a limit in bytes its state counts the bytes of bodies.

    `credit_once_sent()` is how many deliveries consumers can take once theirs are sent.
    """

    def __init__(
        self,
        state: QueueState,
        log: TopicLog,
        settings: QueueSettings,
        credit_once_sent: Callable[[], int],
    ) -> None:
        self._state = state
        self._credit_once_sent = credit_once_sent
        self._log = log
        self.reconfigure(settings)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply the limits of these settings from now on."""
        self._rejects = settings.rejects
        self._keeps_rejected = settings.overflow is Overflow.REJECT_PUBLISH_DLX
        self._length = UNLIMITED if settings.max_length is None else settings.max_length
        self._bytes = UNLIMITED if settings.max_length_bytes is None else settings.max_length_bytes
        builder = self._log.builder
        if not self._rejects:
            builder.publish_tags = None
        elif builder.publish_tags is None:
            builder.publish_tags = PublishTags()
        self._state.count_bytes(wanted=self._bytes != UNLIMITED)

    # -- refusing publishes

    def refuse(self, builder: BatchBuilder) -> Batch | None:
        """Apply the overflow policy: remove refused records from `builder`, nack their publishes.

        Returns the refused records if they go to the dead-letter exchange.
        """
        if not self._rejects:
            return None
        records_max, bytes_max = self._room(builder.count)
        tags = builder.publish_tags.take()
        if builder.count <= records_max and builder.size <= bytes_max:
            return None
        refused, kept = builder.refuse(records_max, bytes_max, self._keeps_rejected)
        for first_index, stop_index, publisher, tag in tags:
            for first, stop in refused.gaps(first_index, stop_index).gaps(first_index, stop_index):
                publisher.refused(tag + first - first_index, tag + stop - first_index)
        return kept

    def has_room(self, records: BatchBuilder) -> bool:
        """Whether `refuse` would accept all of these records. If not, they are left unusable."""
        if not self._rejects:
            return True
        records_max, bytes_max = self._room(records.count)
        if records.count <= records_max and records.size <= bytes_max:
            return True
        refused, _ = records.refuse(records_max, bytes_max, keep=False)
        return not refused

    def _room(self, wanted: int) -> tuple[int, int]:
        """Return how many records and bytes of bodies fit, when `wanted` records are published."""
        records_max = max(0, self._length - self._state.waiting_count - self._uncommitted_count())
        bytes_max = max(0, self._bytes - self._state.waiting_bytes - self._uncommitted_bytes())
        if self._length and self._bytes:  # a limit of zero refuses everything
            taken_at_once = self._credit_once_sent()
            records_max += taken_at_once
            bytes_max += UNLIMITED // 2 if taken_at_once >= wanted else 0
        return min(records_max, UNLIMITED), min(bytes_max, UNLIMITED)

    def _uncommitted_count(self) -> int:
        """Number of records not ready yet; of an unread backlog, settled ones may be included."""
        first, stop = self._state.committed, self._log.end
        return stop - first - self._log.settled.overlap(first, stop)

    def _uncommitted_bytes(self) -> int:
        return self._state.bytes_of(self._state.committed, self._log.end)

    # -- dropping the head

    def overflowing(self) -> list[tuple[int, int]]:
        """Withdraw the messages beyond the limits, in delivery order. Returns their ranges."""
        if self._rejects:
            return []
        ranges: list[tuple[int, int]] = []
        excess = self._state.waiting_count - self._length
        if excess > 0:
            ranges = self._state.withdraw(self._state.next_ranges(excess))
        excess_bytes = self._state.waiting_bytes - self._bytes
        if excess_bytes > 0:
            ranges += self._state.withdraw(self._state.next_ranges_of(excess_bytes))
        return ranges
