"""Brokers of a cluster in one process: real logs, links and AMQP sockets on loopback."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from random import Random

from leveret.amqp.listener import AmqpListener
from leveret.amqp.sockets import ClientSockets
from leveret.broker.broker import Broker
from leveret.broker.settings import BrokerSettings
from leveret.cluster.partition_state import Member, PartitionState
from leveret.clustering.figures import ClusterQueues
from leveret.clustering.http_forwarding import HttpForwarding
from leveret.clustering.node_alarms import ClusterAlarms
from leveret.clustering.node_clocks import ClusterClocks
from leveret.clustering.operating.administration import OperatedCluster
from leveret.clustering.operating.hand_overs import HandOvers
from leveret.clustering.operating.mover import MoverSettings, PartitionMover
from leveret.clustering.placement import PartitionPlacement, PlacementServices
from leveret.clustering.schedules import LedSchedules
from leveret.clustering.transactions.cluster_transactions import ClusterTransactions
from leveret.clustering.transactions.inquiring import PartsToAsk
from leveret.clustering.transactions.partitions import TransactionServices
from leveret.clustering.transactions.placing import (
    DECISIONS_KEY,
    DECISIONS_REPLICATION,
    DecisionPlacing,
)
from leveret.config import Configuration
from leveret.core.access.authentication import InternalAuthenticator
from leveret.core.access.limits import NodeLimits
from leveret.core.access.permissions import AccessControl
from leveret.core.blocked_publishers import BlockedPublishers
from leveret.core.environment import Environment
from leveret.core.settings.policies import Policies
from leveret.core.settings.replication import replication_of
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.rates.rules import NO_RATES
from leveret.links.accepted import Handlers
from leveret.links.handshake import HandshakeTerms
from leveret.links.identity import NodeIdentity
from leveret.links.links import Links
from leveret.node.process import SystemClock
from leveret.ports import Durability
from leveret.ports.cluster_figures import NodeCondition
from leveret.ports.coordination import KeyChange, NodeRegistration
from leveret.ports.definitions import (
    Home,
    PermissionDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.ports.link_kinds import ASK_OUTCOME, FORWARD, REPLICATE
from leveret.replication.controlling import ControllerDuty
from leveret.replication.partition_table import PartitionTable
from leveret.replication.replica import partition_key
from leveret.replication.replicator import PARTITIONS_PREFIX, Replicator
from leveret.storage.state import MemoryStateStore
from tests.links.nodes import QUICK, SECRET
from tests.memory_coordinator import MemoryEnsemble
from tests.memory_metadata import MemoryMetadataStore
from tests.storage.harness import abandon, make_store
from tests.support.waiting import eventually

# Nobody but tests decides who leads.
NO_MOVES = MoverSettings(preferred_seconds=1e6, replace_seconds=0)


class ShiftedClock(SystemClock):
    """A clock whose time of day may be wrong."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class BrokerNode:
    """One node. It may be killed, and started again with the same directory."""

    def __init__(self, cluster: BrokerCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.data = cluster.directory / f"node-{number}"
        self.tasks: set[asyncio.Task] = set()
        self.is_up = False
        self.clock = ShiftedClock()

    def spawn(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if self.is_up and not task.cancelled() and task.exception() is not None:
            self.cluster.failures.append(task.exception())

    def report(self, subject: object, error: Exception) -> None:
        self.cluster.reported.append((self.number, subject, error))

    async def start(self) -> None:
        self.store = make_store(
            self.data,
            durability=Durability.OS,
            settle_flush_interval_ms=20,
            settle_sync_interval_ms=50,
        )
        registration = NodeRegistration(self.number, "", "", directory=f"data-{self.number}")
        self.coordinator = self.cluster.ensemble.open(registration)
        self.table = PartitionTable(self.coordinator)
        identity = NodeIdentity("c", self.number, self.coordinator.session, "test", frozenset())
        requests = {ASK_OUTCOME: self._ask_outcome}
        streams = {REPLICATE: self._replicate, FORWARD: self._forward}
        messages = {}
        terms = HandshakeTerms(identity, SECRET, QUICK.limits)
        self.links = Links(terms, QUICK, Handlers(requests, messages, streams), self.spawn)
        self.http = HttpForwarding(self.number, self.links, self.spawn)
        streams.update(self.http.streams)
        self.address = await self.links.listen("localhost", 0)
        self.replicator = Replicator(
            Member(self.number, 0),
            self.coordinator,
            self.links,
            SystemClock(),
            self.spawn,
            changed=self._led_changed,
        )
        publishers, parts_to_ask = BlockedPublishers(), PartsToAsk()
        self.placement = PartitionPlacement(
            PlacementServices(
                self.number,
                self.coordinator,
                self.links,
                self.replicator,
                self.store,
                Durability.OS,
                publishers,
                self.spawn,
                parts_to_ask,
            )
        )
        self.transactions = ClusterTransactions(
            TransactionServices(
                self.number,
                self.coordinator,
                self.links,
                self.replicator,
                self.store,
                Durability.OS,
                SystemClock(),
                self.spawn,
                self.report,
            ),
            self.placement,
            parts_to_ask,
        )
        self.hand_overs = HandOvers(
            self.number,
            self.coordinator,
            self.links,
            self.replicator,
            (self.placement, self.transactions.partitions),
        )
        requests.update(self.hand_overs.requests)
        self.figures = ClusterQueues(
            self.number,
            self.coordinator,
            self.links,
            placement=self.placement,
            table=self.table,
        )
        requests.update(self.figures.requests)
        self.mover = PartitionMover(
            self.coordinator, self.table, self.hand_overs, self.cluster.mover, self.spawn
        )
        self.broker = self._make_broker(publishers)
        self.alarms = ClusterAlarms(
            self.number,
            self.coordinator,
            self.links,
            self.broker.alarms,
            SystemClock().monotonic_ms,
        )
        messages.update(self.alarms.messages)
        self.clocks = ClusterClocks(self.number, self.coordinator, self.links, self.clock)
        requests.update(self.clocks.requests)
        delayed = self.broker.delayed
        delayed.commands.elsewhere = LedSchedules(self.links, delayed.queues, delayed.schedules)
        requests.update(delayed.commands.elsewhere.requests)
        self.spawn(self.alarms.run())
        self.broker.add_vhost(VhostDefinition("/"))
        for definition in self.cluster.queues:
            self.add_queue(definition)
        self.operated = OperatedCluster(
            self.number,
            self.coordinator,
            self.links,
            table=self.table,
            hand_overs=self.hand_overs,
            mover=self.mover,
            queues=self.broker.all_queues,
            replication=lambda queue: replication_of(queue.arguments, {}),
            others={DECISIONS_KEY.rstrip("/"): DECISIONS_REPLICATION},
            condition_of=lambda node: NodeCondition(
                self.alarms.low_of(node), self.clocks.offsets.get(node)
            ),
        )
        self.replicator.start()
        partitions = self.cluster.decision_partitions
        placing = DecisionPlacing(self.coordinator, self.table, partitions=partitions)
        self.transactions.start(placing)
        self.spawn(ControllerDuty(self.coordinator, self.table, lambda _key: True).run())
        self.spawn(self.mover.run())
        self.sockets = ClientSockets(self.broker, self.configuration, self.spawn)
        self.listener = AmqpListener(self.sockets)
        self.port = (await self.listener.start())[0].port
        self.is_up = True
        self.cluster.meet(self)

    def _led_changed(self, key: str) -> None:
        self.placement.led_changed(key)
        self.transactions.led_changed(key)

    async def _ask_outcome(self, identity, payload):
        return await self.transactions.serve(identity, payload)

    async def _replicate(self, stream) -> None:
        await self.replicator.serve(stream)

    async def _forward(self, stream) -> None:
        await self.placement.serve(stream)

    def _make_broker(self, publishers: BlockedPublishers) -> Broker:
        self.configuration = Configuration(host="127.0.0.1", port=0)
        access = AccessControl()
        access.put_user(UserDefinition("guest", "x"))
        access.put_permission(PermissionDefinition("/", "guest", ".*", ".*", ".*"))
        loop = asyncio.get_running_loop()
        environment = Environment(
            turn=Turn(loop.call_soon, self.report, time.monotonic_ns),
            timers=Timers(SystemClock().wall_ms, loop.call_later, time.monotonic),
            spawn=self.spawn,
            report=self.report,
            random_name=lambda: secrets.token_urlsafe(16),
            random_below=Random(1).randrange,
        )
        return Broker(
            environment,
            BrokerSettings(
                node_name=f"leveret@{self.number}",
                platform="test",
                durability=Durability.OS,
                log_exchange="",
                counts_every_return=False,
                limits=NodeLimits(),
                connection_rates=NO_RATES,
            ),
            access=access,
            policies=Policies(),
            authenticators=(InternalAuthenticator(access, b"k" * 32, _accept_password),),
            metadata=MemoryMetadataStore(),
            topics=self.store,
            state=MemoryStateStore(),
            placement=self.placement,
            decider=self.transactions.decider,
            blocked_publishers=publishers,
        )

    def add_queue(self, definition: QueueDefinition) -> None:
        vhost = self.broker.vhosts["/"]
        vhost.topology.add_queue(vhost._open_queue(definition, None))

    def queue(self, name: str):
        return self.broker.vhosts["/"].queues[name]

    def log(self, name: str):
        key = partition_key(self.queue(name).definition.incarnation, 0)
        return self.placement._places[key].log

    def leads(self, name: str) -> bool:
        return self.is_up and self.queue(name).is_led_here

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    async def kill(self) -> None:
        """End as `kill -9` does; the coordinator notes it at once."""
        self.is_up = False
        for other in self.cluster.nodes:  # nobody dials while it closes
            if other.is_up:
                other.links.clear_address(self.number)
        self.listener.stop_reading()
        for protocol in list(self.sockets.protocols):
            protocol._abort()
        abandon(self.store)
        for task in list(self.tasks):
            task.cancel()
        await self.links.close()
        self.coordinator.lose_connection()
        self.coordinator.expire()
        await eventually(lambda: not self.tasks)


async def _accept_password(_peer: str, _hash: str, _password: str) -> bool:
    return True


class BrokerCluster:
    """Three nodes. Queues are defined on all of them."""

    def __init__(
        self, directory, mover: MoverSettings = NO_MOVES, *, decision_partitions: int = 3
    ) -> None:
        self.directory = directory
        self.mover = mover
        self.decision_partitions = decision_partitions
        self.ensemble = MemoryEnsemble()
        self.failures: list[BaseException] = []
        self.reported: list[tuple] = []
        self.queues: list[QueueDefinition] = []
        self._numbers = itertools.count(1)
        self.nodes = [BrokerNode(self, number) for number in range(3)]

    async def __aenter__(self):
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *_):
        for node in self.nodes:
            if node.is_up:
                await node.kill()
        if self.failures:
            raise BaseExceptionGroup("tasks have failed", self.failures)

    def meet(self, node: BrokerNode) -> None:
        """Tell all nodes the address of one, and it those of all."""
        for other in self.nodes:
            if other is not node and other.is_up:
                other.links.set_address(node.number, *node.address)
                node.links.set_address(other.number, *other.address)

    async def add_queue(
        self, name: str, *, leader: int = 0, leaders=None, replicas=(0, 1, 2), **fields
    ) -> None:
        """Define a queue on all nodes; wait until it is led. `leaders`: of each partition."""
        definition = QueueDefinition("/", name, incarnation=f"i{next(self._numbers)}", **fields)
        self.queues.append(definition)
        for node in self.nodes:
            node.add_queue(definition)
        if definition.home is None:
            count = definition.arguments.get("x-partitions", 1)
            members = frozenset(Member(number, 0) for number in replicas)
            leaders = leaders or [leader] * count
            changes = []
            for at, first in enumerate(leaders):
                order = (first, *(number for number in replicas if number != first))
                key = PARTITIONS_PREFIX + partition_key(definition.incarnation, at)
                changes.append(KeyChange(key, PartitionState(order, members).to_bytes()))
            await self.nodes[0].coordinator.write(changes)
            for at, first in enumerate(leaders):
                await eventually(lambda at=at, first=first: self._leads_part(first, name, at))
        else:
            await eventually(lambda: self.nodes[leader].leads(name))

    def _leads_part(self, node: int, name: str, number: int) -> bool:
        return self.nodes[node].queue(name).places[number].is_led_here

    async def leader(self, name: str, *, among=(0, 1, 2)) -> BrokerNode:
        nodes = [self.nodes[number] for number in among]
        await eventually(lambda: any(node.leads(name) for node in nodes))
        return next(node for node in nodes if node.leads(name))

    async def in_sync(self, name: str, *numbers: int) -> None:
        """Wait until these nodes are in sync."""
        key = PARTITIONS_PREFIX + partition_key(self.nodes[0].queue(name).definition.incarnation, 0)

        def in_sync() -> frozenset[int]:
            state = PartitionState.from_bytes(self.nodes[0].coordinator.entries[key].value)
            return state.in_sync_nodes

        await eventually(lambda: in_sync() == set(numbers))

    def home(self, number: int) -> Home:
        return Home(number, self.nodes[number].coordinator.session)
