"""Stream to the leader of a partition: opened when it is needed, and again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from leveret.clustering.forwarding.wire import (
    ForwardingMessageError,
    StreamOpening,
    pack,
    parse_from_leader,
)
from leveret.errors import LeveretError
from leveret.ports.link_kinds import FORWARD

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leveret.clustering.forwarding.remote_partition import RemotePartition
    from leveret.clustering.forwarding.wire import ToLeader
    from leveret.links.links import Links
    from leveret.links.streams import LinkStream

__all__ = ["MALFORMED", "NOT_LEADING", "ForwardingChannel"]

logger = logging.getLogger(__name__)

NOT_LEADING: Final = 100  # codes of a stream that fails
MALFORMED: Final = 101

RETRY_SECONDS_MIN: Final = 0.02
RETRY_SECONDS_MAX: Final = 0.5


class ForwardingChannel:
    """The client's node's end of the stream of one partition. `leader` is followed."""

    def __init__(
        self,
        key: str,
        links: Links,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self._key = key
        self._links = links
        self._spawn = spawn
        self._partition: RemotePartition
        self._leader: tuple[int, int] | None = None  # node and epoch
        self._stream: LinkStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def attach(self, partition: RemotePartition) -> None:
        """Serve a partition, as long as it stands for one that is led elsewhere."""
        self._partition = partition

    def follow(self, leader: tuple[int, int] | None) -> None:
        """Note who leads, and in which epoch."""
        if leader == self._leader:
            return
        self._leader = leader
        self._changed.set()
        if self._stream is not None:
            self._stream.fail(NOT_LEADING, "another node leads")
        if leader is not None and self._task is None:
            self._task = self._spawn(self._run())

    def close(self) -> None:
        """End: the partition is led here, or deleted."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._stream is not None:
            self._stream.fail(NOT_LEADING, "not needed any more")
            self._stream = None

    def send(self, message: ToLeader) -> bool:
        """Send a message to the leader. False: there is none, or no room; `resume` follows."""
        stream = self._stream
        if stream is None or not stream.writable:
            return False
        try:
            stream.send(pack(message))
        except LeveretError as error:  # it was lost: the task that receives knows it, too
            logger.debug("%s: %s", self._key, error)
            return False
        return True

    async def _run(self) -> None:
        delay = RETRY_SECONDS_MIN
        while True:
            self._changed.clear()
            if self._leader is not None and await self._use(*self._leader):
                delay = RETRY_SECONDS_MIN
            try:
                async with asyncio.timeout(delay if self._leader is not None else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            delay = min(delay * 2, RETRY_SECONDS_MAX)

    async def _use(self, node: int, epoch: int) -> bool:
        """Serve the partition by a stream to the leader. Returns whether it has answered."""
        partition = self._partition
        answered = False
        reason = "the leader has gone"
        try:
            opening = StreamOpening(self._key, epoch, partition.first_uncommitted)
            stream = self._links.peer(node).open_stream(FORWARD, opening.pack())
            try:
                self._stream = stream
                partition.leader = (node, epoch)
                stream.on_writable(partition.resume)
                partition.connected()
                while (payload := await stream.receive()) is not None:
                    answered = True
                    partition.handle(parse_from_leader(payload))
                stream.end()  # the leader hands the partition over, and waits for this
            except ForwardingMessageError as error:
                stream.fail(MALFORMED, str(error))
                raise
        except ForwardingMessageError as error:
            logger.warning("node %d: %s", node, error)
        except LeveretError as error:
            reason = str(error)
            logger.debug("%s cannot be forwarded to node %d: %s", self._key, node, error)
        finally:
            self._stream = None
            partition.disconnected(reason)
        return answered
