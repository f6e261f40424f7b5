"""The thread that keeps a node's session with ZooKeeper, and renews its lease.

It works off what it is asked for, and what kazoo's threads tell. Every 300 ms it has ZooKeeper
agree that the session and the node's entry are there; before there is one it only asks for an
answer. Three rules hold throughout:

- **The lease is over before the session is ended here.** Others may act once the session is gone.
- **A session is kept as long as ZooKeeper has it.** When an answer does not come, the connection is
  dropped first, for another server may answer; at the third time the client is thrown away, and
  another one goes on with the session. While all of ZooKeeper is away no session ends.
- **Nothing crosses from one session to the next.** Sessions are counted; what was asked for under
  another number is refused. Otherwise an entry of an old incarnation could go with a new session.
"""

from __future__ import annotations

import logging
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from leveret.cluster.coordination.kazoo_client import (
    KazooClientState,
    ZooKeeperClient,
    describe,
)
from leveret.ports.coordinator import CoordinatorUnavailableError
from leveret.replication.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.coordination.kazoo_client import Session
    from leveret.cluster.coordination.settings import ZooKeeperSettings

__all__ = ["KeeperEvents", "SessionKeeper"]

logger = logging.getLogger("leveret.cluster")

RENEW_MS = 300  # a lease of one second survives two that come late
REREAD_MS = 30_000  # watches are hints, which may be lost
ASKED_MAX = 3  # renewals whose answers are due: they wait for a busy interpreter, too
UNANSWERED_MAX = 3  # times that an answer did not come, until the client is thrown away
LOOP_QUIET_MS = 1_000  # a node whose event loop stands still for longer is not renewed
LOOP_STUCK_MS = 2_000  # and after this its session is ended: kazoo would go on to ping for it


class KeeperEvents(Protocol):
    """Events that the event loop is told of. Called in the keeper's thread."""

    def ping_loop(self) -> None:
        """Have the loop call `SessionKeeper.loop_runs`."""
        ...

    def may_have_changed(self) -> None:
        """The session can be used, and anything may have changed since the last time."""
        ...

    def lost(self, number: int, reason: str) -> None:
        """The session has ended; the next one has a number."""
        ...


class SessionKeeper:
    """Keeps one session after the other, from `start` to `end`. All methods return at once."""

    def __init__(
        self, settings: ZooKeeperSettings, now_ms: Callable[[], int], events: KeeperEvents
    ) -> None:
        self.number = 0  # of the session
        self.session_id: int | None = None
        self._settings = settings
        self._now_ms = now_ms
        self._events = events
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lease = Lease(settings.session_ms)
        self._session_ms = settings.session_ms  # of the present session
        self._is_ending = False
        self._is_over = False
        self._loop_ran_ms = now_ms()
        # From here on: written by the thread alone.
        self._client: ZooKeeperClient | None = None
        self._failure = ""  # why there is no client
        self._refusal = ""  # of the root
        self._session: Session | None = None
        self._is_connected = False
        self._is_usable = False  # connected, in the session of this number, and the root is there
        self._held: str | None = None  # entry that the lease goes with
        self._asked_ms: list[int] = []  # when renewals were sent whose answers are due
        self._quiet_since_ms: int | None = None  # since when an answer, or a connection, is due
        self._unanswered = 0  # times in a row
        self._renew_ms = self._reread_ms = 0  # when they are due

    # -- on the event loop

    @property
    def lease_until_ms(self) -> int:
        """Time until which the session surely lives; 0 without a lease."""
        return 0 if self._is_ending else self._lease.until_ms

    @property
    def problem(self) -> str:
        """The last thing that went wrong."""
        client = self._client
        return self._failure or self._refusal or ("" if client is None else client.problem)

    def start(self) -> None:
        """Begin the thread."""
        Thread(target=self._run, daemon=True, name="zookeeper").start()

    def loop_runs(self) -> None:
        """Note that the event loop runs."""
        self._loop_ran_ms = self._now_ms()

    def ask(
        self,
        number: int,
        request: Callable[[ZooKeeperClient], None],
        failed: Callable[[CoordinatorUnavailableError], None],
    ) -> None:
        """Make a request in the session that has a number; `failed` is told if it was not made."""
        self._inbox.put(partial(self._ask, number, request, failed))

    def hold_lease(self, number: int, path: str) -> None:
        """Renew the lease from now on, if the session still has this number."""
        self._inbox.put(partial(self._hold_lease, number, path))

    def end(self, ended: Callable[[], None]) -> None:
        """End the lease at once, then the session, and tell when it is done, in some thread."""
        self._is_ending = True
        self._inbox.put(partial(self._end, ended))

    # -- in the thread

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - without this thread no session would end
                self._fail(error)

    def _step(self) -> None:
        """Do what is due, then what is asked for next, if it comes before more is due."""
        now = self._now_ms()
        self._renew_if_due(now)
        if self._quiet_since_ms is not None and now >= self._quiet_since_ms + self._patience_ms:
            self._miss_answer(now)
        try:
            action = self._inbox.get(timeout=self._wait_ms(now) / 1000)
        except Empty:
            return
        action()

    def _fail(self, error: Exception) -> None:
        """Throw the client away: another one goes on with the session when a renewal is due.

        Without descriptors or threads left no client can begin, until there are some again.
        """
        failure = describe(error)
        if failure != self._failure:
            logger.error("no client for ZooKeeper: %s; it is tried again", failure, exc_info=error)
        self._failure = failure
        self._is_connected = self._is_usable = False
        self._quiet_since_ms = None
        client, self._client = self._client, None
        if client is not None:
            client.abandon()

    def _wait_ms(self, now: int) -> int:
        due = self._renew_ms
        if self._quiet_since_ms is not None:
            due = min(due, self._quiet_since_ms + self._patience_ms)
        return max(due - now, 1)

    @property
    def _patience_ms(self) -> int:
        """How long an answer is waited for, or a connection: kazoo tries a server for a session.

        After a renewal, an interval and this time, the lease has still half an interval for a try
        with another server.
        """
        return self._session_ms // (4 if self._is_connected else 1)

    def _ask(
        self,
        number: int,
        request: Callable[[ZooKeeperClient], None],
        failed: Callable[[CoordinatorUnavailableError], None],
    ) -> None:
        if number != self.number or self._is_ending:
            failed(CoordinatorUnavailableError("the session with ZooKeeper has ended"))
        elif not self._is_usable or self._client is None:
            servers = ",".join(self._settings.connect.servers)
            failed(
                CoordinatorUnavailableError(
                    f"there is no connection to ZooKeeper at {servers}: {self.problem}"
                )
            )
        else:
            request(self._client)

    def _hold_lease(self, number: int, path: str) -> None:
        if number == self.number and not self._is_ending:
            self._held = path
            self._renew_ms = 0

    def _end(self, ended: Callable[[], None]) -> None:
        self._is_over = True
        if self._client is None:
            ended()
        else:
            self._client.stop(ended)

    def _renew_if_due(self, now: int) -> None:
        """Renew the lease, if this node's event loop runs; without a client, begin one."""
        if now < self._renew_ms:
            return
        self._renew_ms = now + RENEW_MS
        self._events.ping_loop()
        if self._client is None:
            self._begin_client()
            return
        if not self._is_usable or self._is_ending:
            return
        if now >= self._reread_ms:
            self._say_usable(now)
        quiet_ms = now - self._loop_ran_ms
        if self._held is None or quiet_ms < LOOP_QUIET_MS:
            self._request_renewal(self._client, now)
        elif quiet_ms > LOOP_STUCK_MS and now >= self._lease.until_ms:
            self._lose(f"the event loop has not run for {quiet_ms} ms")

    def _request_renewal(self, client: ZooKeeperClient, now: int) -> None:
        if len(self._asked_ms) >= ASKED_MAX:
            return
        self._asked_ms.append(now)
        if self._quiet_since_ms is None:
            self._quiet_since_ms = now
        if self._held is None:
            client.probe(lambda _, error: self._answered(client, now, error))
        else:
            # The lease is that of this session, also when the answer comes in the next one's time.
            lease, session_id = self._lease, self.session_id

            def proved(owner: int | None, error: Exception | None) -> None:
                is_ours = owner == session_id and error is None
                if is_ours:
                    lease.renewed(now)
                self._answered(client, now, error, is_gone=error is None and not is_ours)

            client.prove(self._held, proved)

    def _answered(
        self,
        client: ZooKeeperClient,
        asked_ms: int,
        error: Exception | None,
        *,
        is_gone: bool = False,
    ) -> None:
        """Pass on the answer to a renewal. In a thread of kazoo's."""
        self._inbox.put(partial(self._hear_answer, client, asked_ms, error, is_gone=is_gone))

    def _hear_answer(
        self, client: ZooKeeperClient, asked_ms: int, error: Exception | None, *, is_gone: bool
    ) -> None:
        if client is not self._client:
            return
        self._asked_ms = [sent_ms for sent_ms in self._asked_ms if sent_ms != asked_ms]
        if is_gone:
            self._lose("its live entry was removed, or is another session's")
        elif error is None:
            self._unanswered = 0
            self._quiet_since_ms = self._asked_ms[0] if self._asked_ms else None

    def _miss_answer(self, now: int) -> None:
        """Try another connection, or at last another client."""
        assert self._client is not None
        self._unanswered += 1
        self._quiet_since_ms = now
        self._asked_ms = []
        if self._unanswered < UNANSWERED_MAX:
            self._client.drop_connection()
        else:
            self._client.abandon()
            self._begin_client()

    def _begin_client(self) -> None:
        """Begin to connect, in the session that there is, if there is one."""
        self._is_connected = self._is_usable = False
        self._asked_ms = []
        self._unanswered = 0
        self._quiet_since_ms = self._now_ms()
        self._client = ZooKeeperClient(self._settings, self._on_state, self._session)
        self._client.start()
        self._failure = ""

    def _on_state(self, client: ZooKeeperClient, state: KazooClientState) -> None:
        """Pass on a state of the connection. In a thread of kazoo's."""
        self._inbox.put(partial(self._hear_state, client, state))

    def _hear_state(self, client: ZooKeeperClient, state: KazooClientState) -> None:
        if client is not self._client:
            return
        self._is_usable = False
        self._asked_ms = []
        self._is_connected = state == KazooClientState.CONNECTED
        if self._is_connected or self._quiet_since_ms is None:
            self._quiet_since_ms = self._now_ms()
        if state == KazooClientState.LOST:
            self._lose("ZooKeeper has ended it")
        elif self._is_connected:
            self._hear_connected(client)

    def _hear_connected(self, client: ZooKeeperClient) -> None:
        session = client.session
        if session is None:
            return  # the connection has ended again
        if self._session is not None and session[0] != self._session[0]:
            # Kazoo began another one by itself, since the one it was given had ended.
            self._count_session("ZooKeeper has ended it")
        self._session = session
        self.session_id = session[0]
        self._limit_session(client.session_ms)
        client.make_root(
            lambda _, error: self._inbox.put(partial(self._hear_root, client, session, error))
        )

    def _limit_session(self, granted_ms: int) -> None:
        """Count by the length that a server has granted, which may be less than was asked for."""
        asked_ms = self._settings.session_ms
        granted_ms = min(granted_ms, asked_ms)
        if granted_ms < min(self._session_ms, asked_ms):
            logger.warning(
                "ZooKeeper grants sessions of %d ms, not %d (cluster_session_ms): it allows twenty "
                "of its ticks, or maxSessionTimeout",
                *(granted_ms, asked_ms),
            )
        self._session_ms = granted_ms
        self._lease.limit(granted_ms)

    def _hear_root(
        self, client: ZooKeeperClient, session: Session, error: Exception | None
    ) -> None:
        self._refusal = "" if error is None else str(error)
        is_present = client is self._client and self._is_connected and session == self._session
        if is_present and error is None:
            self._is_usable = True
            self._unanswered = 0
            self._quiet_since_ms = None
            self._renew_ms = 0
            self._say_usable(self._now_ms())

    def _say_usable(self, now: int) -> None:
        self._reread_ms = now + REREAD_MS
        self._events.may_have_changed()

    def _lose(self, reason: str) -> None:
        """Give up the session; another one begins when a renewal is due."""
        assert self._client is not None
        client, self._client = self._client, None
        self._is_connected = self._is_usable = False
        self._quiet_since_ms = None
        self._count_session(reason)
        client.stop(lambda: None)

    def _count_session(self, reason: str) -> None:
        self.number += 1
        self._lease = Lease(self._settings.session_ms)
        self._session = self.session_id = self._held = None
        self._events.lost(self.number, reason)
