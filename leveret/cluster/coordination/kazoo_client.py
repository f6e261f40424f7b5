"""A client of kazoo for one session, and what its answers mean. Nothing else imports kazoo.

Kazoo 2.11 and ZooKeeper have traps, from which this protects whoever uses it:

- Kazoo notices a silent server only while nothing is asked for: so `drop_connection`, after which
  it connects to another server in the same session.
- After the end of a session it begins another by itself, and sends what is asked for in that one:
  so no connection is made once it has told of the end.
- A client that was given the session of another one tells nobody when that has ended: its user must
  look at `session`.
- `stop` ends the session, waits for threads of kazoo's, and may wait for ever: so it is called in a
  thread of its own; and `abandon` sees to it that nothing is sent any more.
- `start` may fail in between, and leaves its threads: so whoever calls it stops the client then.
- A read of an entry that is missing leaves no watch: so an `exists` leaves it.
- What it logs at levels below WARNING has passwords in it.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from enum import Enum
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    InvalidACLError,
    MarshallingError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.cluster.coordination.settings import ZooKeeperSettings
    from leveret.ports.coordinator import EntryOperation

__all__ = ["KazooClientState", "Session", "ZooKeeperClient", "describe"]

logger = logging.getLogger("leveret.cluster")

SESSION_LENGTH_AT = 2  # among what kazoo tells of a session that it was granted
SESSION_MS_ASSUMED = 4_000  # where kazoo has not told: a short one
RETRY_SECONDS = 0.1  # after all servers were tried; doubled up to
RETRY_SECONDS_MAX = 1.0  # kazoo's own is an hour

ANY_VERSION = -1
Session = tuple[int, bytes]  # its id, and the password that proves it is ours
T = TypeVar("T")

CONFLICTS = (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError)
NOT_TRIED = (RolledBackError, RuntimeInconsistency)  # operations beside the one that failed
REFUSALS = (
    AuthFailedError,
    BadArgumentsError,
    InvalidACLError,
    MarshallingError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    UnimplementedError,
)


class KazooClientState(Enum):
    """State of a client. One that has LOST its session is of no use any more."""

    CONNECTED = KazooState.CONNECTED
    SUSPENDED = KazooState.SUSPENDED
    LOST = KazooState.LOST


class KazooConnections(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads and sockets; the present connection can be ended from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.server = ""  # that was tried last
        self._socket: socket.socket | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin kazoo's threads, all or none. Raises RuntimeError if the system allows no more."""
        try:
            super().start()
        except RuntimeError:
            self._running = True  # else `stop` would leave those that were begun
            self.stop()
            raise

    def create_connection(self, *arguments: Any, **options: Any) -> socket.socket:
        """Connect to a server. Raises OSError."""
        self.server = "{}:{}".format(*options["address"])
        made: socket.socket = super().create_connection(*arguments, **options)
        self._socket = made
        if self._is_over:  # looked at behind the assignment, as `finish` assigns before it looks
            made.close()
            raise ConnectionAbortedError("the client is not used any more")
        return made

    def drop(self) -> None:
        """End the present connection: nothing is sent over it any more."""
        if self._socket is not None:
            with suppress(OSError):  # kazoo has closed it
                # Not the method of an SSLSocket, which is for the thread that reads it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def finish(self) -> None:
        """End the present connection, and make no other."""
        self._is_over = True
        self.drop()


class ProblemHandler(logging.Handler):
    """Keeps what kazoo last said went wrong; errors that it did not expect are logged."""

    def __init__(self, connections: KazooConnections) -> None:
        super().__init__()
        self._problem = ""
        self._connections = connections

    @property
    def problem(self) -> str:
        """The last warning of kazoo's, or the server that it has begun to try."""
        if self._problem or not self._connections.server:
            return self._problem or "no server was tried yet"
        return f"{self._connections.server}: it has not answered yet"

    def emit(self, record: logging.LogRecord) -> None:
        """Note a warning of kazoo's."""
        self._problem = f"{self._connections.server or 'kazoo'}: {record.getMessage()}"
        if record.levelno >= logging.ERROR:
            logger.handle(record)


class KazooLog(logging.Logger):
    """Log of a client of kazoo's, which tells the length of its sessions there and nowhere else.

    `session_ms` is that of the present one, as the server has granted it; None if kazoo has not
    told.
    """

    def __init__(self) -> None:
        super().__init__("kazoo", logging.WARNING)
        self.session_ms: int | None = None

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Take the length of a session out of a line, whose level is below all that are logged."""
        if str(msg).startswith("Session created") and len(args) > SESSION_LENGTH_AT:
            self.session_ms = int(str(args[SESSION_LENGTH_AT]))
        super().log(level, msg, *args, **options)


class ZooKeeperClient:
    """Connections of one session, one after the other. Used by one thread.

    `changed` gets each new state of the connection, and `done` of each method a value and an error,
    one of which is None; both on threads of kazoo's, where nothing may wait. Errors are
    CoordinatorUnavailableError and CoordinatorRefusedError. With `session` it goes on with one that
    another client had.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        changed: Callable[[ZooKeeperClient, KazooClientState], None],
        session: Session | None = None,
    ) -> None:
        self._changed = changed
        self._stopped: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._root = settings.connect.root
        self._connections = KazooConnections()
        self._problems = ProblemHandler(self._connections)
        # One of its own, so that no configuration lowers the level.
        self._log = KazooLog()
        self._log.addHandler(self._problems)
        self._zk = KazooClient(
            ",".join(settings.connect.servers),
            timeout=settings.session_ms / 1000,
            client_id=session,
            handler=self._connections,
            connection_retry=KazooRetry(
                max_tries=-1, delay=RETRY_SECONDS, max_delay=RETRY_SECONDS_MAX
            ),
            logger=self._log,
            **_credentials(settings),
            **_tls(settings),
        )
        self._zk.add_listener(self._on_state)

    @property
    def session(self) -> Session | None:
        """The session, while there is a connection."""
        found: Session | None = self._zk.client_id
        return found

    @property
    def session_ms(self) -> int:
        """Length of the session as the server has granted it: twenty of its ticks at most.

        A short one is assumed if that is not known.
        """
        return SESSION_MS_ASSUMED if self._log.session_ms is None else self._log.session_ms

    @property
    def problem(self) -> str:
        """The last thing that went wrong with a connection, or is waited for, with its server."""
        return self._problems.problem

    def start(self) -> None:
        """Begin to connect. Raises OSError or RuntimeError without descriptors or threads left.

        Abandon it then.
        """
        # Begun beforehand: when the client is to be stopped, there may be no thread left for it.
        Thread(target=self._stop, daemon=True, name="zookeeper-stop").start()
        self._zk.start_async()

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._connections.finish()
        self._changed(self, KazooClientState(state))

    def drop_connection(self) -> None:
        """End the present connection, and make another in the same session."""
        self._connections.drop()

    def abandon(self) -> None:
        """Send nothing any more, and let the session be."""
        self._connections.finish()
        self.stop(lambda: None)

    def stop(self, stopped: Callable[[], None]) -> None:
        """End the session, if there is a connection; `stopped` is called in a thread of its own."""
        self._stopped.put(stopped)

    def _stop(self) -> None:
        stopped = self._stopped.get()
        with suppress(Exception):  # what is left of it ends with the process
            self._zk.stop()
            self._zk.close()
        stopped()

    def make_root(self, done: Callable[[bool | None, Exception | None], None]) -> None:
        """Make the path below which everything is kept, if it is missing."""
        self._answer(self._zk.ensure_path_async(self._root or "/"), bool, done)

    def read(
        self,
        path: str,
        hint: Callable[[object], None] | None,
        done: Callable[[CoordinatorEntry | None, Exception | None], None],
    ) -> None:
        """Read an entry; once it has changed, `hint` is called."""
        synced = self._sync(path, hint)
        self._answer(self._zk.get_async(self._root + path), _entry, done, synced)

    def children(
        self,
        path: str,
        hint: Callable[[object], None] | None,
        done: Callable[[list[str] | None, Exception | None], None],
    ) -> None:
        """Read the names of an entry's children; None if it is missing. `hint` as in `read`."""
        synced = self._sync(path, hint)
        asked = self._zk.get_children_async(self._root + path, watch=hint)
        self._answer(asked, sorted, done, synced)

    def _sync(self, path: str, hint: Callable[[object], None] | None) -> Any:
        synced = self._zk.sync_async(self._root + path)
        if hint is not None:
            self._zk.exists_async(self._root + path, watch=hint)
        return synced

    def commit(
        self,
        operations: tuple[EntryOperation, ...],
        done: Callable[[WriteOutcome | None, Exception | None], None],
    ) -> None:
        """Carry out all operations or none."""
        transaction = self._zk.transaction()
        for operation in operations:
            path = self._root + operation.path
            match operation:
                case CreateEntry(_, value, is_ephemeral):
                    transaction.create(path, value, ephemeral=is_ephemeral)
                case SetEntry(_, value, version):
                    transaction.set_data(path, value, version)
                case DeleteEntry(_, version):
                    transaction.delete(path, version)
                case CheckEntry(_, version):
                    transaction.check(path, version)
        self._answer(transaction.commit_async(), partial(_outcome, len(operations)), done)

    def prove(self, path: str, done: Callable[[int | None, Exception | None], None]) -> None:
        """Have ZooKeeper agree that this session lives; answers with an entry's owner, if any.

        A transaction that checks the entry is agreed upon as any write, while a server that is cut
        off answers reads for seconds. It changes nothing: to write the entry would be to overwrite
        that of a later life of the node, whose versions begin at 0 as well.
        """
        transaction = self._zk.transaction()
        transaction.check(self._root + path, ANY_VERSION)
        checked = transaction.commit_async()

        def owner(stat: Any) -> int | None:
            is_there = _outcome(1, checked.get_nowait()) is WriteOutcome.DONE
            return stat.ephemeralOwner if is_there and stat is not None else None

        self._answer(self._zk.exists_async(self._root + path), owner, done)

    def probe(self, done: Callable[[bool | None, Exception | None], None]) -> None:
        """Ask for an answer."""
        self._answer(self._zk.exists_async(self._root or "/"), bool, done)

    def _answer(
        self,
        asked: Any,
        convert: Callable[[Any], T],
        done: Callable[[T | None, Exception | None], None],
        synced: Any = None,
    ) -> None:
        """Have `done` called with what an answer means; None if an entry is missing."""

        def answered(result: Any) -> None:
            try:
                if synced is not None:
                    synced.get_nowait()  # else the read may have been sent over another connection
                value = convert(result.get_nowait())
            except NoNodeError:
                done(None, None)
            except REFUSALS as error:
                done(None, self._refusal(error))
            except Exception as error:  # noqa: BLE001 - whatever it was, there is no answer
                done(None, CoordinatorUnavailableError(f"{self.server}: {describe(error)}"))
            else:
                done(value, None)

        asked.rawlink(answered)

    def _refusal(self, error: Exception) -> CoordinatorRefusedError:
        hint = "check the user and password for ZooKeeper, and the ACL of its entries"
        what = hint if isinstance(error, NoAuthError | AuthFailedError) else "this is a bug"
        return CoordinatorRefusedError(f"{self.server} refuses: {describe(error)}; {what}")

    @property
    def server(self) -> str:
        """Address of the server that was connected to last."""
        return self._connections.server


def describe(error: Exception) -> str:
    """Return the name of an error, and its text if it has one."""
    return f"{type(error).__name__} {error}".rstrip()


def _credentials(settings: ZooKeeperSettings) -> dict[str, Any]:
    if settings.user is None:
        return {}
    return {
        "auth_data": {("digest", f"{settings.user}:{settings.password}")},
        "default_acl": [make_digest_acl(settings.user, settings.password, all=True)],
    }


def _tls(settings: ZooKeeperSettings) -> dict[str, Any]:
    tls = settings.tls
    if tls is None:
        return {}
    return {
        "use_ssl": True,
        "check_hostname": True,
        "ca": tls.ca_file and str(tls.ca_file),
        "certfile": tls.certificate_file and str(tls.certificate_file),
        "keyfile": tls.key_file and str(tls.key_file),
    }


def _entry(answer: Any) -> CoordinatorEntry:
    value, stat = answer
    return CoordinatorEntry(value or b"", stat.version, stat.ephemeralOwner or None)


def _outcome(operations: int, results: list[Any]) -> WriteOutcome:
    """Return what became of a transaction. Raises the error that is no conflict."""
    errors = [one for one in results if isinstance(one, Exception)]
    if not errors and len(results) == operations:
        return WriteOutcome.DONE
    reasons = [error for error in errors if not isinstance(error, NOT_TRIED)]
    if reasons and all(isinstance(error, CONFLICTS) for error in reasons):
        return WriteOutcome.CONFLICT
    raise reasons[0] if reasons else ValueError("no answer to a transaction")
