"""Serving of clients, from open stores until the node stops or leads no more."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from leveret.amqp.in_process import InProcessClients
from leveret.amqp.sockets import ClientSockets, committed
from leveret.config import ConfigurationError
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import DefinitionsError, decode
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.inventory import object_totals
from leveret.mgmt_ui.operations.runtime import Runtime
from leveret.mgmt_ui.operations.transfer import import_definitions, log_import
from leveret.mgmt_ui.readiness import tell_ready, tell_serving, tell_stopping
from leveret.node.collector import collect_garbage, start_collector
from leveret.node.core import node_limits, open_core
from leveret.node.servers import open_amqp, open_control, open_http, publishing_log
from leveret.node.telemetry import open_telemetry
from leveret.node.watching import start_watching

if TYPE_CHECKING:
    from leveret.config import Configuration
    from leveret.node.core import Core
    from leveret.node.process import Process
    from leveret.node.reign import NodeReign
    from leveret.node.stores import Stores
    from leveret.node.telemetry import Telemetry
    from leveret.ports.cluster import ClusterView

__all__ = ["serve"]

logger = logging.getLogger(__package__)


async def serve(
    process: Process, stores: Stores, began: float, reign: NodeReign | None = None
) -> float:
    """Start every part in order; after the signal they are stopped in reverse order.

    `began` is the start of the process, on the monotonic clock. In a cluster the node serves for
    the time of a `reign`. Returns when it began to stop.
    """
    configuration = process.configuration
    async with contextlib.AsyncExitStack() as parts:
        enter = parts.enter_async_context
        core = await enter(open_core(process, stores))
        broker = core.broker
        sockets = ClientSockets(broker, configuration, process.spawn)
        telemetry = await enter(open_telemetry(process, stores, core, committed))
        runtime = Runtime(
            configuration, process.started_ms, process.clock.wall_ms, process.stopping
        )
        sessions = InProcessClients(sockets)
        cluster = None if reign is None else reign.cluster
        context = _admin_context(stores, core, telemetry, runtime, sessions, cluster)
        await _import_definitions(context, runtime.configuration)
        await _tell_recovered(context, began)
        collector = start_collector(broker)
        given = {} if reign is None else await reign.take_ports()
        if given is None:
            return time.monotonic()
        await enter(open_control(process, context))
        http = await enter(open_http(process, given))
        listener, amqp = await enter(open_amqp(sockets, broker, given))
        if reign is not None:
            reign.serve(listener, http)
        parts.enter_context(publishing_log(process, broker))
        instruments = start_watching(process, stores, broker)
        process.spawn(stores.encryption.remove_unneeded())
        process.spawn(collect_garbage(process, collector, stores.topics.tail_cache))
        listeners = (*amqp, *http.listeners)
        tell_serving(amqp, http.listeners)
        await http.load(
            ManagedNode(
                broker.node_name,
                broker,
                context,
                configuration,
                sessions,
                listeners,
                lambda: runtime.is_serving,
                instruments,
            )
        )
        runtime.listeners = listeners
        await http.start()
        if not process.stopping.is_set():
            tell_ready(
                listeners,
                configuration.data_dir,
                time.monotonic() - began,
                configuration.log_format,
            )
        parts.callback(broker.pulls.close)
        parts.callback(broker.range_reads.close)
        parts.callback(broker.batch_leases.close)
        await process.stopping.wait()
        logger.info("stopping: %d connections are open", len(broker.connections))
        tell_stopping()
        return time.monotonic()


async def _tell_recovered(context: AdminContext, began: float) -> None:
    """Log what was restored at the start."""
    totals = await object_totals(context)
    messages = totals["messages_ready"] + totals["messages_unacknowledged"]
    logger.info(
        "%d virtual hosts, %d queues and %d messages are there after %.1f s",
        totals["vhosts"],
        totals["queues"],
        messages,
        time.monotonic() - began,
    )


def _admin_context(  # noqa: PLR0917  # a node has one of each
    stores: Stores,
    core: Core,
    telemetry: Telemetry,
    runtime: Runtime,
    sessions: InProcessClients,
    cluster: ClusterView | None,
) -> AdminContext:
    """Return what administrative operations work on."""
    broker, configuration = core.broker, runtime.configuration
    return AdminContext(
        core.administration,
        broker.vhosts,
        limits=node_limits(configuration),
        usage=telemetry.usage,
        product=configuration.product,
        version=configuration.version,
        encryption=stores.encryption,
        broker=broker,
        alerting=telemetry.alerting,
        audit=telemetry.audit,
        losses=stores.losses,
        runtime=runtime,
        sessions=sessions,
        topics=stores.topics,
        snapshots=stores.snapshots,
        cluster=cluster,
    )


async def _import_definitions(context: AdminContext, configuration: Configuration) -> None:
    """Import the document that the setting `definitions` names, before clients can connect."""
    file = configuration.definitions
    if file is None:
        return
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
    try:
        summary = await import_definitions(context, decode(text), None)
    except (DefinitionsError, AdministrationError) as error:
        raise ConfigurationError(f"{file}: {error}") from None
    log_import(summary, str(file))
