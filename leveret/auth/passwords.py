"""Fair scheduling of password checks: few threads, shared by the addresses of clients.

A check takes a core for tens of milliseconds, so a client that guesses as fast as it can would keep
all others waiting. Addresses take turns instead, and one address has only so many attempts in
progress, where a failed attempt counts until its answer was sent after the delay.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING

from leveret.ports.authentication import attempt_source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["PasswordChecks"]

# Attempts of one address within the delay of a failed login: enough for the clients
# of a busy machine that start together with different users, and 5 guesses a second.
ATTEMPTS_MAX = 16
# Attempts that may wait; more would wait for longer than a handshake may take.
WAITING_MAX = 1024


class PasswordChecks:
    """Runs password checks in turns. `run(phc, password)` is one of them, in a thread."""

    def __init__(
        self,
        run: Callable[[str, str], Awaitable[bool]],
        loop: asyncio.AbstractEventLoop,
        *,
        parallel: int,
        failed_seconds: float,
    ) -> None:
        """`parallel` checks run at a time; a failed one counts for `failed_seconds` more."""
        self._run = run
        self._loop = loop
        self._free = parallel
        self._failed_seconds = failed_seconds
        self._attempts: Counter[str] = Counter()  # under way or failed just now, by source
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._under_way: dict[tuple[str, str], asyncio.Future[bool]] = {}

    @property
    def sources(self) -> int:
        """Number of addresses with attempts in progress, waiting or just failed."""
        return len(self._attempts.keys() | self._waiting.keys())

    async def check(self, peer_host: str, phc: str, password: str) -> bool:
        """Return whether the password is right; False also if its address has too many attempts."""
        same = self._under_way.get((phc, password))
        if same is not None:  # a fleet that reconnects shares a user: one check serves all
            return await asyncio.shield(same)
        source = attempt_source(peer_host)
        if len(self._waiting.get(source, ())) >= WAITING_MAX:
            return False
        answer = self._under_way[phc, password] = self._loop.create_future()
        accepted = False
        try:
            await self._turn(source)
            try:
                accepted = await self._run(phc, password)
            finally:
                self._finished(source, accepted=accepted)
        finally:
            del self._under_way[phc, password]
            if not answer.done():
                answer.set_result(accepted)
        return accepted

    async def _turn(self, source: str) -> None:
        """Wait until a thread is free for this source; the attempt counts from then on."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(source, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(source, turn)
            else:  # the turn had come
                self._finished(source, accepted=True)
            raise

    def _leave(self, source: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting[source]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[source]

    def _next(self) -> None:
        """Give free threads to the sources that have waited longest since their last turn."""
        for source in list(self._waiting):
            if not self._free:
                return
            if self._attempts.get(source, 0) >= ATTEMPTS_MAX:
                continue
            waiting = self._waiting[source]
            turn = next((each for each in waiting if not each.done()), None)
            if turn is None:
                continue  # all of them are about to leave
            self._leave(source, turn)
            if source in self._waiting:
                self._waiting.move_to_end(source)
            self._free -= 1
            self._attempts[source] += 1
            turn.set_result(None)

    def _finished(self, source: str, *, accepted: bool) -> None:
        self._free += 1
        if accepted or not self._failed_seconds:
            self._forget(source)
        else:
            self._loop.call_later(self._failed_seconds, self._forget, source)
            self._next()

    def _forget(self, source: str) -> None:
        self._attempts[source] -= 1
        if not self._attempts[source]:
            del self._attempts[source]
        self._next()
