"""Shovels of a node: which of them it runs, and what they need of its other parts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from leveret.features.shovels.commands import shovel_delete, shovel_status_here
from leveret.mgmt_ui.operations.dispatcher import perform_command
from leveret.mgmt_ui.operations.places import ForwardedCommand
from leveret.ports.audit import Actor, Way
from leveret.shovels.dialing import ShovelDialer
from leveret.shovels.placing import ClusterPlacing, SinglePlacing
from leveret.shovels.shovels import Shovels, ShovelServices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leveret.amqp.sockets import ClientSockets
    from leveret.broker.broker import Broker
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.node.cluster_broker import ClusterParts
    from leveret.node.process import Process

__all__ = ["NodeShovels"]

ANSWER_SECONDS_MAX: Final = 2.0  # whoever looks at a list does not wait longer for a slow node
SHOVEL_USER: Final = "rmq-shovel"  # RabbitMQ's name for whoever deletes a shovel that is done


class NodeShovels:
    """The shovels of a node, made before what administrators' operations work on."""

    def __init__(
        self,
        process: Process,
        broker: Broker,
        sockets: ClientSockets,
        cluster: ClusterParts | None,
    ) -> None:
        self._context: AdminContext
        configuration = process.configuration
        membership = None if cluster is None else cluster.membership
        placing = (
            SinglePlacing()
            if membership is None
            else ClusterPlacing(membership.node, membership.coordinator)
        )
        services = ShovelServices(
            broker.node_name,
            process.spawn,
            process.clock.wall_ms,
            lambda: broker.parameters.cluster_name or configuration.cluster_name,
            broker.events.emit,
            self._delete,
            self._ask,
        )
        self.shovels = Shovels(broker.parameters, ShovelDialer(sockets), placing, services)

    @contextlib.asynccontextmanager
    async def running(self, context: AdminContext) -> AsyncIterator[None]:
        """Run them; at the end, what is in flight returns to its source."""
        self._context = context
        self.shovels.start()
        try:
            yield
        finally:
            await self.shovels.close()

    async def _delete(self, vhost: str, name: str) -> str:
        """Delete a shovel that is done (see ShovelServices)."""
        values = {"vhost": vhost, "name": name}
        actor = Actor(SHOVEL_USER, "", Way.COMMAND_LINE)
        answer = await perform_command(self._context, shovel_delete, values, actor)
        is_gone = answer["ok"] or answer["error"] == "not_found"
        return "" if is_gone else str(answer["explanation"])

    async def _ask(self, node: int) -> list[dict[str, Any]]:
        """Return the rows of another node; none if it does not answer (see ShovelServices)."""
        forwarding = self._context.forwarding
        if forwarding is None:
            return []
        command = ForwardedCommand(shovel_status_here.name, {}, SHOVEL_USER)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await forwarding.perform_at(node, command)
        except TimeoutError:
            return []
        rows = answer.get("result")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
