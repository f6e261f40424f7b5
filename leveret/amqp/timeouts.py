"""Time limits of a channel's unsettled deliveries.

Two rules apply. RabbitMQ's consumer timeout closes a channel that holds a delivery for too long; a
visibility timeout, where the consumer or the queue has one, returns the delivery to the queue and
leaves the channel open. Either can be extended for a delivery, which is what long jobs need
(`Leases.extend`, asked for by leveret.amqp.lease_commands).

For the consumer timeout nothing is noted per delivery: a sweep over the channels notes now and then
which delivery tag was the last at that time. So an age is known to within the interval of the
sweeps, and never too high. For visibility timeouts runs of tags are noted, see
leveret.features.pull.rules.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.amqp import frames
from leveret.core.settings.discard_reasons import Reason
from leveret.features.pull.rules import LeaseEnds, Terms, rounded_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.amqp.settlements import Holding, LeaseHolder
    from leveret.amqp.unacked import Unacked
    from leveret.core.timers import Timers

# Holders that are gone are looked for when there are so many more than those that were left.
HOLDERS_MIN = 16
# A delivery whose lease has expired is returned and counts as failed.
TIMED_OUT = frames.RETURN | frames.REJECT


class DeliveryAges:
    """Ages of one channel's outstanding deliveries, known from periodic sweeps."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # (time, last tag delivered until then)

    def sweep(self, now_ms: int, oldest_tag: int | None, last_tag: int) -> int:
        """Note the last tag. Returns the known age of the oldest outstanding delivery, in ms."""
        marks = self._marks
        while marks and (oldest_tag is None or marks[0][1] < oldest_tag):
            marks.popleft()
        age_ms = now_ms - marks[0][0] if marks else 0
        if oldest_tag is not None and (not marks or marks[-1][1] < last_tag):
            marks.append((now_ms, last_tag))
        return age_ms

    def age(self, now_ms: int, tag: int) -> int:
        """Return the age of an outstanding tag that is known from the sweeps, in ms."""
        return next((now_ms - swept_ms for swept_ms, last in self._marks if last >= tag), 0)


class Leases:
    """Leases of one channel that have a time limit or an extension.

    `give_back(kind, held, cause)` returns deliveries, outstanding no longer, to their queues.
    """

    def __init__(
        self,
        unacked: Unacked[LeaseHolder],
        timers: Timers,
        give_back: Callable[[int, list[Holding], Reason], None],
    ) -> None:
        self._unacked = unacked
        self._timers = timers
        self._give_back = give_back
        self._terms: dict[LeaseHolder, Terms] = {}
        self._holders_max = HOLDERS_MIN  # before it looks which of them are gone
        self._extended = LeaseEnds()
        self._timer = self._timers.timer(self._end_due)

    def begin(self, holder: LeaseHolder, tag: int, count: int, term_ms: int) -> None:
        """Start leases of `term_ms` for the `count` tags from `tag` on, delivered to `holder`."""
        terms = self._terms.get(holder)
        if terms is None:
            if len(self._terms) > self._holders_max:
                self._forget_those_gone(tag)
            terms = self._terms[holder] = Terms()
        end_ms = rounded_end(self._timers.wall_ms(), term_ms)
        terms.begin(tag, tag + count - 1, end_ms)
        if self._timer.due_ms is None or end_ms < self._timer.due_ms:
            self._timer.set(end_ms)

    def _forget_those_gone(self, stop_tag: int) -> None:
        self._terms = {
            holder: terms
            for holder, terms in self._terms.items()
            if self._unacked.held_in(holder, 0, stop_tag)
        }
        self._holders_max = HOLDERS_MIN + 2 * len(self._terms)

    def extend(self, runs: list[tuple[int, int]], for_ms: int) -> None:
        """Extend the leases of the outstanding tags in `runs` to `for_ms` from now; 0: return."""
        if for_ms == 0:
            self._give_back(frames.RETURN, self._take(runs), Reason.REQUEUED)
            return
        end_ms = self._timers.wall_ms() + for_ms
        for first, last in runs:
            for tag in range(first, last + 1):
                self._extended.move(tag, end_ms)
        unacked = self._unacked
        self._extended.prune(unacked.count, lambda tag: unacked.holder_of(tag) is not None)
        self._set_timer()

    def oldest_untimed(self) -> tuple[int, LeaseHolder] | None:
        """Return (tag, holder) of the oldest delivery under the consumer timeout, or None."""
        for first, last, holder in self._unacked.runs():
            if visibility_timeout_ms(holder) is None:
                for untouched, _ in self._extended.outside(first, last):
                    return untouched, holder
        return None

    def _end_due(self) -> None:
        """Return the deliveries whose leases have expired to their queues."""
        unacked = self._unacked
        now_ms = self._timers.wall_ms()
        ended: list[tuple[int, int]] = []
        for holder, terms in list(self._terms.items()):
            for first, last in terms.take_due(now_ms):
                for run in unacked.held_in(holder, first, last):
                    ended += self._extended.outside(*run)
            if not terms:
                del self._terms[holder]
        for tag in self._extended.take_due(now_ms):
            late = unacked.holder_of(tag)  # without a visibility timeout the sweep sees to it
            if late is not None and visibility_timeout_ms(late) is not None:
                ended.append((tag, tag))
        self._set_timer()
        self._give_back(TIMED_OUT, self._take(ended), Reason.TIMED_OUT)

    def _take(self, runs: list[tuple[int, int]]) -> list[Holding]:
        """End these leases: a later settlement of them has no effect."""
        taken: list[Holding] = []
        for first, last in runs:
            taken += self._unacked.end(first, last)
        return taken

    def _set_timer(self) -> None:
        ends = [self._extended.next_ms, *(terms.next_ms for terms in self._terms.values())]
        self._timer.set(min((end for end in ends if end is not None), default=None))

    def close(self) -> None:
        """Stop the timer, because the channel is gone."""
        self._timer.set(None)


def visibility_timeout_ms(holder: LeaseHolder) -> int | None:
    """Return the visibility timeout in ms: the consumer's, else its queue's, else None."""
    own: int | None = holder.visibility_timeout_ms
    return holder.queue.settings.visibility_timeout_ms if own is None else own


def consumer_timeout_ms(holder: LeaseHolder, node_timeout_ms: int) -> int:
    """Return the consumer timeout in ms: the consumer's, its queue's or the node's; 0 is none."""
    settings = holder.queue.settings
    own = holder.arguments.get("x-consumer-timeout")
    if isinstance(own, int) and settings.counts_deliveries:  # consumers of quorum queues may ask
        return own
    queue_timeout_ms = settings.consumer_timeout_ms
    return node_timeout_ms if queue_timeout_ms is None else queue_timeout_ms
