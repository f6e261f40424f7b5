"""A node's place in its cluster: registered once, and live as long as its session is.

The order of a start matters: a new incarnation is on the node's disk before anybody can see it, and
registered before the node is live. So whoever was given something in an earlier one is never taken
for it, and a node that is killed and comes back at once is noticed.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.cluster.entries import (
    CLUSTER,
    CONTROLLER_EPOCH,
    LIVE,
    NODES,
    SHARD,
    SHARDS,
    ClusterValue,
    LiveValue,
    NodeValue,
    ShardValue,
    live_path,
    node_path,
    parse_entry,
    shard_path,
)
from leveret.errors import DiskFullError, LeveretError
from leveret.ports.cluster import new_id
from leveret.ports.coordinator import (
    CheckEntry,
    CoordinatorUnavailableError,
    CreateEntry,
    DeleteEntry,
    EntryOperation,
    SetEntry,
    WriteOutcome,
)
from leveret.replication.shard import ShardEntry

if TYPE_CHECKING:
    from leveret.ports.coordinator import Coordinator
    from leveret.storage.cluster_file import ClusterFile

__all__ = ["Membership", "MembershipError", "NodeSettings"]

ATTEMPTS_MAX = 20  # of a write that others make at the same time, or whose answer gets lost
SECRET_BYTES = 32


class MembershipError(LeveretError):
    """This node cannot be what it is told to be; the text says what to do."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of this node: its number, the address for other nodes, and its rack.

    `has_data` says whether its directory holds logs already, the newest part of which was written
    in `epoch`; `replaces` that its number was that of a directory which is lost.
    """

    node: int
    address: tuple[str, int]
    rack: str
    release: str
    has_data: bool = False
    epoch: int = 0
    replaces: bool = False


class Membership:
    """Registers a node in each of its sessions. `cluster` is known after that."""

    cluster: ClusterValue

    def __init__(self, coordinator: Coordinator, file: ClusterFile, settings: NodeSettings) -> None:
        self._coordinator = coordinator
        self._file = file
        self._settings = settings

    async def register(self) -> int:
        """Register the node in a new incarnation, have it live, and return that incarnation.

        Without space for that it is in no session in which it was live. Raises MembershipError,
        CoordinatorError, StorageError.
        """
        self.cluster = await self._read_or_found_cluster()
        self._check_directory()
        try:
            incarnation = await self._register_node()
        except DiskFullError:
            await self._end_life()
            raise
        await self._go_live(incarnation)
        return incarnation

    # -- the cluster

    async def _read_or_found_cluster(self) -> ClusterValue:
        """Return the cluster; if there is none, make one of which this node's logs are the data."""
        for _ in range(ATTEMPTS_MAX):
            found = await self._coordinator.read(CLUSTER)
            if found is not None:
                return parse_entry(ClusterValue, CLUSTER, found)
            if self._file.state.cluster is not None:
                raise MembershipError(
                    "ZooKeeper knows no cluster, but this node is a member of cluster "
                    f"{self._file.state.cluster}: check the address and the path of ZooKeeper; if "
                    "its data is lost, restore it, or found another cluster: move cluster.json "
                    "away on a node that was in sync, and start the others with empty directories"
                )
            await self._found()
        raise _undecided("make the cluster")

    async def _found(self) -> None:
        """Found the cluster, under an id by which this node knows later that it was it.

        The answer may get lost, or this process end before it comes. An attempt may be carried out
        long after it was given up, so that the next one has the same id. Raises StorageError.
        """
        node = self._settings.node
        founding = self._file.state.founding or new_id()
        await asyncio.to_thread(self._file.change, founding=founding, node=node)
        cluster = ClusterValue(id=founding, secret=secrets.token_hex(SECRET_BYTES))
        isr = frozenset({node})
        # Its logs may be of another cluster: in this one, too, each reign has a higher epoch.
        shard = ShardEntry(None, 0, self._settings.epoch, isr, (node,), 1, isr)
        await self._coordinator.commit(
            CreateEntry(CLUSTER, cluster.to_bytes()),
            *(CreateEntry(path) for path in (NODES, LIVE, SHARDS, CONTROLLER_EPOCH)),
            CreateEntry(shard_path(SHARD), ShardValue.of(shard).to_bytes()),
        )

    @property
    def _belongs(self) -> bool:
        """Whether the data directory is that of a member, or of the founder, of the cluster."""
        return self.cluster.id in {self._file.state.cluster, self._file.state.founding}

    def _check_directory(self) -> None:
        """Raise MembershipError if the data directory is another cluster's or node's."""
        state, node = self._file.state, self._settings.node
        if state.cluster not in (None, self.cluster.id):
            raise MembershipError(
                f"the data directory belongs to cluster {state.cluster}, and ZooKeeper's is "
                f"{self.cluster.id}: check the address and the path of ZooKeeper, or start with an "
                "empty directory"
            )
        if self._belongs and state.node != node:
            raise MembershipError(
                f"the data directory is that of node {state.node}, and this one is node {node}: "
                "give each node a directory of its own"
            )

    # -- the node

    async def _register_node(self) -> int:
        path = node_path(self._settings.node)
        for _ in range(ATTEMPTS_MAX):
            found = await self._coordinator.read(path)
            registered = None if found is None else parse_entry(NodeValue, path, found)
            left = await self._check_registered(registered)
            state = self._file.state
            last = 0 if registered is None else registered.incarnation
            incarnation = max(state.incarnation, last) + 1
            await asyncio.to_thread(
                self._file.change,
                cluster=self.cluster.id,
                node=self._settings.node,
                incarnation=incarnation,
                founding=None,
            )
            value = NodeValue(
                directory=state.directory, incarnation=incarnation, rack=self._settings.rack
            ).to_bytes()
            operations: list[EntryOperation] = [
                CreateEntry(path, value) if found is None else SetEntry(path, value, found.version)
            ]
            if left is not None:
                operations.append(left)
            if await self._coordinator.commit(*operations) is WriteOutcome.DONE:
                return incarnation
        raise _undecided("register the node")

    async def _check_registered(self, registered: NodeValue | None) -> CheckEntry | None:
        """Raise MembershipError unless this directory may be that of the registered node.

        If it takes the place of another one, return what holds as long as the node is not in sync.
        Until it is registered, the leader may take the process with the other one back into the
        set.
        """
        state, node = self._file.state, self._settings.node
        if registered is None:
            if self._settings.has_data and not self._belongs:
                raise MembershipError(
                    "the data directory holds queues, which would be lost: a node joins a cluster "
                    "with an empty directory; for the queues of a single node to become those of "
                    "the cluster, start it first, with a path of ZooKeeper at which there is no "
                    "cluster, and the other nodes with empty directories"
                )
            return None
        is_same = registered.directory == state.directory
        if is_same and registered.incarnation <= state.incarnation:
            return None
        if not self._settings.replaces:
            problem = (
                "is an older copy of it" if is_same else "is another one, or its disk was lost"
            )
            raise MembershipError(
                f"node {node} is registered with a data directory, and this {problem}: if another "
                "node has this number, choose another one; if what the directory had is lost, "
                "start with --replace: the node then leaves all in-sync sets, and copies "
                "everything anew"
            )
        if is_same:
            # With a newer incarnation the copy would look like what it was copied from, also to a
            # start after this one.
            directory = new_id()
            await asyncio.to_thread(self._file.change, directory=directory)
        return await self._leave_sets()

    async def _leave_sets(self) -> CheckEntry | None:
        """Take the node out of the in-sync set, of which it has not everything any more.

        Returns what holds as long as it is out; None if there is no shard. Raises MembershipError
        if it is alone in it: nobody could be elected then, not even the same node with its old
        disk.
        """
        path, node = shard_path(SHARD), self._settings.node
        for _ in range(ATTEMPTS_MAX):
            found = await self._coordinator.read(path)
            if found is None:
                return None
            entry = parse_entry(ShardValue, path, found).entry
            if node not in entry.isr:
                return CheckEntry(path, found.version)
            if entry.isr == {node}:
                raise MembershipError(
                    f"node {node} alone was in sync, so no other node has all that was confirmed, "
                    "and after --replace none could lead: bring back what its data directory had; "
                    "if that is lost, begin anew from the copy of another node, which may lack the "
                    "newest messages: move its cluster.json away, and start it with another path "
                    "of ZooKeeper"
                )
            without = entry.changed(isr=entry.isr - {node})
            if entry.leader == node:
                without = without._replace(leader=None, incarnation=0)
            value = ShardValue.of(without).to_bytes()
            await self._coordinator.commit(SetEntry(path, value, found.version))
        raise _undecided("leave the in-sync set")

    async def _go_live(self, incarnation: int) -> None:
        """Have the node live in this session, and nobody of its number besides."""
        path = live_path(self._settings.node)
        host, port = self._settings.address
        value = LiveValue(
            incarnation=incarnation, host=host, port=port, release=self._settings.release
        ).to_bytes()
        for _ in range(ATTEMPTS_MAX):
            found = await self._coordinator.read(path)
            if found is not None and (found.owner, found.value) == (
                self._coordinator.session,
                value,
            ):
                self._coordinator.hold_lease(path)
                return
            if found is None:
                await self._coordinator.commit(CreateEntry(path, value, is_ephemeral=True))
            else:  # of an earlier life of this directory, whose lock this process has
                await self._coordinator.commit(DeleteEntry(path, found.version))
        raise _undecided("have the node live")

    async def _end_life(self) -> None:
        """End the session if the node is live in it: nobody is behind that entry.

        Nor behind that of the controller, without which no leader would be elected.
        """
        path = live_path(self._settings.node)
        found = await self._coordinator.read(path)
        if found is not None and found.owner == self._coordinator.session:
            await self._coordinator.commit(DeleteEntry(path, found.version))  # as hold_lease says


def _undecided(what: str) -> CoordinatorUnavailableError:
    return CoordinatorUnavailableError(
        f"ZooKeeper does not let this node {what}: its answers get lost, or another node of the "
        "same number is starting"
    )
