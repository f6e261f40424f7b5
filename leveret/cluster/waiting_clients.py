"""Clients that wait for a node that leads, and the order in which they ask for one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

__all__ = ["NONE_LEADS", "PASSES_MAX", "WaitingClients"]

PASSES_MAX = 16  # at a time: a leader answers so many handshakes at once
NONE_LEADS = "none leads"


class WaitingClients:
    """Clients of one protocol that wait for a leader which takes them.

    One of them asks for all, each in its turn, until one is taken: then others ask behind it, no
    more than PASSES_MAX at a time, and nobody has waited for too long before a leader has taken no
    more. `problem` is why the last one that asked was not taken.
    """

    def __init__(self) -> None:
        self.problem = NONE_LEADS
        self._waiting: OrderedDict[asyncio.Future[bool], asyncio.Task[Any]] = OrderedDict()
        self._asking: set[asyncio.Task[Any]] = set()
        self._takes = False  # whether the last one that asked was taken
        self._late: list[asyncio.Future[bool]] = []  # past their deadlines, while others are taken

    @property
    def count(self) -> int:
        """Number of those who do not ask at present."""
        return len(self._waiting)

    async def wait(self, deadline: float) -> bool:
        """Have this client's task wait, behind all others, to ask again; False: for too long."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "a coroutine runs"
        self.ended(task)
        self._takes = False
        late, self._late = self._late, []
        for each in late:
            self._give(each, False)
        if loop.time() >= deadline:
            return False
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting[turn] = task
        limit = loop.call_at(deadline, self._expire, turn)
        try:
            return await turn
        finally:
            limit.cancel()
            self._waiting.pop(turn, None)

    def try_one(self) -> None:
        """Have the next one ask, unless somebody does."""
        self._fill(1)

    def taken(self) -> None:
        """Note that this client's task has found a leader that takes clients."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs"
        self.ended(task)
        self._takes = True
        self._fill(PASSES_MAX)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Note that a client's task does not ask any more."""
        self._asking.discard(task)

    def _fill(self, asking_max: int) -> None:
        while self._waiting and len(self._asking) < asking_max:
            turn, task = self._waiting.popitem(last=False)
            self._asking.add(task)
            self._give(turn, True)

    def _expire(self, turn: asyncio.Future[bool]) -> None:
        if self._takes and turn in self._waiting:
            self._late.append(turn)
        else:
            self._give(turn, False)

    def _give(self, turn: asyncio.Future[bool], answer: bool) -> None:
        self._waiting.pop(turn, None)
        if not turn.done():
            turn.set_result(answer)
