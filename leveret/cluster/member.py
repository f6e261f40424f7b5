"""A node of a cluster in one session with the coordinator: registered, linked, with its replica.

A new session is a new incarnation, with which everything here begins anew. A node that has led does
not begin anew in the same process: what it had opened was for one reign.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.controller import Controller
from leveret.cluster.entries import SHARD, shard_path
from leveret.cluster.links.connector import LinkDialing
from leveret.cluster.links.handshake import LinkIdentity
from leveret.cluster.links.links import Links
from leveret.cluster.live_nodes import LiveNodes
from leveret.cluster.member_facts import member_facts, read_racks
from leveret.cluster.membership import Membership
from leveret.cluster.passed_client import LeaderAddress
from leveret.cluster.replica_runner import ReplicaRunner
from leveret.cluster.session_tasks import SessionTasks
from leveret.cluster.shard_entries import ShardEntries
from leveret.cluster.shard_links import ShardLinks
from leveret.ports.callbacks import do_nothing
from leveret.ports.coordinator import CoordinatorError
from leveret.replication.replica import Replica

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from leveret.cluster.links.link import LinkLimits
    from leveret.cluster.membership import NodeSettings
    from leveret.cluster.replica_runner import Reign
    from leveret.ports.cluster import MemberFacts
    from leveret.ports.coordinator import Coordinator
    from leveret.storage.cluster_file import ClusterFile
    from leveret.storage.replica_store import ReplicaStore

__all__ = ["ClusterMember", "MemberParts"]

logger = logging.getLogger("leveret.cluster")

TICK_SECONDS = 0.1  # small beside a lease, and beside the time that a follower may lag


class MemberParts(NamedTuple):
    """Parts of a node that a member is made of.

    `lead` begins a reign for an epoch, with the runner to be told what happens to its logs.
    `listen` is the address for links; `replicas` is how many copies the shard is to have.
    """

    coordinator: Coordinator
    file: ClusterFile
    files: ReplicaStore
    lead: Callable[[int, ReplicaRunner], Reign]
    now_ms: Callable[[], int]
    listen: tuple[str, int]
    replicas: int
    limits: LinkLimits | None = None


class ClusterMember:
    """A member from its registration to the end of its session or of its replica.

    Then `over` is set, and `reason` says why.
    """

    incarnation: int

    def __init__(self, parts: MemberParts, settings: NodeSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._tasks = SessionTasks("a connection to another node")
        self._stack = AsyncExitStack()
        self._runner: ReplicaRunner | None = None
        self._links: Links | None = None
        self._live: LiveNodes | None = None
        self._racks = {settings.node: settings.rack}  # of all nodes, as they were read last
        self.reason = ""
        self.over = asyncio.Event()

    async def start(self) -> None:
        """Register the node, and have it follow or lead. Close it if that fails.

        Raises MembershipError, CoordinatorError, StorageError, LeveretError.
        """
        parts, node = self._parts, self._settings.node
        parts.coordinator.on_lost = partial(self._end, "its session with ZooKeeper has ended")
        membership = Membership(parts.coordinator, parts.file, self._settings)
        self.incarnation = await membership.register()
        live = self._live = LiveNodes(parts.coordinator)
        self._stack.push_async_callback(live.close)
        shard_links = ShardLinks(SHARD)
        identity = LinkIdentity(
            bytes.fromhex(membership.cluster.id),
            node,
            self.incarnation,
            bytes.fromhex(membership.cluster.secret),
        )
        dialing = LinkDialing(live.address, self._tasks.start)
        self._stack.push_async_callback(self._tasks.close)
        links = self._links = Links(identity, shard_links, dialing, parts.limits)
        shard_links.links = links
        runner = self._runner = shard_links.runner = ReplicaRunner(
            Replica(node, self.incarnation, parts.file.epoch(SHARD)),
            parts.files,
            shard_links,
            ShardEntries(parts.coordinator, SHARD),
            keep_epoch=partial(parts.file.keep_epoch, SHARD),
            lead=lambda epoch: parts.lead(epoch, self.runner),
            now_ms=parts.now_ms,
            live=lambda: live.incarnations,
        )
        self._stack.push_async_callback(runner.close)
        self._stack.callback(links.close)
        await links.listen(*parts.listen)
        self._stack.callback(parts.coordinator.watch(shard_path(SHARD), runner.look))
        controller = Controller(parts.coordinator, node, self.incarnation, replicas=parts.replicas)
        self._stack.push_async_callback(controller.close)
        runner.look()
        self._tick(runner)
        logger.info(
            "node %d is a member of cluster %s, incarnation %d",
            *(node, membership.cluster.id, self.incarnation),
        )

    @property
    def has_lease(self) -> bool:
        """Whether this node surely has its session: else another one may lead by now."""
        return self._parts.now_ms() < self._parts.coordinator.lease_until_ms

    def _tick(self, runner: ReplicaRunner) -> None:
        """Look what is due: a leader without a lease is one no more."""
        if self.over.is_set():
            return
        if runner.over.is_set():
            self._end(runner.reason)
        elif runner.replica.leader is not None and not self.has_lease:
            self._end("its lease is over: ZooKeeper did not answer in time")
        else:
            try:
                runner.tick()
            except Exception:  # without another look a leader would go on without a lease
                logger.exception("a replica failed: please report this as a bug")
                self._end("an error of the program")
            else:
                self._loop.call_later(TICK_SECONDS, self._tick, runner)

    def _end(self, reason: str) -> None:
        """Stop serving at once; who waits for `over` closes what is left."""
        if self.over.is_set():
            return
        self.reason = reason
        self.over.set()
        if self._runner is not None:
            self._runner.end(reason)

    @property
    def runner(self) -> ReplicaRunner:
        """Runner of the node's replica, once the node is registered."""
        assert self._runner is not None, "it has started"
        return self._runner

    @property
    def leader(self) -> tuple[LinkIdentity, LeaderAddress] | None:
        """Identity of this node, and another one that leads; None as long as none is known."""
        entry = None if self._runner is None else self._runner.replica.entry
        if self._links is None or self._live is None or entry is None:
            return None
        if entry.leader in (None, self._settings.node):
            return None
        live = self._live.nodes.get(entry.leader)
        if live is None or live.incarnation != entry.incarnation:
            return None
        return self._links.identity, LeaderAddress(entry.leader, live.host, live.port)

    @property
    def node(self) -> int:
        """Number of this node (see ports.ClusterView)."""
        return self._settings.node

    async def members(self) -> list[MemberFacts]:
        """Return all nodes as this one knows them (see ports.ClusterView).

        Without a session with ZooKeeper it knows of no node that is live.
        """
        with suppress(CoordinatorError):
            self._racks |= await read_racks(self._parts.coordinator)
        replica = None if self._runner is None else self._runner.replica
        now_ms = self._parts.now_ms()
        lease_ms = max(self._parts.coordinator.lease_until_ms - now_ms, 0)
        facts = member_facts(
            self._racks,
            None if self._live is None or not lease_ms else self._live.nodes,
            None if replica is None else replica.entry,
            None if replica is None else replica.leader,
            now_ms,
        )
        return [replace(one, lease_ms=lease_ms) if one.node == self.node else one for one in facts]

    def take_clients(self, take: Callable[[socket.socket, bytes], None]) -> None:
        """Take the connections of clients that other nodes pass on (see Links.on_client)."""
        assert self._links is not None, "it has started"
        self._links.on_client = take

    async def close(self) -> None:
        """End links and tasks, and close the files that were not left to a reign."""
        self._end("it is closed")
        self._parts.coordinator.on_lost = do_nothing
        await self._stack.aclose()
