"""A node as one of a cluster: the coordinator, links to the other nodes, and replication.

It is imported only where the setting `cluster` is set.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Final

from leveret import __version__
from leveret.cluster.partition_state import Member
from leveret.errors import LeveretError, StorageError
from leveret.links.accepted import Handlers
from leveret.links.handshake import VERSIONS, HandshakeTerms
from leveret.links.identity import NodeIdentity
from leveret.links.links import Links, bind_sockets
from leveret.links.settings import LinkSettings
from leveret.node.cluster_files import (
    read_cluster_secret,
    read_link_certificates,
    zookeeper_settings,
)
from leveret.node.peer_addresses import PeerAddresses
from leveret.node.process import node_name
from leveret.ports import Durability
from leveret.ports.coordination import (
    DIRECTORIES_PREFIX,
    KeyChange,
    NodeIdTakenError,
    NodeRegistration,
)
from leveret.ports.host_port import format_host_port, parse_host_port
from leveret.ports.link_kinds import REPLICATE
from leveret.replication.controlling import ControllerDuty
from leveret.replication.partition_table import PartitionTable
from leveret.replication.replicator import Replicator
from leveret.storage.node_file import NodeFile, read_boot_id
from leveret.zookeeper import ZooKeeperCoordinator

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import AsyncIterator, Callable, Sequence

    from leveret.config import Configuration
    from leveret.links.accepted import MessageHandler, RequestHandler, StreamHandler
    from leveret.links.identity import ClusterSecret
    from leveret.links.tls import LinkCertificates
    from leveret.node.process import Process
    from leveret.ports.coordination import Coordinator

__all__ = ["JOINING_KEY", "ClusterMembership", "open_cluster"]

logger = logging.getLogger(__package__)

JOINING_KEY: Final = "joining"  # its value: the node whose directory becomes the cluster's first
SOFTWARE: Final = f"leveret {__version__}"


class ClusterMembership:
    """This node's part in a cluster, made by `open_cluster`.

    It is registered, and others dial it already; they wait until `start`. Before that, handlers of
    what they send are added to `requests`, `messages` and `streams`, by kind (ports/link_kinds.py).

    `leadership_changed(key)` is called when this node begins or ceases to lead a partition,
    `survives_power_loss(key)` is asked for each partition whose leader this node elects as the
    controller: whether its replicas have on their disks what they have said to have.
    """

    def __init__(
        self,
        process: Process,
        coordinator: Coordinator,
        member: Member,
        secret: ClusterSecret,
        *,
        sockets: Sequence[socket.socket],
        tls: LinkCertificates | None,
        settings: LinkSettings,
    ) -> None:
        """`sockets` listen for the other nodes; `tls` is None for links without."""
        self.member = member
        self.coordinator = coordinator
        self.table = PartitionTable(coordinator)  # before others follow, so that they find it new
        self.requests: dict[int, RequestHandler] = {}
        self.messages: dict[int, MessageHandler] = {}
        self.streams: dict[int, StreamHandler] = {}
        self.leadership_changed: Callable[[str], None] = lambda _key: None
        flushes = process.configuration.durability is Durability.FSYNC
        self.survives_power_loss: Callable[[str], bool] = lambda _key: flushes
        identity = NodeIdentity(
            coordinator.cluster_id, member.node, coordinator.session, SOFTWARE, frozenset()
        )
        self.links = Links(
            HandshakeTerms(identity, secret, settings.limits),
            settings,
            Handlers(self.requests, self.messages, self.streams),
            process.spawn,
            tls=tls,
        )
        self.replicator = Replicator(
            member,
            coordinator,
            self.links,
            process.clock,
            process.spawn,
            changed=self._report_leadership,
        )
        self.streams[REPLICATE] = self.replicator.serve
        self._process = process
        self._addresses = PeerAddresses(member.node, coordinator, self.links)
        self._duty = ControllerDuty(coordinator, self.table, self._survives_power_loss)
        self._duty_task: asyncio.Task[None] | None = None
        self._sockets = sockets

    @property
    def node(self) -> int:
        """Id of this node."""
        return self.member.node

    def start(self) -> None:
        """Accept other nodes and dial them, lead and follow, and be the controller if elected."""
        assert self._duty_task is None, "it is started once"
        self.links.accept_on(self._sockets)
        self._addresses.start()
        self.replicator.start()
        self._duty_task = self._process.spawn(self._duty.run())
        self.coordinator.follow_connection(self._notice_failure)
        self._notice_failure()

    async def forget_directory(self) -> None:
        """Leave this node's number to others: it has not become a part of the cluster."""
        await self.coordinator.write([KeyChange(f"{DIRECTORIES_PREFIX}{self.node}", None)])

    async def close(self) -> None:
        """Lead nothing any more, and end all links; the coordinator stays."""
        if self._duty_task is not None:
            self._duty_task.cancel()
        self._addresses.end()
        await self.replicator.close()
        await self.links.close()

    def _report_leadership(self, key: str) -> None:
        self.leadership_changed(key)

    def _survives_power_loss(self, key: str) -> bool:
        return self.survives_power_loss(key)

    def _notice_failure(self) -> None:
        """Stop the node where another process has its id: it is not one of the cluster any more."""
        failure = self.coordinator.failure
        if isinstance(failure, NodeIdTakenError) and not self._process.stopping.is_set():
            logger.error("the node stops: %s", failure)
            self._process.stopping.set()


@contextlib.asynccontextmanager
async def open_cluster(
    process: Process,
    *,
    joins: bool = False,
    boot_id: Callable[[], str] = read_boot_id,
    link_settings: LinkSettings | None = None,
) -> AsyncIterator[ClusterMembership]:
    """Register this node in its cluster; at the end, give up the registration.

    The lock of the data directory is held. `joins`: to make it the cluster's first, which must be
    done before nodes can start (see node.joining). `boot_id` and `link_settings` are passed by
    tests. Raises LeveretError.
    """
    configuration = process.configuration
    assert configuration.node_id is not None, "a cluster has numbers: see ClusterSettings"
    secret = read_cluster_secret(configuration)
    tls = read_link_certificates(configuration, process.loop.time)
    zookeeper = zookeeper_settings(configuration)
    file = NodeFile(configuration.data_dir, configuration.node_id, boot_id())
    member = Member(configuration.node_id, file.incarnation)
    async with contextlib.AsyncExitStack() as stack:
        sockets = await _bind(configuration)
        for each in sockets:
            stack.callback(each.close)
        registration = _registration(configuration, file, sockets[0].getsockname()[1])
        coordinator = await ZooKeeperCoordinator.open(zookeeper, registration, process.spawn)
        stack.push_async_callback(coordinator.close)
        held = coordinator.entries.get(JOINING_KEY)
        if held is not None and not (joins and held.value == str(member.node).encode()):
            raise LeveretError(
                f"node {held.value.decode()} has not finished joining: run `leveret cluster join` "
                "there again"
            )
        await _check_data(coordinator, file, configuration)
        logger.info(
            "node %d of cluster %s: session %d, incarnation %d, links at %s",
            member.node,
            coordinator.cluster_id,
            coordinator.session,
            member.incarnation,
            registration.peer_address,
        )
        membership = ClusterMembership(
            process,
            coordinator,
            member,
            secret,
            sockets=sockets,
            tls=tls,
            settings=link_settings or LinkSettings(),
        )
        stack.push_async_callback(membership.close)
        yield membership


async def _bind(configuration: Configuration) -> list[socket.socket]:
    """Return the sockets for other nodes. Raises LeveretError."""
    host, port = configuration.link_host, configuration.link_port
    try:
        return await bind_sockets(host, port)
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror  # of a host's name
        raise LeveretError(
            f"cannot listen for other nodes on {host}:{port}: {reason}; "
            "free the address or choose another one (link_host, link_port)"
        ) from None


def _registration(
    configuration: Configuration, file: NodeFile, bound_port: int
) -> NodeRegistration:
    assert configuration.node_id is not None
    host, port = parse_host_port(configuration.advertise)
    client_port = configuration.port if configuration.plain_listener else configuration.tls_port
    return NodeRegistration(
        configuration.node_id,
        format_host_port(host, port or bound_port),
        # A free port is taken later, and told to nobody but those who look at this node's log.
        format_host_port(host, client_port) if client_port else "",
        file.directory,
        rack=configuration.rack,
        incarnation=file.incarnation,
        software=SOFTWARE,
        protocol_min=VERSIONS.lowest,
        protocol_max=VERSIONS.highest,
        name=node_name(configuration.node_id),
    )


async def _check_data(
    coordinator: Coordinator, file: NodeFile, configuration: Configuration
) -> None:
    """Check that this is the data directory that the cluster knows. Raises LeveretError.

    Leaders may be elected among the nodes that are said to have everything: one that has come back
    without its data must not be taken for one of them.
    """
    file.join(coordinator.cluster_id)
    key = f"{DIRECTORIES_PREFIX}{configuration.node_id}"
    value = json.dumps({"directory": file.directory}).encode()
    entry = coordinator.entries.get(key)
    if entry is None:
        await coordinator.write([KeyChange(key, value)])
    elif entry.value != value:
        raise StorageError(
            f"{configuration.data_dir} is not the data directory that node {configuration.node_id} "
            "had in this cluster, and other nodes count on what was in that one: set 'data_dir' to "
            "it, or give this node an id that no node has had"
        )
