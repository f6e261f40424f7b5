"""A coordinator without processes, for several nodes, whose time is a clock's of the test.

It has what makes a real one hard: sessions that end while their nodes do not hear of it, answers
that are late or never come, writes that are done long after their answer was given up, hints that
get lost.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.ports.coordinator import (
    CheckEntry,
    CoordinatorEntry,
    CoordinatorRefusedError,
    CoordinatorUnavailableError,
    CreateEntry,
    DeleteEntry,
    SetEntry,
    WriteOutcome,
)
from leveret.replication.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.coordinator import EntryOperation

BEAT_MS = 300
REREAD_MS = 30_000


class FakeTime(Protocol):
    """The part of a clock that is used: FakeClock, or a loop with a time of its own."""

    def seconds(self) -> float: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object: ...


class ConflictError(Exception):
    """An operation does not fit what is there."""


class FakeEnsemble:
    """The entries, and the sessions of nodes. `is_away`: nobody can reach it, and nothing ends."""

    def __init__(self, time: FakeTime, session_ms: int = 4_000) -> None:
        self.time = time
        self.session_ms = session_ms
        self.entries: dict[str, CoordinatorEntry] = {}
        self.clients: list[FakeCoordinator] = []
        self._heard_ms: dict[int, int] = {}  # by session
        self._sessions = 0
        self._is_away = False

    def now_ms(self) -> int:
        return round(self.time.seconds() * 1000)

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        """Call it at once if there is nothing to wait for."""
        if milliseconds:
            self.time.call_later(milliseconds / 1000, callback)
        else:
            callback()

    @property
    def is_away(self) -> bool:
        return self._is_away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        self._is_away = is_away
        if not is_away:  # whoever leads then hears of all sessions anew
            for session in self._heard_ms:
                self.hear(session)

    def client(self) -> FakeCoordinator:
        made = FakeCoordinator(self)
        self.clients.append(made)
        return made

    # -- sessions

    def begin_session(self) -> int:
        self._sessions += 1
        self.hear(self._sessions)
        return self._sessions

    def lives(self, session: int) -> bool:
        return session in self._heard_ms

    def hear(self, session: int) -> None:
        """Count a session's time anew."""
        self._heard_ms[session] = self.now_ms()
        self.time.call_later(self.session_ms / 1000, partial(self._look_at, session))

    def _look_at(self, session: int) -> None:
        heard_ms = self._heard_ms.get(session)
        if heard_ms is None or self._is_away:
            return
        if self.now_ms() - heard_ms >= self.session_ms:
            self.expire(session)

    def expire(self, session: int) -> None:
        """End a session, whose node hears of it when it asks for something."""
        self._heard_ms.pop(session, None)
        for path in [path for path, entry in self.entries.items() if entry.owner == session]:
            del self.entries[path]
            self._tell(path)

    # -- entries

    def carry_out(self, session: int, operations: tuple[EntryOperation, ...]) -> WriteOutcome:
        """Raises CoordinatorRefusedError."""
        before = dict(self.entries)
        try:
            for operation in operations:
                self._carry_out(session, operation)
        except ConflictError:
            self.entries = before
            return WriteOutcome.CONFLICT
        except CoordinatorRefusedError:
            self.entries = before
            raise
        for operation in operations:
            if not isinstance(operation, CheckEntry):
                self._tell(operation.path)
        return WriteOutcome.DONE

    def _carry_out(self, session: int, operation: EntryOperation) -> None:
        path = operation.path
        if isinstance(operation, CreateEntry):
            self._create(session, operation)
            return
        entry = self.entries.get(path)
        if entry is None or entry.version != operation.version:
            raise ConflictError
        match operation:
            case SetEntry(_, value, version):
                self.entries[path] = CoordinatorEntry(value, version + 1, entry.owner)
            case DeleteEntry():
                if self.children(path):
                    raise ConflictError
                del self.entries[path]

    def _create(self, session: int, operation: CreateEntry) -> None:
        parent_path = operation.path.rpartition("/")[0]
        parent = self.entries.get(parent_path)
        if operation.path in self.entries or (parent_path and parent is None):
            raise ConflictError
        if parent is not None and parent.owner is not None:
            raise CoordinatorRefusedError(f"{parent_path} is ephemeral")
        owner = session if operation.is_ephemeral else None
        self.entries[operation.path] = CoordinatorEntry(operation.value, 0, owner)

    def owns(self, session: int, path: str) -> bool:
        entry = self.entries.get(path)
        return entry is not None and entry.owner == session

    def children(self, path: str) -> list[str]:
        start = f"{path}/"
        names = [one.removeprefix(start) for one in self.entries if one.startswith(start)]
        return sorted(name for name in names if "/" not in name)

    def _tell(self, path: str) -> None:
        for client in self.clients:
            client.hear_change(path, is_child=False)
            if path not in self.entries or not self.entries[path].version:
                client.hear_change(path.rpartition("/")[0], is_child=True)


class FakeCoordinator:
    """`ports.Coordinator` of one node.

    A test may set `is_reachable`, `delay_ms` (one way), `loses_answers` and `loses_hints`;
    `write_delays` are milliseconds until the next writes are done whose answers are lost, None for
    those that never are.
    """

    def __init__(self, ensemble: FakeEnsemble) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self.delay_ms = 0
        self.loses_answers = False
        self.loses_hints = False
        self.write_delays: list[int | None] = []
        self.session: int | None = ensemble.begin_session()
        self._ensemble = ensemble
        self._is_reachable = True
        self._is_closed = False
        self._lease = Lease(ensemble.session_ms)
        self._held: str | None = None
        self._watched: dict[str, list[Callable[[], None]]] = {}
        self._armed: set[tuple[str, bool]] = set()  # paths; whether it is for the children
        self._reread_ms = 0
        self._was_reached = True
        self._beat()

    @property
    def is_reachable(self) -> bool:
        return self._is_reachable and not self._ensemble.is_away

    @is_reachable.setter
    def is_reachable(self, is_reachable: bool) -> None:
        self._is_reachable = is_reachable

    @property
    def lease_until_ms(self) -> int:
        return self._lease.until_ms

    async def read(self, path: str) -> CoordinatorEntry | None:
        self._arm(path, is_child=False)
        return await self._ask(lambda: self._ensemble.entries.get(path))

    async def children(self, path: str) -> list[str]:
        self._arm(path, is_child=True)
        return await self._ask(lambda: self._ensemble.children(path))

    async def commit(self, *operations: EntryOperation) -> WriteOutcome:
        session = self.session
        assert session is not None
        write = partial(self._ensemble.carry_out, session, operations)
        if self.write_delays:
            delay_ms = self.write_delays.pop(0)
            if delay_ms is not None:
                self._ensemble.later(delay_ms, partial(self._write_late, session, write))
            await self._never()
            return WriteOutcome.UNKNOWN
        try:
            return await self._ask(write)
        except CoordinatorUnavailableError:
            return WriteOutcome.UNKNOWN

    def _write_late(self, session: int, write: Callable[[], object]) -> None:
        if self._ensemble.lives(session):
            write()

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        self._watched.setdefault(path, []).append(changed)
        return lambda: self._watched[path].remove(changed)

    def hold_lease(self, path: str) -> None:
        self._held = path
        self._renew()

    async def close(self) -> None:
        self._lease = Lease(self._ensemble.session_ms)
        self._is_closed = True
        if self.session is not None and self.is_reachable:
            self._ensemble.expire(self.session)

    # -- requests

    async def _ask(self, request: Callable[[], object]):
        """Return the answer to a request. Raises what the request does."""
        session = self.session
        answer = asyncio.get_running_loop().create_future()
        timeout = CoordinatorUnavailableError("no answer within the length of a session")
        self._ensemble.time.call_later(
            self._ensemble.session_ms / 1000, partial(settle, answer, None, timeout)
        )
        if self.is_reachable:
            self._ensemble.later(self.delay_ms, partial(self._serve, session, request, answer))
        return await answer

    async def _never(self) -> None:
        gate = asyncio.get_running_loop().create_future()
        self._ensemble.time.call_later(
            self._ensemble.session_ms / 1000, partial(settle, gate, None, None)
        )
        await gate

    def _serve(
        self, session: int, request: Callable[[], object], answer: asyncio.Future[object]
    ) -> None:
        if not self.is_reachable:
            return
        value, error = None, None
        if self._ensemble.lives(session):
            self._ensemble.hear(session)
            try:
                value = request()
            except CoordinatorRefusedError as refusal:
                error = refusal
        else:
            error = CoordinatorUnavailableError("the session has ended")
        self._ensemble.later(self.delay_ms, partial(self._pass_on, answer, value, error))

    def _pass_on(
        self, answer: asyncio.Future[object], value: object, error: Exception | None
    ) -> None:
        if self.is_reachable and not self.loses_answers:
            settle(answer, value, error)

    # -- the session

    def _beat(self) -> None:
        if self._is_closed:
            return
        self._ensemble.time.call_later(BEAT_MS / 1000, self._beat)
        if not self.is_reachable or self.loses_answers:
            self._was_reached = False
            return
        if not self._ensemble.lives(self.session):
            self._lose()
        elif self._held is None:
            self._ensemble.hear(self.session)
        self._renew()
        now = self._ensemble.now_ms()
        if not self._was_reached or now >= self._reread_ms:
            self._was_reached = True
            self._reread_ms = now + REREAD_MS
            for path in list(self._watched):
                self._tell(path)

    def _renew(self) -> None:
        if self._held is not None and self.is_reachable:
            answered = partial(self._renew_there, self._lease, self._ensemble.now_ms())
            self._ensemble.later(self.delay_ms, partial(answered, self.session, self._held))

    def _renew_there(self, lease: Lease, requested_ms: int, session: int, path: str) -> None:
        if not self.is_reachable or not self._ensemble.lives(session):
            return
        self._ensemble.hear(session)
        is_ours = self._ensemble.owns(session, path)
        self._ensemble.later(
            self.delay_ms, partial(self._hear_renewal, lease, requested_ms, is_ours=is_ours)
        )

    def _hear_renewal(self, lease: Lease, requested_ms: int, *, is_ours: bool) -> None:
        if not self.is_reachable or self.loses_answers:
            return
        if is_ours:
            lease.renewed(requested_ms)
        elif lease is self._lease and not self._is_closed:
            assert self.session is not None
            self._ensemble.expire(self.session)
            self._lose()

    def _lose(self) -> None:
        """Begin another session."""
        self._lease = Lease(self._ensemble.session_ms)
        self._held = None
        self.session = self._ensemble.begin_session()
        self.on_lost()

    # -- hints

    def _arm(self, path: str, *, is_child: bool) -> None:
        if path in self._watched:
            self._armed.add((path, is_child))

    def hear_change(self, path: str, *, is_child: bool) -> None:
        if (path, is_child) in self._armed:
            self._armed.discard((path, is_child))
            if self.is_reachable and not self.loses_hints and not self._is_closed:
                self._ensemble.later(self.delay_ms, partial(self._tell, path))

    def _tell(self, path: str) -> None:
        for changed in list(self._watched.get(path, ())):
            changed()


def settle(answer: asyncio.Future[object], value: object, error: Exception | None) -> None:
    """Answer, unless somebody has."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
