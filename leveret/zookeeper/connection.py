"""Connection to ZooKeeper: kazoo's threads, and their results brought to the event loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from leveret.ports.coordination import CoordinatorSettingsError, CoordinatorUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kazoo.interfaces import IAsyncResult

    from leveret.zookeeper.settings import ZooKeeperSettings

__all__ = [
    "ConnectionInterruptedError",
    "CreateZnode",
    "DeleteZnode",
    "SetZnode",
    "Znode",
    "ZnodeCheck",
    "ZnodeOperation",
    "ZooKeeperConnection",
]

log = logging.getLogger(__name__)

RECONNECT_DELAY_SECONDS = (0.05, 1.0)  # the first, and the longest: a server is soon back, or not
REPORT_SECONDS = 60.0  # how often the log says that ZooKeeper is still away
RESTART_SECONDS = 5.0  # for kazoo gives up where a server sends what it cannot read

# Answers that say for certain what has become of a request. Any other leaves it open.
_DEFINITE = (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NoAuthError,
    InvalidACLError,
)


class ConnectionInterruptedError(Exception):
    """The connection was lost: a request that was under way may take effect, even later."""


class Znode(NamedTuple):
    """Bytes of a znode, the number of times they were set, and the session that it belongs to."""

    data: bytes
    version: int
    owner: int  # 0: none, it is not ephemeral


class CreateZnode(NamedTuple):
    """Operation of a transaction: create a znode."""

    path: str
    data: bytes
    is_ephemeral: bool = False


class SetZnode(NamedTuple):
    """Operation of a transaction: set a znode that has this version."""

    path: str
    data: bytes
    version: int


class DeleteZnode(NamedTuple):
    """Operation of a transaction: delete a znode that has this version, -1: any."""

    path: str
    version: int = -1


class ZnodeCheck(NamedTuple):
    """Condition of a transaction: a znode has this version."""

    path: str
    version: int


ZnodeOperation: TypeAlias = CreateZnode | SetZnode | DeleteZnode | ZnodeCheck


class ZooKeeperConnection:
    """Session with ZooKeeper, with another one after it has expired, for as long as it is open.

    `changed()` is called on the loop when the connection is lost or there again. Requests fail with
    ConnectionInterruptedError as soon as it is lost, and with kazoo's errors where ZooKeeper has
    answered; a refused right is a CoordinatorSettingsError.
    """

    def __init__(self, settings: ZooKeeperSettings, changed: Callable[[], None]) -> None:
        self._settings = settings
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._client: KazooClient | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._connected = asyncio.Event()
        self._closed = False
        self.session_id = 0  # of the current or last session
        self._lost_at = self._loop.time()
        self._kazoo_log = _LastWarning("kazoo")
        self._watchers: dict[Callable[[], None], Callable[[object], None]] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a session, and a server answers."""
        return self._connected.is_set()

    @property
    def away_seconds(self) -> float:
        """Seconds since the connection was lost, 0 while it is there."""
        return 0.0 if self.is_connected else self._loop.time() - self._lost_at

    def unavailable(self, refused: str) -> CoordinatorUnavailableError:
        """Return the error for what is refused while ZooKeeper is away."""
        return CoordinatorUnavailableError(f"{self._absence()}: {refused} until it does")

    def _absence(self) -> str:
        reason = f" ({self._kazoo_log.text})" if self._kazoo_log.text else ""
        hosts = self._settings.hosts
        return f"ZooKeeper at {hosts} has not answered for {self.away_seconds:.1f} s{reason}"

    async def open(self) -> None:
        """Connect. Raises CoordinatorUnavailableError."""
        self._start()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                await self._connect()
        except TimeoutError:
            raise self.unavailable("the node does not start") from None

    async def _connect(self) -> None:
        """Wait until there is a session, and say now and then that it is waited for."""
        while True:
            try:
                async with asyncio.timeout(RESTART_SECONDS):
                    await self._connected.wait()
            except TimeoutError:
                seconds = self._settings.connect_timeout_ms // 1000
                log.warning("%s: the node waits for it, %d s in all", self._absence(), seconds)
                if self._client is not None:
                    await self._revive(self._client)
            else:
                return

    def _start(self) -> None:
        settings = self._settings
        tls: dict[str, Any] = {}
        if settings.tls is not None:
            files = settings.tls.ca_file, settings.tls.certificate_file, settings.tls.key_file
            ca, certificate, key = (None if path is None else str(path) for path in files)
            tls = {"ca": ca, "certfile": certificate, "keyfile": key}
            tls |= {"use_ssl": True, "verify_certs": True, "check_hostname": True}
        first, longest = RECONNECT_DELAY_SECONDS
        client = KazooClient(
            hosts=settings.hosts,
            timeout=settings.session_timeout_ms / 1000,
            auth_data={("digest", f"{settings.user}:{settings.password}")}
            if settings.user
            else None,
            default_acl=_rights(settings),
            connection_retry=KazooRetry(max_tries=-1, delay=first, max_delay=longest),
            handler=_QuietHandler(self._kazoo_log),
            logger=self._kazoo_log,
            **tls,
        )
        self._client = client
        client.add_listener(partial(self._hear, client))
        client.start_async()

    def _hear(self, client: KazooClient, state: str) -> None:
        """Pass a change of the connection on to the loop; called in kazoo's thread."""
        connected = state == KazooState.CONNECTED
        session = client.client_id
        self._call_on_loop(self._note_state, client, session[0] if connected and session else 0)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _note_state(self, client: KazooClient, session: int) -> None:
        if client is not self._client:
            return
        if session:
            if not self.is_connected:
                log.info("connected to ZooKeeper, session 0x%x", session)
            self.session_id = session
            self._kazoo_log.text = ""
            self._connected.set()
        else:
            self._interrupt()
        self._changed()

    def _interrupt(self) -> None:
        if self.is_connected:
            if not self._closed:
                log.warning("the connection to ZooKeeper is lost")
            self._connected.clear()
            self._lost_at = self._loop.time()
        # Kazoo tells most of them, but not what it is given while it notices.
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(ConnectionInterruptedError())

    async def watch_absence(self) -> None:
        """Log that ZooKeeper stays away, and restart kazoo if it has given up; for ever."""
        reported = 0.0
        while not self._closed:
            await asyncio.sleep(RESTART_SECONDS)
            client = self._client
            if self.is_connected or client is None:
                reported = 0.0
                continue
            if self.away_seconds - reported >= REPORT_SECONDS:
                reported = self.away_seconds
                log.warning("%s", self._absence())
            await self._revive(client)

    async def _revive(self, client: KazooClient) -> None:
        """Start kazoo again if it has given up."""
        if client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            await asyncio.to_thread(_stop, client)
            if client is self._client:
                self._start()

    async def connected(self) -> None:
        """Wait until there is a connection."""
        await self._connected.wait()

    async def close(self) -> None:
        """End the session, whose ephemeral znodes go at once."""
        self._closed = True
        client, self._client = self._client, None
        self._interrupt()
        if client is not None:
            await asyncio.to_thread(_stop, client)

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Znode:
        """Return a znode. `watch()` is called on the loop when it changes next.

        It is to be the same one each time, here and below.
        """
        data, stat = await self._wait(lambda client: client.get_async(path, self._watcher(watch)))
        return Znode(data, stat.version, stat.ephemeralOwner)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> bool:
        """Return whether a znode is there. `watch()` is called on the loop when that changes."""
        watcher = self._watcher(watch)
        return await self._wait(lambda client: client.exists_async(path, watcher)) is not None

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names below a znode. `watch()` is called on the loop when some come or go."""
        watcher = self._watcher(watch)
        found = await self._wait(lambda client: client.get_children_async(path, watcher))
        return [str(name) for name in found]

    async def create(self, path: str, data: bytes = b"") -> None:
        """Create a znode."""
        await self._wait(lambda client: client.create_async(path, data))

    async def sync(self, path: str) -> None:
        """Wait until the server that answers has what the others had before this call."""
        await self._wait(lambda client: client.sync_async(path))

    async def commit(self, operations: Sequence[ZnodeOperation]) -> tuple[int, Exception] | None:
        """Perform all operations or none; return the one that was refused, and why.

        Any other error leaves open what happens.
        """

        def send(client: KazooClient) -> IAsyncResult:
            transaction = client.transaction()
            for operation in operations:
                _add_operation(transaction, operation)
            return transaction.commit_async()

        for index, result in enumerate(await self._wait(send)):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError):
                if not isinstance(result, _DEFINITE):
                    # ZooKeeper calls what follows the refused one inconsistent.
                    raise ConnectionInterruptedError from result
                if isinstance(result, NoAuthError | InvalidACLError):
                    raise self._refused(result)
                return index, result
        return None

    async def _wait(self, send: Callable[[KazooClient], IAsyncResult]) -> Any:
        """Return the result of a request that kazoo performs in its threads."""
        if not self.is_connected or self._client is None:
            raise ConnectionInterruptedError
        waiting: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(waiting)
        try:
            send(self._client).rawlink(partial(self._call_on_loop, _resolve, waiting))
            return await waiting
        except (NoAuthError, InvalidACLError, AuthFailedError) as error:
            raise self._refused(error) from None
        except _DEFINITE:
            raise
        except KazooException as error:
            raise ConnectionInterruptedError from error
        finally:
            self._waiting.discard(waiting)

    def _refused(self, error: Exception) -> CoordinatorSettingsError:
        who = f"user {self._settings.user!r}" if self._settings.user else "nobody, without a user"
        return CoordinatorSettingsError(
            f"ZooKeeper refuses {who} ({type(error).__name__}): give the user and the password "
            f"with which {self._settings.chroot or '/'} was made, or the rights to it"
        )

    def _watcher(self, watch: Callable[[], None] | None) -> Callable[[object], None] | None:
        """Return the same function for the same `watch`: kazoo calls what is equal only once."""
        if watch is None:
            return None
        if watch not in self._watchers:
            self._watchers[watch] = lambda _event: self._call_on_loop(watch)
        return self._watchers[watch]


def _resolve(waiting: asyncio.Future[Any], result: IAsyncResult) -> None:
    if waiting.done():
        return
    error = result.exception
    if error is None:
        waiting.set_result(result.value)
    else:
        waiting.set_exception(error)


def _add_operation(transaction: Any, operation: ZnodeOperation) -> None:
    match operation:
        case CreateZnode(path, data, is_ephemeral):
            transaction.create(path, data, ephemeral=is_ephemeral)
        case SetZnode(path, data, version):
            transaction.set_data(path, data, version)
        case DeleteZnode(path, version):
            transaction.delete(path, version)
        case ZnodeCheck(path, version):
            transaction.check(path, version)


def _rights(settings: ZooKeeperSettings) -> list[Any] | None:
    if not settings.user:
        return None
    return [make_digest_acl(settings.user, settings.password, all=True)]


def _stop(client: KazooClient) -> None:
    client.stop()
    client.close()


class _LastWarning(logging.Logger):
    """Logger for kazoo, which tells of each attempt to connect: only the last warning is kept.

    That the connection is lost is logged here, once. What kazoo logs below the level of warnings
    has requests in it, and with them the password.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.WARNING)
        self.text = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keep the text of a record; called in kazoo's threads."""
        self.text = record.getMessage()


class _QuietHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's threads, of which one ends when a server sends what it cannot read."""

    def __init__(self, kazoo_log: _LastWarning) -> None:
        super().__init__()
        self._kazoo_log = kazoo_log

    def spawn(self, function: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        """Run a function in a thread; its error is kept instead of printed."""

        def run() -> None:
            try:
                function(*arguments, **options)
            except Exception as error:  # noqa: BLE001  # `watch_absence` starts it again
                self._kazoo_log.text = f"it sends what cannot be read: {error!r}"

        return super().spawn(run)
