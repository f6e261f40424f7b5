"""One node's coordinator: joins the parts, and decides when each looks at ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from leveret.cluster.metadata.changes import PendingWrite
from leveret.errors import LeveretError
from leveret.ports.callbacks import call_each
from leveret.ports.coordination import (
    CONTROLLER_KEY,
    ConflictError,
    CoordinatorUnavailableError,
    KeyCheck,
    NodeIdTakenError,
    NotControllerError,
)
from leveret.zookeeper.connection import (
    RECONNECT_DELAY_SECONDS,
    ConnectionInterruptedError,
    ZooKeeperConnection,
)
from leveret.zookeeper.election import ControllerElection
from leveret.zookeeper.layout import ZnodeLayout
from leveret.zookeeper.membership import Membership
from leveret.zookeeper.metadata_log import MetadataLog, log_fault
from leveret.zookeeper.snapshot_writer import SnapshotWriter
from leveret.zookeeper.writer import MetadataWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from leveret.ports.coordination import (
        ChangesCallback,
        Entries,
        KeyChange,
        NodeRegistration,
    )
    from leveret.zookeeper.settings import ZooKeeperSettings

    Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

__all__ = ["ZooKeeperCoordinator"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # how soon what cannot be read is read again, as someone may have mended it

_HEAD, _NODES, _CONTROLLER = "head", "nodes", "controller"


class ZooKeeperCoordinator:
    """`Coordinator` on ZooKeeper, made by `open`."""

    def __init__(self, settings: ZooKeeperSettings, registration: NodeRegistration) -> None:
        layout = ZnodeLayout(settings.chroot)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._connection = ZooKeeperConnection(settings, self._note_connection)
        self._metadata = MetadataLog(self._connection, layout)
        self._membership = Membership(self._connection, self._metadata, layout, registration)
        self._election = ControllerElection(
            self._connection, self._metadata, layout, self._membership
        )
        self._writer = MetadataWriter(self._metadata, self._connection)
        self._snapshots = SnapshotWriter(self._connection, self._metadata, layout, self._election)
        self._metadata.follow(self._note_changes)
        self._failure: LeveretError | None = None
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = {_HEAD, _NODES, _CONTROLLER}  # where to look
        self._watches = {where: partial(self._note_move, where) for where in self._moved}
        self._wake = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._seen: tuple[object, ...] = ()  # of the connection, when it was last reported
        self._seen_controller: tuple[int | None, bool] = (None, False)
        self._nodes_callbacks: list[Callable[[], None]] = []
        self._controller_callbacks: list[Callable[[], None]] = []
        self._connection_callbacks: list[Callable[[], None]] = []

    @classmethod
    async def open(
        cls, settings: ZooKeeperSettings, registration: NodeRegistration, spawn: Spawn
    ) -> ZooKeeperCoordinator:
        """Connect, read the state and register the node.

        `spawn` starts the tasks, which `close` ends. Raises CoordinatorError, whose text says what
        is wrong, or NewerFormatError.
        """
        settings.check()
        coordinator = cls(settings, registration)
        try:
            await coordinator._connection.open()
            await coordinator._start()
        except BaseException:
            await coordinator.close()
            raise
        parts = (coordinator._connection.watch_absence, coordinator._look_for_ever)
        runs = (*parts, coordinator._writer.run, coordinator._snapshots.run)
        coordinator._tasks += [spawn(run()) for run in runs]
        return coordinator

    async def _start(self) -> None:
        deadline = self._loop.time() + self._settings.connect_timeout_ms / 1000
        while True:
            try:
                await self._metadata.create()
                await self._metadata.load()
                await self._membership.take_id(self._settings.session_timeout_ms)
                await self._look()
            except ConnectionInterruptedError:
                if self._loop.time() > deadline:
                    raise self._connection.unavailable("the node does not start") from None
                await asyncio.sleep(RECONNECT_DELAY_SECONDS[0])
            else:
                self._seen = (self.is_connected, None)
                return

    # What it is asked for

    @property
    def cluster_id(self) -> str:
        """Random id of the cluster."""
        return self._metadata.head.cluster_id.hex()

    @property
    def session(self) -> int:
        """Number of this process among the starts of its node."""
        return self._membership.registration.session

    @property
    def sequence(self) -> int:
        """Number of the last write that the local state has."""
        return self._metadata.state.sequence

    @property
    def entries(self) -> Entries:
        """Local state."""
        return self._metadata.state

    @property
    def nodes(self) -> Mapping[int, NodeRegistration]:
        """Nodes that are registered, by id."""
        return self._membership.nodes

    @property
    def controller(self) -> int | None:
        """Node that is the controller."""
        return self._election.controller

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        return self._election.is_controller and not self._closed

    @property
    def is_connected(self) -> bool:
        """Whether ZooKeeper answers, and this node is registered."""
        registered = self._membership.is_registered
        return self._connection.is_connected and registered and not self._closed

    @property
    def failure(self) -> LeveretError | None:
        """Reason why this node does not follow the state any more."""
        return self._failure

    def follow(self, callback: ChangesCallback) -> None:
        """Call `callback(sequence, changes)` for all that is applied from now on."""
        self._metadata.follow(callback)

    def follow_nodes(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `nodes` has changed."""
        self._nodes_callbacks.append(callback)

    def follow_controller(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `controller` or `is_controller` has changed."""
        self._controller_callbacks.append(callback)

    def follow_connection(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `is_connected` or `failure` has changed."""
        self._connection_callbacks.append(callback)

    async def write(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        """Apply all changes if all expectations hold; return the sequence number they got."""
        write = PendingWrite.of(changes)
        self._check("changes of definitions and of leaders are refused")
        return await self._writer.write(write)

    async def write_as_controller(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        """Write if this node is the controller, and no other was elected since."""
        if not self.is_controller:
            raise NotControllerError("this node is not the controller")
        try:
            return await self.write([*changes, KeyCheck(CONTROLLER_KEY, self._election.won_at)])
        except ConflictError as error:
            if CONTROLLER_KEY in error.keys:
                raise NotControllerError("another controller was elected") from None
            raise

    async def catch_up(self) -> None:
        """Wait until the local state has all that any node had written before this call."""
        self._check("the latest state cannot be read")
        await self._writer.catch_up()

    def _check(self, refused: str) -> None:
        if self._closed:
            raise CoordinatorUnavailableError(f"the node is stopping: {refused}")
        if self._failure is not None:
            raise self._failure
        if self._connection.away_seconds * 1000 >= self._settings.session_timeout_ms:
            raise self._connection.unavailable(refused)

    async def close(self) -> None:
        """Give up the registration, and the controller's place, at once."""
        if self._closed:
            return
        self._closed = True
        self._stop_patience()
        self._writer.refuse(CoordinatorUnavailableError("the node is stopping"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._connection.close()
        self._report()

    # What it notices

    def _note_connection(self) -> None:
        """Look everywhere once ZooKeeper is there again; refuse what waits if that takes long."""
        if self._closed:
            return
        self._stop_patience()
        if self._connection.is_connected:
            self._look_everywhere()
        else:
            self._membership.is_registered = False
            seconds = self._settings.session_timeout_ms / 1000 - self._connection.away_seconds
            self._patience = self._loop.call_later(max(0, seconds), self._lose_patience)
        self._report()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        self._writer.refuse(self._connection.unavailable("what waits to be written is refused"))

    def _note_move(self, where: str) -> None:
        self._moved.add(where)
        self._wake.set()

    def _look_everywhere(self) -> None:
        self._moved |= {_HEAD, _NODES, _CONTROLLER}
        self._wake.set()

    def _note_changes(self, _sequence: int, _changes: Sequence[KeyChange]) -> None:
        self._snapshots.check()
        self._report_controller()

    async def _look_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            failure: LeveretError | None = None
            try:
                await self._look()
            except ConnectionInterruptedError:
                continue  # once it is there again, it looks everywhere
            except LeveretError as error:
                failure = error
            self._note_failure(failure)
            if isinstance(failure, NodeIdTakenError):
                return
            if failure is not None:
                self._loop.call_later(RETRY_SECONDS, self._look_everywhere)

    def _note_failure(self, failure: LeveretError | None) -> None:
        if failure is not None:
            if str(failure) != str(self._failure):
                log.error("this node cannot follow its cluster: %s", failure)
            self._writer.refuse(failure)
        self._failure = failure
        self._report()

    async def _look(self) -> None:
        """Read what has moved, the state first: it says whether this node's id is still its own."""
        looks = (
            (_HEAD, self._look_at_head),
            (_NODES, self._look_at_nodes),
            (_CONTROLLER, self._look_at_controller),
        )
        for where, look in looks:
            if where in self._moved:
                self._moved.discard(where)
                try:
                    await look()
                except BaseException:
                    self._moved.add(where)
                    raise

    async def _look_at_head(self) -> None:
        await self._metadata.look(self._watches[_HEAD])

    async def _look_at_nodes(self) -> None:
        membership = self._membership
        changed = False
        while True:
            if not membership.is_registered:
                await membership.keep_id()
                self._report()
            changed |= await membership.look(self._watches[_NODES])
            if membership.nodes.get(membership.registration.node) == membership.registration:
                break
            membership.is_registered = False
        if changed:
            call_each(self._nodes_callbacks, log_fault)

    async def _look_at_controller(self) -> None:
        await self._election.look(self._watches[_CONTROLLER])
        self._report_controller()
        self._snapshots.check()

    def _report(self) -> None:
        seen = (self.is_connected, self._failure)
        if seen != self._seen:
            self._seen = seen
            call_each(self._connection_callbacks, log_fault)
        self._report_controller()

    def _report_controller(self) -> None:
        seen = (self.controller, self.is_controller)
        if seen != self._seen_controller:
            self._seen_controller = seen
            call_each(self._controller_callbacks, log_fault)
