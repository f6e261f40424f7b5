"""Election of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kazoo.exceptions import NoNodeError

from leveret.cluster.metadata.encoding import MalformedError
from leveret.cluster.metadata.registrations import (
    ControllerTerm,
    decode_controller,
    encode_controller,
)
from leveret.ports.coordination import CONTROLLER_KEY, KeyChange
from leveret.zookeeper.connection import CreateZnode, DeleteZnode
from leveret.zookeeper.membership import left_over_error
from leveret.zookeeper.metadata_log import RefusedOperationError, StaleHeadError, naming

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.zookeeper.connection import Znode, ZooKeeperConnection
    from leveret.zookeeper.layout import ZnodeLayout
    from leveret.zookeeper.membership import Membership
    from leveret.zookeeper.metadata_log import MetadataLog

__all__ = ["ControllerElection"]


class ControllerElection:
    """Controller of the cluster: the first node that finds that there is none.

    Its epoch is written into the sequence together with its znode. The key's version then is what
    its writes check: none of them can follow the election of another.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        metadata: MetadataLog,
        layout: ZnodeLayout,
        membership: Membership,
    ) -> None:
        self.controller: int | None = None
        self.won_at = 0  # the sequence number with which this node was elected, 0 if it was not
        self._connection = connection
        self._metadata = metadata
        self._path = layout.controller
        self._membership = membership

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        return self.won_at > 0 and self._metadata.state.version(CONTROLLER_KEY) == self.won_at

    async def look(self, watch: Callable[[], None]) -> None:
        """Find the controller, or become it. `watch()` is called when the place may be vacant."""
        while True:
            found = await self._read(watch)
            if found is None:
                await self._run(None)
                continue
            term = self._decode(found.data)
            if self._is_own(term) and found.owner != self._connection.session_id:
                await self._run(found)  # of a session that has expired, or soon will
                continue
            self.controller = term.node
            if not self._is_own(term):
                self.won_at = 0
            return

    def _is_own(self, term: ControllerTerm) -> bool:
        registration = self._membership.registration
        return (term.node, term.session) == (registration.node, registration.session)

    async def _read(self, watch: Callable[[], None]) -> Znode | None:
        try:
            return await self._connection.get(self._path, watch)
        except NoNodeError:
            # It may appear before the next look, which finds it then.
            await self._connection.exists(self._path, watch)
            return None

    def _decode(self, data: bytes) -> ControllerTerm:
        try:
            return decode_controller(data)
        except MalformedError as error:
            raise left_over_error(self._path, str(error)) from None

    async def _run(self, old: Znode | None) -> None:
        """Try to become the controller, in place of an `old` term of this node."""
        registration = self._membership.registration
        async with self._metadata.lock:
            await self._metadata.synchronize()
            term = ControllerTerm(registration.node, registration.session, self._last_epoch() + 1)
            data = encode_controller(term)
            operations: list[CreateZnode | DeleteZnode] = []
            if old is not None:
                operations.append(DeleteZnode(self._path))
            operations.append(CreateZnode(self._path, data, is_ephemeral=True))
            try:
                self.won_at = await self._metadata.commit(
                    [KeyChange(CONTROLLER_KEY, data)], operations
                )
            except (StaleHeadError, RefusedOperationError):
                return

    def _last_epoch(self) -> int:
        entry = self._metadata.state.get(CONTROLLER_KEY)
        if entry is None:
            return 0
        with naming(f"that set the key {CONTROLLER_KEY}"):
            return decode_controller(entry.value).epoch
