"""ZooKeeper, as the event loop uses it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from leveret.cluster.coordination.session_keeper import SessionKeeper
from leveret.ports.callbacks import do_nothing
from leveret.ports.coordinator import CoordinatorUnavailableError, WriteOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.coordination.kazoo_client import ZooKeeperClient
    from leveret.cluster.coordination.settings import ZooKeeperSettings
    from leveret.ports.coordinator import CoordinatorEntry, EntryOperation

    T = TypeVar("T")
    Done = Callable[[T | None, Exception | None], None]

__all__ = ["ZooKeeperCoordinator", "boottime_ms"]

logger = logging.getLogger("leveret.cluster")

START_SECONDS = 10  # some sessions: a server may be tried for one before the next
CLOSE_SECONDS = 5
REQUESTS_MAX = 100  # under way at a time: kazoo blocks its caller at some 270 that it does not send


def boottime_ms() -> int:
    """Return the milliseconds since the machine was started, suspended ones included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Watched:
    """A path that is watched, and who wants to know. Called in a thread of kazoo's."""

    def __init__(self, to_loop: Callable[[Callable[[], None]], None]) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._to_loop = to_loop

    def __call__(self, _event: object) -> None:
        self._to_loop(self.tell)

    def tell(self) -> None:
        """Tell that something may have changed."""
        for changed in tuple(self.callbacks):
            changed()


class ZooKeeperCoordinator:
    """`ports.Coordinator` with ZooKeeper. `start` comes first.

    Each call has an answer within the length of a session, or fails. Servers make a session longer
    than was asked for if that is below two of their ticks, which changes nothing here, and shorter
    if it is above twenty: the lease is that of the shorter one.
    """

    def __init__(
        self, settings: ZooKeeperSettings, now_ms: Callable[[], int] = boottime_ms
    ) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self._servers = ",".join(settings.connect.servers)
        self._timeout_seconds = settings.session_ms / 1000
        self._keeper = SessionKeeper(settings, now_ms, self)
        self._number = 0  # of the session, as far as the loop was told
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._usable = asyncio.Event()
        self._watched: dict[str, Watched] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Connect. Raises CoordinatorUnavailableError, and is closed then.

        If it is cancelled, it is closed without waiting: nothing goes with its session yet.
        """
        self._loop = asyncio.get_running_loop()
        self._keeper.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._usable.wait()
        except TimeoutError:
            problem = self._keeper.problem
            await self.close()
            raise CoordinatorUnavailableError(
                f"no session with ZooKeeper at {self._servers} within {START_SECONDS} s. Is it "
                f"running, and do more than half of its servers? {problem}"
            ) from None
        except asyncio.CancelledError:
            self._keeper.end(do_nothing)
            raise

    async def close(self) -> None:
        """End the lease and the session (see ports.Coordinator). Waits for some seconds at most."""
        ended = asyncio.Event()
        self._keeper.end(partial(self._to_loop, ended.set))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await ended.wait()

    @property
    def session(self) -> int | None:
        """The session (see ports.Coordinator)."""
        return self._keeper.session_id if self._keeper.number == self._number else None

    @property
    def lease_until_ms(self) -> int:
        """Time until which the session surely lives (see ports.Coordinator)."""
        return self._keeper.lease_until_ms

    async def read(self, path: str) -> CoordinatorEntry | None:
        """Return an entry (see ports.Coordinator)."""
        hint = self._watched.get(path)

        def request(client: ZooKeeperClient, done: Done[CoordinatorEntry]) -> None:
            client.read(path, hint, done)

        return await self._ask(request)

    async def children(self, path: str) -> list[str]:
        """Return the names of children (see ports.Coordinator)."""
        hint = self._watched.get(path)

        def request(client: ZooKeeperClient, done: Done[list[str]]) -> None:
            client.children(path, hint, done)

        return await self._ask(request) or []

    async def commit(self, *operations: EntryOperation) -> WriteOutcome:
        """Carry out all operations or none (see ports.Coordinator)."""

        def request(client: ZooKeeperClient, done: Done[WriteOutcome]) -> None:
            client.commit(operations, done)

        try:
            return await self._ask(request) or WriteOutcome.UNKNOWN
        except CoordinatorUnavailableError:
            return WriteOutcome.UNKNOWN

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Tell of changes (see ports.Coordinator)."""
        watched = self._watched.setdefault(path, Watched(self._to_loop))
        watched.callbacks.append(changed)
        return partial(self._unwatch, path, changed)

    def _unwatch(self, path: str, changed: Callable[[], None]) -> None:
        watched = self._watched[path]
        watched.callbacks.remove(changed)
        if not watched.callbacks:
            del self._watched[path]

    def hold_lease(self, path: str) -> None:
        """Hold a lease from now on (see ports.Coordinator)."""
        self._keeper.hold_lease(self._number, path)

    async def _ask(self, request: Callable[[ZooKeeperClient, Done[T]], None]) -> T | None:
        """Make a request in the present session, and return the answer."""
        answer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()

        def done(value: T | None, error: Exception | None) -> None:
            self._to_loop(partial(_settle, answer, value, error))

        try:
            async with asyncio.timeout(self._timeout_seconds), self._slots:
                self._keeper.ask(
                    self._number,
                    lambda client: request(client, done),
                    lambda error: done(None, error),
                )
                return await answer
        except TimeoutError:
            seconds = self._timeout_seconds
            raise CoordinatorUnavailableError(
                f"no answer from ZooKeeper at {self._servers} within {seconds} s"
            ) from None

    # -- KeeperEvents, in the keeper's thread

    def _to_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def ping_loop(self) -> None:
        """Let the keeper know that the loop runs."""
        self._to_loop(self._keeper.loop_runs)

    def may_have_changed(self) -> None:
        """Tell all who watch something."""
        self._to_loop(self._tell_all)

    def lost(self, number: int, reason: str) -> None:
        """Tell that a session has ended."""
        self._to_loop(partial(self._session_lost, number, reason))

    # -- on the loop

    def _tell_all(self) -> None:
        self._usable.set()
        for watched in tuple(self._watched.values()):
            watched.tell()

    def _session_lost(self, number: int, reason: str) -> None:
        logger.warning("the session with ZooKeeper at %s has ended: %s", self._servers, reason)
        self._number = number
        self.on_lost()


def _settle(answer: asyncio.Future[T], value: T, error: Exception | None) -> None:
    if answer.done():  # it was not waited for any longer
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
