"""Brokers of a cluster in one process: real links on loopback, a coordinator in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from typing import Self

from pamqp import commands

from leveret.clustering.definitions.asking import ChangeTimes
from leveret.clustering.definitions.sharing import SharedDefinitions
from leveret.core.clients import Endpoints
from leveret.core.definitions.administration import Administration
from leveret.links.accepted import Handlers
from leveret.links.handshake import HandshakeTerms
from leveret.links.identity import NodeIdentity
from leveret.links.links import Links
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import perform_for_another
from leveret.mgmt_ui.operations.places import ForwardedCommand
from leveret.ports.coordination import NodeRegistration
from leveret.replication.cluster_definitions import ClusterDefinitions, definition_key
from tests.links.nodes import QUICK, SECRET
from tests.memory_coordinator import MemoryEnsemble
from tests.support.client import PROTOCOL_HEADER, Client, message
from tests.support.stage import Stage
from tests.support.waiting import eventually

TIMES = ChangeTimes(answer_seconds_max=5.0, retry_seconds=0.01, removal_retry_seconds=0.01)


class LoopStage(Stage):
    """A broker whose turns and coroutines run on the event loop."""

    def __init__(self, tasks: set[asyncio.Task], **settings: object) -> None:
        self.tasks = tasks
        super().__init__(**settings)

    names = count(1)  # of all nodes

    def random_name(self) -> str:
        return f"random{next(self.names)}"

    def schedule(self, callback) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def spawn(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run(self) -> None:
        """Do nothing: the loop runs."""


class LoopClient(Client):
    """An AMQP client of a node."""

    ports = count(50_001)

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(node.stage)
        self.transport.endpoints = Endpoints("127.0.0.1", next(self.ports), "127.0.0.1", 5672)

    async def open(self) -> LoopClient:
        self.feed(PROTOCOL_HEADER)
        await self.next(0)
        start_ok = commands.Connection.StartOk({"capabilities": {}}, "PLAIN", "\0guest\0guest")
        await self.ask(start_ok, 0)
        self.send(commands.Connection.TuneOk(2047, 131072, 0), channel=0)
        await self.ask(commands.Connection.Open("/"), 0)
        return await self.open_another(1)

    async def open_another(self, channel: int) -> LoopClient:
        assert (await self.ask(commands.Channel.Open(), channel)).name == "Channel.OpenOk"
        return self

    async def ask(self, method, channel: int = 1):
        """Send a method and wait for what comes next."""
        self.send(method, channel=channel)
        return await self.next(channel)

    async def next(self, channel: int = 1):
        await eventually(lambda: self._receive() or bool(self.frames))
        number, answer = self.frames.pop(0)
        assert number == channel, answer
        return answer

    async def declares(self, name: str, **options: object):
        answer = await self.ask(commands.Queue.Declare(queue=name, **options))
        assert answer.name == "Queue.DeclareOk", answer
        return answer

    async def close(self) -> None:
        """Close the connection, and wait until the broker has forgotten it."""
        assert (await self.ask(commands.Connection.Close(200, "", 0, 0), 0)).name == (
            "Connection.CloseOk"
        )
        self.transport.closed = True


class ClusterNode:
    """One node. It may be killed, and started again."""

    def __init__(self, cluster: DefinitionCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.is_up = False

    async def start(self) -> None:
        self.tasks: set[asyncio.Task] = set()
        registration = NodeRegistration(
            self.number, "", "", directory=f"data-{self.number}", rack=f"rack-{self.number % 2}"
        )
        self.coordinator = self.cluster.ensemble.open(registration)
        self.store = ClusterDefinitions(self.coordinator, self._spawn)
        self.stage = LoopStage(self.tasks, metadata=self.store)
        self.broker = broker = self.stage.broker
        self.administration = Administration(
            broker.access,
            self.store,
            on_vhost_added=broker.add_vhost,
            on_vhost_deleted=broker.remove_vhost,
            on_vhost_changed=broker.change_vhost,
            on_user_deleted=broker.shut_user,
            on_user_changed=broker.change_user,
            on_policies_changed=broker.apply_policies,
            policies=broker.policies,
            parameters=broker.parameters,
            emit=broker.events.emit,
        )
        self.shared = SharedDefinitions(
            self.coordinator,
            self.number,
            self.store,
            broker,
            administration=self.administration,
            spawn=self._spawn,
            replicas_of=lambda _definition: 2,
            create_defaults=self._create_defaults,
            times=self.cluster.times,
        )
        self.context = AdminContext(
            self.administration,
            broker.vhosts,
            broker=broker,
            forwarding=self.shared.commands,
        )
        self.shared.commands.perform_here = partial(perform_for_another, self.context)
        definitions = await self.store.load()
        self.administration.restore(definitions)
        broker.restore(definitions)
        identity = NodeIdentity("c", self.number, self.coordinator.session, "test", frozenset())
        terms = HandshakeTerms(identity, SECRET, QUICK.limits)
        self.links = Links(terms, QUICK, Handlers(self.requests, self.shared.messages), self._spawn)
        self.address = await self.links.listen("localhost", 0)
        self.is_up = True
        self.cluster.meet(self)
        self.shared.start(self.links)

    @property
    def requests(self):
        return self.shared.requests

    async def _create_defaults(self) -> None:
        self.administration.create_defaults("hash of guest")

    def _spawn(self, work) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.cluster.failures.append(task.exception())

    async def stop(self) -> None:
        """End as `kill -9` does; the session expires at once."""
        self.is_up = False
        if self.coordinator.is_connected:
            self.coordinator.lose_connection()
        self.coordinator.expire()
        await self.links.close()
        for task in list(self.tasks):
            task.cancel()
        await eventually(lambda: not self.tasks)

    @property
    def vhost(self):
        return self.broker.vhosts["/"]

    def present(self) -> dict[str, object]:
        """Return all definitions that the node has, by the coordinator's keys."""
        return {definition_key(each): each for each in self.shared.node.present()}

    async def client(self) -> LoopClient:
        await eventually(lambda: "/" in self.broker.vhosts and self.broker.access.user("guest"))
        return await LoopClient(self).open()


class DefinitionCluster:
    """Nodes 0, 1, …, of which the first is the controller until it is gone."""

    def __init__(self, size: int = 3, times: ChangeTimes = TIMES) -> None:
        self.ensemble = MemoryEnsemble()
        self.times = times
        self.failures: list[BaseException] = []
        self.nodes = [ClusterNode(self, number) for number in range(size)]

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        await self.agree()
        return self

    async def __aexit__(self, kind, *_) -> None:
        for node in self.nodes:
            if node.is_up:
                await node.stop()
        if kind is None:
            assert not self.failures
            reported = [each for node in self.nodes for each in node.stage.reported]
            assert not reported, reported

    def meet(self, node: ClusterNode) -> None:
        for other in self.nodes:
            if other is not node and other.is_up:
                other.links.set_address(node.number, *node.address)
                node.links.set_address(other.number, *other.address)

    @property
    def up(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_up]

    @property
    def controller(self) -> ClusterNode:
        return next(node for node in self.up if node.shared.role.is_controlling)

    @staticmethod
    def command(operation: str, **values: object) -> ForwardedCommand:
        return ForwardedCommand(operation, values, "admin")

    def entries(self, prefix: str) -> dict[str, bytes]:
        state = self.ensemble.state
        return {key: state[key].value for key in state.keys(prefix)}

    async def agree(self) -> None:
        """Wait until nothing is under way, and all nodes have what the coordinator has."""
        await eventually(self._agree)

    def _agree(self) -> bool:
        wanted = set(self.entries("definitions/"))
        return bool(wanted) and all(
            not node.store.pending
            and node.shared.role.applied == node.coordinator.sequence
            and set(node.present()) == wanted
            for node in self.up
        )


__all__ = ["ChangeTimes", "DefinitionCluster", "LoopClient", "eventually", "message"]
