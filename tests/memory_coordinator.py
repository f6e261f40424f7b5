"""A coordinator in memory, with which tests decide what happens when.

All nodes of a `MemoryEnsemble` share one sequence. A node applies writes at once, unless `delays`
is set: then others' writes come when `deliver` is called, or it catches up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.cluster.metadata.changes import ChangeBatch, PendingWrite
from leveret.cluster.metadata.registrations import (
    ControllerTerm,
    decode_controller,
    decode_session,
    encode_controller,
    encode_session,
)
from leveret.cluster.metadata.state import MetadataState
from leveret.ports.coordination import (
    CONTROLLER_KEY,
    SESSIONS_PREFIX,
    ConflictError,
    CoordinatorUnavailableError,
    KeyChange,
    KeyCheck,
    NodeIdTakenError,
    NotControllerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leveret.errors import LeveretError
    from leveret.ports.coordination import ChangesCallback, Entries, NodeRegistration


class MemoryEnsemble:
    """State of the coordinator itself: the sequence, and who is registered."""

    def __init__(self) -> None:
        self.delays = False
        self.state = MetadataState()  # the latest
        self.registered: dict[int, MemoryCoordinator] = {}
        self.controller: MemoryCoordinator | None = None
        self.reachable: list[MemoryCoordinator] = []

    def open(self, registration: NodeRegistration) -> MemoryCoordinator:
        other = self.registered.get(registration.node)
        if other is not None:
            if other.registration.directory != registration.directory:
                raise NodeIdTakenError(f"the node id {registration.node} is taken")
            self.unregister(other)
        key = f"{SESSIONS_PREFIX}{registration.node}"
        entry = self.state.get(key)
        session = 1 if entry is None else decode_session(entry.value) + 1
        self.commit([KeyChange(key, encode_session(session))])
        coordinator = MemoryCoordinator(self, replace(registration, session=session))
        self.reachable.append(coordinator)
        self.register(coordinator)
        return coordinator

    def register(self, coordinator: MemoryCoordinator) -> None:
        self.registered[coordinator.registration.node] = coordinator
        self.elect()
        self.tell_nodes()

    def unregister(self, coordinator: MemoryCoordinator) -> None:
        """Forget a node: it has closed, or its session has expired."""
        if self.registered.get(coordinator.registration.node) is coordinator:
            del self.registered[coordinator.registration.node]
        if self.controller is coordinator:
            self.controller = None
            self.elect()
        self.tell_nodes()

    def elect(self) -> None:
        candidates = [each for each in self.registered.values() if each in self.reachable]
        if self.controller is None and candidates:
            self.controller = candidates[0]
            entry = self.state.get(CONTROLLER_KEY)
            epoch = 1 if entry is None else decode_controller(entry.value).epoch + 1
            registration = self.controller.registration
            term = ControllerTerm(registration.node, registration.session, epoch)
            number = self.commit([KeyChange(CONTROLLER_KEY, encode_controller(term))])
            self.controller.won_at = number
        for coordinator in self.reachable:
            coordinator.look()

    def tell_nodes(self) -> None:
        for coordinator in self.reachable:
            coordinator.look()

    def commit(self, changes: Sequence[KeyChange], writer: MemoryCoordinator | None = None) -> int:
        bare = tuple(KeyChange(key, value) for key, value, _ in changes)
        batch = ChangeBatch(0, self.state.sequence + 1, self.state.sequence + 1, bare)
        self.state.apply(batch)
        for coordinator in self.reachable:
            coordinator.waiting.append(batch)
            if not self.delays or coordinator is writer:
                coordinator.deliver()
        return batch.sequence


class MemoryCoordinator:
    """`Coordinator` of one node; made by `MemoryEnsemble.open`."""

    def __init__(self, ensemble: MemoryEnsemble, registration: NodeRegistration) -> None:
        self.registration = registration
        self.waiting: deque[ChangeBatch] = deque()
        self.won_at = 0
        self._ensemble = ensemble
        self._state = MetadataState()
        self._state.restore(ensemble.state.image(), [])
        self._closed = False
        self._failure: LeveretError | None = None
        self._nodes: dict[int, NodeRegistration] = {}
        self._controller: int | None = None
        self._changes_callbacks: list[ChangesCallback] = []
        self._nodes_callbacks: list[Callable[[], None]] = []
        self._controller_callbacks: list[Callable[[], None]] = []
        self._connection_callbacks: list[Callable[[], None]] = []

    # What tests do to it

    def lose_connection(self) -> None:
        """Cut the node off; its registration stays until `expire`."""
        self._ensemble.reachable.remove(self)
        self._call(self._connection_callbacks)

    def expire(self) -> None:
        """Let the session of a node that is cut off expire."""
        self._ensemble.unregister(self)

    def reconnect(self) -> None:
        """Let the node reach the coordinator again."""
        ensemble = self._ensemble
        ensemble.reachable.append(self)
        self.catch_up_now()
        if decode_session(ensemble.state[self._session_key].value) != self.session:
            self._failure = NodeIdTakenError("another process has the node id")
            ensemble.reachable.remove(self)
        elif ensemble.registered.get(self.registration.node) is not self:
            ensemble.register(self)
        self.look()
        self._call(self._connection_callbacks)

    def deliver(self) -> None:
        """Apply what others have written."""
        while self.waiting:
            batch = self.waiting.popleft()
            if batch.sequence == self._state.sequence + 1:
                self._state.apply(batch)
                self._report(batch.changes)

    def catch_up_now(self) -> None:
        """Apply what it has missed, as one difference if batches are gone."""
        self.deliver()
        if self._state.sequence < self._ensemble.state.sequence:
            image = self._ensemble.state.image()
            keys = dict.fromkeys((*self._state, *image.entries))
            changes = self._state.difference(image, keys)
            self._state.restore(image, changes)
            self._report(changes)

    def look(self) -> None:
        """Notice which nodes there are, and the controller."""
        ensemble = self._ensemble
        nodes = {node: each.registration for node, each in ensemble.registered.items()}
        if nodes != self._nodes:
            self._nodes = nodes
            self._call(self._nodes_callbacks)
        elected = ensemble.controller
        controller = None if elected is None else elected.registration.node
        if controller != self._controller:
            self._controller = controller
            self._call(self._controller_callbacks)

    def _report(self, changes: Sequence[KeyChange]) -> None:
        for callback in self._changes_callbacks:
            callback(self._state.sequence, changes)

    def _call(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in callbacks:
            callback()

    # What a node asks it

    @property
    def _session_key(self) -> str:
        return f"{SESSIONS_PREFIX}{self.registration.node}"

    @property
    def cluster_id(self) -> str:
        return "memory"

    @property
    def session(self) -> int:
        return self.registration.session

    @property
    def sequence(self) -> int:
        return self._state.sequence

    @property
    def entries(self) -> Entries:
        return self._state

    @property
    def nodes(self) -> Mapping[int, NodeRegistration]:
        return self._nodes

    @property
    def controller(self) -> int | None:
        return self._controller

    @property
    def is_controller(self) -> bool:
        won = self.won_at > 0 and self._state.version(CONTROLLER_KEY) == self.won_at
        return won and not self._closed

    @property
    def is_connected(self) -> bool:
        return not self._closed and self in self._ensemble.reachable

    @property
    def failure(self) -> LeveretError | None:
        return self._failure

    def follow(self, callback: ChangesCallback) -> None:
        self._changes_callbacks.append(callback)

    def follow_nodes(self, callback: Callable[[], None]) -> None:
        self._nodes_callbacks.append(callback)

    def follow_controller(self, callback: Callable[[], None]) -> None:
        self._controller_callbacks.append(callback)

    def follow_connection(self, callback: Callable[[], None]) -> None:
        self._connection_callbacks.append(callback)

    async def write(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        return self.write_now(changes)

    def write_now(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        """Write, for simulators without an event loop."""
        write = PendingWrite.of(changes)
        self._check()
        conflicts = self._ensemble.state.conflicts(write)
        if conflicts:
            self.catch_up_now()
            raise ConflictError(conflicts)
        if not write.changes:
            self.catch_up_now()
            return self._state.sequence
        return self._ensemble.commit(write.changes, self)

    async def write_as_controller(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        if not self.is_controller:
            raise NotControllerError("this node is not the controller")
        try:
            return self.write_now([*changes, KeyCheck(CONTROLLER_KEY, self.won_at)])
        except ConflictError as error:
            if CONTROLLER_KEY in error.keys:
                raise NotControllerError("another controller was elected") from None
            raise

    async def catch_up(self) -> None:
        self._check()
        self.catch_up_now()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_connected:
            raise CoordinatorUnavailableError("the coordinator is away")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self in self._ensemble.reachable:
            self._ensemble.reachable.remove(self)
        self._ensemble.unregister(self)
        self._call(self._connection_callbacks)
