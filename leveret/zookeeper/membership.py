"""Registration of this node, and those of the others."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kazoo.exceptions import NoNodeError, NotEmptyError

from leveret.cluster.metadata.encoding import MalformedError
from leveret.cluster.metadata.registrations import (
    RegisteredProcess,
    decode_registration,
    decode_session,
    encode_registration,
    encode_session,
)
from leveret.ports.coordination import (
    SESSIONS_PREFIX,
    CorruptZnodeError,
    KeyChange,
    NodeIdTakenError,
)
from leveret.zookeeper.connection import CreateZnode, DeleteZnode, Znode
from leveret.zookeeper.metadata_log import (
    RefusedOperationError,
    StaleHeadError,
    corrupt_error,
    naming,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports.coordination import NodeRegistration
    from leveret.zookeeper.connection import ZooKeeperConnection
    from leveret.zookeeper.layout import ZnodeLayout
    from leveret.zookeeper.metadata_log import MetadataLog

__all__ = ["Membership", "left_over_error"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1  # how often a node that starts looks whether an earlier process of it is gone
# A session ends two ticks of ZooKeeper after its timeout at the latest, which ZooKeeper may have
# made longer than was asked for.
WAIT_TIMEOUTS = 3


def left_over_error(path: str, reason: str) -> CorruptZnodeError:
    """Return the error for a registration that cannot be read."""
    return CorruptZnodeError(
        f"the znode {path} is not what Leveret has written: {reason}. Delete it with ZooKeeper's "
        "shell; the node that it is of, if it runs, then makes it again"
    )


class Membership:
    """Nodes that are there. `registration` is this node's, with the session once it has one."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        metadata: MetadataLog,
        layout: ZnodeLayout,
        registration: NodeRegistration,
    ) -> None:
        self.registration = registration
        self.is_registered = False
        self.nodes: Mapping[int, NodeRegistration] = {}
        self._connection = connection
        self._metadata = metadata
        self._layout = layout
        self._path = layout.node(registration.node)
        self._key = f"{SESSIONS_PREFIX}{registration.node}"
        self._reported: set[str] = set()

    async def take_id(self, session_timeout_ms: int) -> None:
        """Register this process under the node's id. Raises NodeIdTakenError.

        A process that was killed stays registered until its session expires. One that had the data
        directory which this one has locked is known to be dead, and replaced.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_TIMEOUTS * session_timeout_ms / 1000
        while not self.is_registered:
            other = await self._try_to_register()
            if other is not None:
                if loop.time() > deadline:
                    raise self._taken(other.registration.peer_address)
                await asyncio.sleep(LOOK_SECONDS)

    async def _try_to_register(self) -> RegisteredProcess | None:
        """Register, or return the process that is registered; neither if others were faster."""
        async with self._metadata.lock:
            await self._metadata.synchronize()
            found = await self._read()
            if found is not None:
                other = self._decode_own(found)
                if other.registration.directory != self.registration.directory:
                    return other
            session = self._last_session() + 1
            registration = replace(self.registration, session=session)
            change = KeyChange(self._key, encode_session(session))
            try:
                await self._metadata.commit([change], self._replace(found, registration))
            except StaleHeadError:
                return None
            except RefusedOperationError as error:
                self._check_refusal(error.reason)
                return None
        self.registration = registration
        self.is_registered = True
        return None

    async def keep_id(self) -> None:
        """Register again, for the same process, if the session has expired.

        Raises NodeIdTakenError if another process has begun under this id since. Whoever is
        registered otherwise is this process, in an older session of its connection.
        """
        process = RegisteredProcess(self.registration, self._metadata.writer)
        own = Znode(encode_registration(process), 0, self._connection.session_id)
        while True:
            found = await self._read()
            self.is_registered = found == own
            if self.is_registered:
                return
            async with self._metadata.lock:
                await self._metadata.synchronize()
                if self._last_session() != self.registration.session:
                    raise self._taken("another process")
                found = await self._read()
                condition = self._metadata.unchanged
                operations = self._replace(found, self.registration)
                refused = await self._connection.commit([condition, *operations])
            if refused is None:
                log.info("node %d is registered again", self.registration.node)
            else:
                self._check_refusal(refused[1])

    def _check_refusal(self, reason: Exception) -> None:
        """Raise if it would be refused again: what lies there has been made by hand."""
        if isinstance(reason, NotEmptyError):
            raise left_over_error(self._path, "there are znodes below it")

    def _taken(self, by: str) -> NodeIdTakenError:
        return NodeIdTakenError(
            f"the node id {self.registration.node} belongs to {by}, which is registered in "
            f"ZooKeeper at {self._path}: give each node an id of its own"
        )

    async def _read(self) -> Znode | None:
        try:
            return await self._connection.get(self._path)
        except NoNodeError:
            return None

    def _decode_own(self, found: Znode) -> RegisteredProcess:
        try:
            return decode_registration(found.data, self.registration.node)
        except MalformedError as error:
            raise left_over_error(self._path, str(error)) from None

    def _last_session(self) -> int:
        entry = self._metadata.state.get(self._key)
        if entry is None:
            return 0
        with naming(f"that set the key {self._key}"):
            return decode_session(entry.value)

    def _replace(
        self, found: Znode | None, registration: NodeRegistration
    ) -> list[CreateZnode | DeleteZnode]:
        process = RegisteredProcess(registration, self._metadata.writer)
        create = CreateZnode(self._path, encode_registration(process), is_ephemeral=True)
        return [create] if found is None else [DeleteZnode(self._path), create]

    async def look(self, watch: Callable[[], None]) -> bool:
        """Read who is there; return whether that has changed. `watch()` is called once it does."""
        try:
            names = await self._connection.children(self._layout.nodes, watch)
        except NoNodeError:
            raise corrupt_error(self._layout.nodes, "it is missing") from None
        found = await asyncio.gather(*map(self._look_at, names))
        nodes = {each.node: each for each in found if each is not None}
        changed, self.nodes = nodes != self.nodes, nodes
        return changed

    async def _look_at(self, name: str) -> NodeRegistration | None:
        path = f"{self._layout.nodes}/{name}"
        node = int(name) if name.isascii() and name.isdecimal() else -1  # -1: nobody has that
        try:
            znode = await self._connection.get(path)
            return decode_registration(znode.data, node).registration
        except NoNodeError:
            return None
        except MalformedError as error:
            self._report(str(left_over_error(path, str(error))))
            return None

    def _report(self, text: str) -> None:
        """Log once what cannot be read of another node, which counts as not there."""
        if text not in self._reported:
            self._reported.add(text)
            log.error("%s", text)
