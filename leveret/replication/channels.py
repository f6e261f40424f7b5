"""Channels of replication: one stream of a link for all partitions that one node leads for another.

The follower opens it, and opens it again whenever it is lost. Whatever waits at either end is
forgotten then, and asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from leveret.cluster.replication.messages import Refused
from leveret.errors import LeveretError
from leveret.ports.callbacks import do_nothing
from leveret.ports.link_kinds import REPLICATE
from leveret.replication.wire import (
    ChannelMessageError,
    LeaderMessage,
    pack_answer,
    pack_fetch,
    pack_follower,
    parse_answer,
    parse_fetch,
    parse_follower,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.partition_state import Member
    from leveret.links.peer import Peer
    from leveret.links.streams import LinkStream
    from leveret.replication.followed import FollowedPartition
    from leveret.replication.led import LedPartition
    from leveret.replication.wire import FollowerMessage

__all__ = ["FollowerChannel", "LeaderChannel", "PartitionRoles"]

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.2  # until a leader that is away is asked again; the link has its breaker
MALFORMED: Final = 100  # code of a stream's failure


class PartitionRoles(Protocol):
    """Partitions of this node, by key."""

    def led(self, key: str) -> LedPartition | None:
        """Return a partition if this node leads it."""
        ...

    def followed(self, key: str) -> FollowedPartition | None:
        """Return a partition if this node follows it."""
        ...

    def followed_from(self, node: int) -> list[FollowedPartition]:
        """Return the partitions that this node follows of a leader."""
        ...


class FollowerChannel:
    """A leader's end: answers one follower, for as long as the stream lasts."""

    def __init__(self, stream: LinkStream, roles: PartitionRoles) -> None:
        """Raises ChannelMessageError."""
        self.follower: Member = parse_follower(stream.opening)
        self._stream = stream
        self._roles = roles
        self._unsent: deque[LeaderMessage] = deque()
        self._due: dict[LedPartition, None] = {}
        self._asked: dict[LedPartition, None] = {}
        self._wake = asyncio.Event()
        stream.on_writable(self._wake.set)

    async def serve(self) -> None:
        """Answer until the follower or the link ends."""
        try:
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(self._answer())
                try:
                    await self._listen()
                finally:
                    answering.cancel()
        finally:
            for partition in self._asked:
                partition.left(self)

    async def _listen(self) -> None:
        while (payload := await self._stream.receive()) is not None:
            message = parse_fetch(payload, self.follower)
            partition = self._roles.led(message.key)
            if partition is None:
                self.send(LeaderMessage(message.key, Refused(message.request.epoch), None))
            else:
                self._asked[partition] = None
                partition.asked(message, self)

    def answer_soon(self, partition: LedPartition) -> None:
        """Have a partition answer once the stream takes it."""
        self._due[partition] = None
        self._wake.set()

    def send(self, message: LeaderMessage) -> None:
        """Send an answer once the stream takes it."""
        self._unsent.append(message)
        self._wake.set()

    async def _answer(self) -> None:
        """Send what is there, and read more only when that is sent: so little waits in memory."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (self._unsent or self._due) and self._stream.writable:
                if self._unsent:
                    self._stream.send(pack_answer(self._unsent.popleft()))
                else:
                    partition = next(iter(self._due))
                    del self._due[partition]
                    await partition.answer(self)


class LeaderChannel:
    """A follower's end: carries the requests for all partitions that `node` leads."""

    def __init__(self, peer: Peer, member: Member, roles: PartitionRoles) -> None:
        self._peer = peer
        self._member = member
        self._roles = roles
        self._stream: LinkStream | None = None
        self._unsent: dict[str, FollowerMessage] = {}
        self._on_end: Callable[[], None] = do_nothing

    @property
    def is_open(self) -> bool:
        """Whether the leader hears what is sent."""
        return self._stream is not None

    def send(self, message: FollowerMessage) -> None:
        """Send a request, or nothing if there is no channel now."""
        if self._stream is None:
            return
        if self._unsent or not self._stream.writable:
            earlier = self._unsent.get(message.key)
            if earlier is not None and earlier.wants_answer:
                message = message._replace(wants_answer=True)
            self._unsent[message.key] = message
            return
        self._send(message)

    def _send(self, message: FollowerMessage) -> None:
        assert self._stream is not None
        try:
            self._stream.send(pack_fetch(message))
        except LeveretError as error:  # it was lost: the task that receives knows it, too
            logger.debug("a request for %s is not sent: %s", message.key, error)

    def _send_rest(self) -> None:
        while self._unsent and self._stream is not None and self._stream.writable:
            self._send(self._unsent.pop(next(iter(self._unsent))))

    async def run(self) -> None:
        """Keep the channel open, until cancelled."""
        while True:
            try:
                stream = self._peer.open_stream(REPLICATE, pack_follower(self._member))
                await self._use(stream)
            except ChannelMessageError as error:
                logger.warning("node %d sends what makes no sense: %s", self._peer.node, error)
            except LeveretError as error:
                logger.debug("no channel to node %d: %s", self._peer.node, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _use(self, stream: LinkStream) -> None:
        self._stream = stream
        stream.on_writable(self._send_rest)
        try:
            for partition in self._roles.followed_from(self._peer.node):
                partition.begin()
            while (payload := await stream.receive()) is not None:
                message = parse_answer(payload)
                followed = self._roles.followed(message.key)
                if followed is not None:
                    await followed.take(message)
        except ChannelMessageError as error:
            stream.fail(MALFORMED, str(error))
            raise
        finally:
            self._stream = None
            self._unsent.clear()
