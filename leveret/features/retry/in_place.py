"""Retries in place: a failed record stays where it is, and is delivered again after a delay.

That is how consumer groups retry. A copy at the end of the log would be one more message for all
other groups and readers. The number of attempts is kept by the log of the subscription, the
remaining delay in memory: after a restart the record is ready at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import raw_headers
from leveret.features.retry.failed_records import exhausted, failed_records
from leveret.features.retry.rules import (
    FIRST_AT,
    Attempts,
    failed_headers,
    message_retry_policy,
    without_attempts,
)
from leveret.ports.ranges import RangeSet
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.queues.discarding import BatchSlice
    from leveret.core.queues.queue import Queue
    from leveret.core.settings.discard_reasons import Reason

__all__ = ["retry_in_place"]


def retry_in_place(
    queue: Queue, slices: Sequence[BatchSlice], reason: Reason, chance: Callable[[], float]
) -> tuple[list[tuple[int, int]], list[BatchSlice]]:
    """Delay retryable records. Returns (their offsets, the exhausted records with the failure)."""
    of_queue = queue.settings.retry
    assert of_queue is not None, "the queue retries"
    now_s = queue.services.timers.wall_ms() // 1000
    delayed: dict[int, RangeSet] = {}  # by milliseconds
    spent: list[BatchSlice] = []
    for part in slices:
        for record in failed_records(part):
            policy = of_queue
            if record.flags & RecordFlag.HAS_RETRY:
                policy = message_retry_policy(of_queue, raw_headers(record.header))
            retries = queue.state.retry_count(record.offset)
            if retries >= policy.attempts_max:
                # Earlier headers are the publisher's, or of other consumers' failures.
                own = without_attempts(raw_headers(record.header))
                headers = failed_headers(own, Attempts(retries), reason, now_s)
                del headers[FIRST_AT]  # nobody has noted it
                spent.append(exhausted(record, headers))
            else:
                offsets = delayed.setdefault(policy.wait_ms(retries + 1, chance()), RangeSet())
                offsets.add(record.offset, record.offset + 1)
    retried: list[tuple[int, int]] = []
    for delay_ms, offsets in delayed.items():
        retried += offsets
        queue.retry(list(offsets), delay_ms)
    return retried, spent
