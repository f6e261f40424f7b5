"""A partition that this node follows: its log, the follower's machine, and what it asks for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from leveret.cluster.replication.follower import FollowerReplica
from leveret.cluster.replication.messages import Records, Refused
from leveret.errors import LeveretError
from leveret.replication.wire import FollowerMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.partition_state import Member
    from leveret.replication.replica import PartitionReplica
    from leveret.replication.wire import LeaderMessage

__all__ = ["FollowedPartition"]

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5  # after an error of this disk, or a leader that does not know it is one


class FollowedPartition:
    """A follower's side of one partition in one epoch.

    `send` takes a message to the leader, and does nothing while there is no channel to it: `begin`
    is called once there is one. `later(seconds, call)` calls back.
    """

    def __init__(
        self,
        replica: PartitionReplica,
        member: Member,
        epoch: int,
        send: Callable[[FollowerMessage], None],
        later: Callable[[float, Callable[[], None]], object],
        *,
        truncated: Callable[[], None],
        outvoted: Callable[[], None],
    ) -> None:
        """`truncated` is called at the end of each truncation, also of one that has failed.

        `outvoted` is called where the leader lacks what was committed, because an operator had it
        elected: the log must be opened again before it is truncated there.
        """
        self.key = replica.key
        log = self.log = replica.log
        log.follow()
        self.is_over = False  # another epoch, or none
        self.is_truncating = False  # so that the log takes no other role now
        self._truncated = truncated
        self._outvoted = outvoted
        self._machine = FollowerReplica(member, epoch, log.epochs, log.committed)
        self._send = send
        self._later = later
        self._waits = False  # whether the leader has a request that it has not answered
        self._reported = (-1, -1)  # what it knows to be durable here
        self._complained = False

    @property
    def epoch(self) -> int:
        """Epoch of the leader that it follows."""
        return self._machine.epoch

    def begin(self) -> None:
        """Ask for what follows, because there is a channel to the leader."""
        if not self.is_over and self.log.failure is None:
            self._waits = True
            self._ask(wants_answer=True)

    def progressed(self) -> None:
        """Report what has become durable, while the leader waits for more to send."""
        durable = (self.log.durable, self.log.stream_durable)
        if self._waits and not self.is_over and durable != self._reported:
            self._ask(wants_answer=False)

    def _ask(self, *, wants_answer: bool) -> None:
        log = self.log
        self._reported = durable = (log.durable, log.stream_durable)
        request = self._machine.fetch(log.end, *durable)
        committed = self._machine.committed
        message = FollowerMessage(
            self.key, request, log.stream_position, committed, wants_answer=wants_answer
        )
        self._send(message)

    async def take(self, message: LeaderMessage) -> None:
        """Do what the leader has answered, and ask again."""
        answer = message.answer
        if self.is_over or (answer.epoch != self.epoch and not isinstance(answer, Refused)):
            return
        self._waits = False
        if isinstance(answer, Refused):
            self._later(RETRY_SECONDS, self.begin)
            return
        try:
            step = self._machine.take(answer, self.log.end)
            if step.truncate_to is not None:
                await self._truncate(step.truncate_to)
            elif step.append_at is not None and message.run is not None:
                self.log.append_stream(message.run, self.epoch)
                assert isinstance(answer, Records)
                self.log.limit_commit(self._machine.appended(answer, self.log.end))
        except LeveretError as error:
            if not self._complained:
                logger.warning("%s cannot be copied, and is tried again: %s", self.key, error)
            self._complained = True
            self._later(RETRY_SECONDS, self.begin)
            return
        self._complained = False
        self.begin()

    async def _truncate(self, end: int) -> None:
        if end < self.log.committed:
            logger.warning(
                "%s: records from offset %d on were committed and are lost: its leader was elected "
                "by an operator, and does not have them",
                self.key,
                end,
            )
            self._outvoted()
            return
        self.is_truncating = True
        try:
            await self.log.truncate(end)
        finally:
            self.is_truncating = False
            self._truncated()

    def end(self) -> None:
        """Ask no more."""
        self.is_over = True
