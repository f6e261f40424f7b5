"""Writes of this node: those that wait at the same time share a batch."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.metadata.grouping import group_writes
from leveret.errors import LeveretError
from leveret.ports.coordination import ConflictError, OutcomeUnknownError
from leveret.zookeeper.connection import ConnectionInterruptedError
from leveret.zookeeper.metadata_log import StaleHeadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.cluster.metadata.changes import PendingWrite
    from leveret.cluster.metadata.grouping import WriteGroup
    from leveret.zookeeper.connection import ZooKeeperConnection
    from leveret.zookeeper.metadata_log import MetadataLog

__all__ = ["MetadataWriter"]

PAUSE_SECONDS_MAX = 0.02


class _Waiter(NamedTuple):
    number: int
    write: PendingWrite
    outcome: asyncio.Future[int]


class MetadataWriter:
    """Queue of writes, and of those who want the state to catch up; `run` serves them."""

    def __init__(self, log: MetadataLog, connection: ZooKeeperConnection) -> None:
        self._log = log
        self._connection = connection
        self._queue: deque[_Waiter] = deque()
        self._catching_up: list[asyncio.Future[int]] = []
        self._filled = asyncio.Event()
        self._number = 0  # of the last write that was asked for

    async def write(self, write: PendingWrite) -> int:
        """Return the sequence number that a write got, once it has its turn."""
        self._number += 1
        waiter = _Waiter(self._number, write, asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._filled.set()
        return await waiter.outcome

    async def catch_up(self) -> None:
        """Wait until the state has what all nodes had written before this call."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._catching_up.append(outcome)
        self._filled.set()
        await outcome

    def refuse(self, error: LeveretError) -> None:
        """Fail all that wait for their turn; what is under way is not among them."""
        for outcome in (*self._catching_up, *(waiter.outcome for waiter in self._queue)):
            _fail(outcome, error)
        self._catching_up.clear()
        self._queue.clear()

    async def run(self) -> None:
        """Serve the queue for ever."""
        while True:
            await self._filled.wait()
            await self._connection.connected()
            try:
                while self._queue or self._catching_up:
                    await self._work()
            except ConnectionInterruptedError:
                continue
            except LeveretError as error:
                self.refuse(error)
            self._filled.clear()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self._log.lock:
            accepted = await self._select()
            if not accepted:
                return
            await self._commit(accepted)
        # Who has just written knows the head, and would always be first with his next batch. Others
        # get as much time as they need to read this one.
        pause = min(PAUSE_SECONDS_MAX, loop.time() - began)
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311

    async def _select(self) -> list[_Waiter]:
        """Return the writes for the next batch; what conflicts, or only checks, is answered."""
        last, catching_up = self._number, list(self._catching_up)
        if catching_up:
            await self._log.synchronize()
            for outcome in catching_up:
                _resolve(outcome, self._log.state.sequence)
            self._catching_up = [each for each in self._catching_up if not each.done()]
        group = self._group()
        # What an older state refuses the latest one may allow, and what it allows is not certain.
        # The latest one is so for those who had asked before it was read.
        if group.conflicts or not self._all_change(group):
            if not catching_up:
                await self._log.synchronize()
            group = self._group(last)
        taken = [self._queue.popleft() for _ in range(group.taken)]
        for index, keys in group.conflicts:
            _fail(taken[index].outcome, ConflictError(keys))
        accepted = [taken[index] for index in group.accepted]
        for waiter in accepted:
            if not waiter.write.changes:
                _resolve(waiter.outcome, self._log.state.sequence)
        return [waiter for waiter in accepted if waiter.write.changes]

    def _group(self, last: int | None = None) -> WriteGroup:
        """Return the outcome of the first writes, of those up to number `last` if it is given."""
        waiting: Iterable[_Waiter] = self._queue
        if last is not None:
            waiting = takewhile(lambda each: each.number <= last, waiting)
        return group_writes(self._log.state, (each.write for each in waiting))

    def _all_change(self, group: WriteGroup) -> bool:
        return all(self._queue[index].write.changes for index in group.accepted)

    async def _commit(self, accepted: list[_Waiter]) -> None:
        changes = (change for waiter in accepted for change in waiter.write.changes)
        try:
            number = await self._log.commit(changes)
        except StaleHeadError:
            self._queue.extendleft(reversed(accepted))
            return
        except ConnectionInterruptedError:
            self._queue.extendleft(reversed(accepted))
            raise
        except LeveretError as error:
            for waiter in accepted:
                _fail(waiter.outcome, error)
            return
        except asyncio.CancelledError:
            unknown = OutcomeUnknownError("the node stopped while a write was under way")
            for waiter in accepted:
                _fail(waiter.outcome, unknown)
            raise
        for waiter in accepted:
            _resolve(waiter.outcome, number)


def _resolve(outcome: asyncio.Future[int], number: int) -> None:
    if not outcome.done():
        outcome.set_result(number)


def _fail(outcome: asyncio.Future[int], error: LeveretError) -> None:
    if not outcome.done():
        outcome.set_exception(error)
