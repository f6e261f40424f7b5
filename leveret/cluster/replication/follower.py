"""Machine of a follower: it fetches what the leader has, and truncates what the leader has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.replication.messages import Diverged, Fetch, Records

if TYPE_CHECKING:
    from leveret.cluster.partition_state import Member
    from leveret.cluster.replication.messages import Answer
    from leveret.ports.epochs import EpochIndex

__all__ = ["FollowerReplica", "FollowerStep"]


class FollowerStep(NamedTuple):
    """Reaction to an answer: truncate the log, append to it, or nothing."""

    truncate_to: int | None = None
    append_at: int | None = None


class FollowerReplica:
    """One replica that follows the leader of `epoch`.

    Its log's offsets are passed in, since they move on their own: flushes end at any time.
    """

    def __init__(self, member: Member, epoch: int, epochs: EpochIndex, committed: int) -> None:
        self.epoch = epoch
        self.committed = committed
        self._member = member
        self._epochs = epochs

    def fetch(self, end: int, durable: int, stream_durable: int = 0) -> Fetch:
        """Return the request for what follows `end`."""
        return Fetch(self._member, self.epoch, end, self._epochs.last, durable, stream_durable)

    def take(self, answer: Answer, end: int) -> FollowerStep:
        """Return what is to be done about an answer, where the log ends at `end`.

        Answers of another epoch, and to a request from another end, were delayed on their way.
        """
        if answer.epoch != self.epoch:
            return FollowerStep()
        if isinstance(answer, Diverged):
            is_of_now = (answer.end, answer.last_epoch) == (end, self._epochs.last)
            return self._truncate(answer, end) if is_of_now else FollowerStep()
        if not isinstance(answer, Records) or answer.first != end:
            return FollowerStep()
        return FollowerStep(append_at=answer.first)

    def appended(self, answer: Records, end: int) -> int:
        """Note that an answer's batches are appended. Returns the committed offset."""
        self.committed = max(self.committed, min(answer.committed, end))
        return self.committed

    def _truncate(self, answer: Diverged, end: int) -> FollowerStep:
        epoch, agreed_end = answer.agrees_until
        own = self._epochs.end_of(epoch, end)
        # Where the leader's epoch has no records here, the logs agree up to where those begin here
        # that are younger: the next request asks about the epoch before.
        stop = min(own.end, agreed_end)
        if stop >= end:
            return FollowerStep()
        return FollowerStep(truncate_to=stop)
