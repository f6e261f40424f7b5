"""Questions that a stand-in asks the leader of a partition, or the next leader if that one goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.clustering.forwarding.remote_parts import LeaderGoneError
from leveret.core.names import resource
from leveret.errors import ChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.clustering.forwarding.wire import (
        GotRecord,
        LogOffsets,
        PurgeAnswer,
        QueueFigures,
        ToLeader,
    )
    from leveret.ports.definitions import QueueDefinition

__all__ = ["LeaderQuestions"]

# Time for the answers to what clients wait for, an election included.
ANSWER_SECONDS_MAX: Final = 10.0


class LeaderQuestions:
    """Questions about one partition that are not answered yet. `post(message)` sends one."""

    def __init__(self, post: Callable[[ToLeader], None]) -> None:
        self._post = post
        self._numbers = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._has_leader = asyncio.Event()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._answers)

    async def ask(self, make: Callable[[int], ToLeader], definition: QueueDefinition) -> Any:
        """Ask what `make(number)` makes, and return the answer. Raises ChannelError 404.

        Returns None where no leader is asked any more (see `end`).
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while not self._is_over:
                    await self._has_leader.wait()
                    if self._is_over:
                        break
                    try:
                        return await self._ask_once(make)
                    except LeaderGoneError:
                        continue
        except TimeoutError:
            raise _no_leader(definition) from None
        return None

    async def _ask_once(self, make: Callable[[int], ToLeader]) -> Any:
        self._numbers += 1
        number = self._numbers
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._post(make(number))
            return await answer
        finally:
            self._answers.pop(number, None)

    def answered(self, answer: GotRecord | QueueFigures | PurgeAnswer | LogOffsets) -> None:
        """Take an answer of the leader."""
        asked = self._answers.get(answer.request)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def connected(self) -> None:
        """Ask the leader, to which there is a stream now."""
        self._has_leader.set()

    def disconnected(self, reason: str) -> None:
        """Ask the next leader what this one has not answered."""
        if not self._is_over:
            self._has_leader.clear()
        self._forget(reason)

    def end(self, reason: str) -> None:
        """Ask nobody any more: this node leads, or the queue is deleted."""
        self._is_over = True
        self._has_leader.set()
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(LeaderGoneError(reason))


def _no_leader(definition: QueueDefinition) -> ChannelError:
    return ChannelError(
        404,
        f"{resource('queue', definition.name, definition.vhost)} has no leader that answers: the "
        "nodes that have it are down or inaccessible",
    )
