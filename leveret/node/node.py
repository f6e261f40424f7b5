"""A node from start to stop.

Parts are stopped in reverse order: clients before queues, queues before stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import platform
import resource
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from leveret import __version__
from leveret.amqp.in_process import InProcessClients
from leveret.amqp.sockets import ClientSockets, committed
from leveret.config import ConfigurationError
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import DefinitionsError, decode
from leveret.errors import LeveretError, StorageError
from leveret.mgmt_ui.log_budget import TOLD_EVERY_SECONDS, LineBudget
from leveret.mgmt_ui.log_output import open_log
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.inventory import object_totals
from leveret.mgmt_ui.operations.runtime import Runtime
from leveret.mgmt_ui.operations.transfer import import_definitions, log_import
from leveret.mgmt_ui.readiness import tell_ready, tell_stopping
from leveret.mgmt_ui.server import load_forwarded
from leveret.node.collector import collect_garbage, start_collector
from leveret.node.core import node_limits, open_core
from leveret.node.open_files import share_open_files
from leveret.node.process import Process, node_name
from leveret.node.servers import open_amqp, open_control, open_http, publishing_log
from leveret.node.shovels import NodeShovels
from leveret.node.stores import open_stores
from leveret.node.telemetry import open_telemetry
from leveret.node.watching import start_watching
from leveret.storage.lock import DirectoryLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.config import Configuration
    from leveret.mgmt_ui.log_output import LogOutput
    from leveret.node.core import Core
    from leveret.node.stores import Stores
    from leveret.node.telemetry import Telemetry

__all__ = ["run"]

logger = logging.getLogger(__package__)

# Time after which a thread that renders a page, reads JSON or hashes a password must release
# the interpreter to the event loop: with CPython's default of 5 ms all messages would wait.
SWITCH_SECONDS = 0.0001


def run(configuration: Configuration, notices: Sequence[str] = ()) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the process's exit status.

    `notices` about its settings are logged.
    """
    began = time.monotonic()
    output = open_log(
        configuration,
        node_name(configuration.node_id),
        LineBudget(configuration.log_lines_per_second_max, time.monotonic),
    )
    logger.info(
        "starting leveret %s on Python %s: node %s, data directory %s",
        __version__,
        platform.python_version(),
        node_name(configuration.node_id),
        configuration.data_dir,
    )
    for notice in notices:
        logger.warning("%s", notice)
    configuration = share_open_files(configuration, _allow_open_files())
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # imported modules live as long as the process
    gc.disable()  # what is restored, too: see start_collector
    try:
        return uvloop.run(_run(configuration, output, began))
    except LeveretError as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400  # the text says all there is to say
        return 1
    finally:
        gc.freeze()  # the end of the process need not look for garbage among all objects


def _allow_open_files() -> int:
    """Raise the limit of open files as far as the system allows; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _run(configuration: Configuration, output: LogOutput, began: float) -> int:
    """Start, serve until a signal, and stop; return the exit status.

    Raises LeveretError where the node cannot start.
    """
    directory = configuration.data_dir
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"cannot create {directory}: {error.strerror}") from error
    status = 0
    with DirectoryLock(directory) as lock:
        try:
            async with asyncio.TaskGroup() as tasks:
                process = Process(configuration, tasks)
                process.watch_signals()
                process.spawn(_tell_left_out(output))
                stopping_since = await _serve(process, lock, began)
                process.cancel_tasks()
        except* LeveretError as group:
            failure = group.exceptions[0]
            if not process.stopping.is_set():
                raise failure from None
            logger.error("stopped, and not all was written: %s", failure)  # noqa: TRY400  # says it all
            status = 1
    output.tell_left_out()
    if not status:
        logger.info("stopped in %.1f s", time.monotonic() - stopping_since)
    return status


async def _tell_left_out(output: LogOutput) -> None:
    """Log the numbers of suppressed log lines, also when no more come."""
    while True:
        await asyncio.sleep(TOLD_EVERY_SECONDS)
        output.tell_left_out()


async def _serve(process: Process, lock: DirectoryLock, began: float) -> float:
    """Start every part in order; after the signal they are stopped in reverse order.

    `began` is the start of the process, on the monotonic clock. Returns when it began to stop.
    """
    configuration = process.configuration
    async with contextlib.AsyncExitStack() as parts:
        enter = parts.enter_async_context
        stores = await enter(open_stores(process, lock))
        cluster = None
        if configuration.cluster:
            from leveret.node.cluster import open_cluster  # noqa: PLC0415  # needs kazoo
            from leveret.node.cluster_broker import ClusterParts  # noqa: PLC0415  # likewise

            cluster = ClusterParts.make(process, stores, await enter(open_cluster(process)))
        core = await enter(open_core(process, stores, cluster))
        broker = core.broker
        sockets = ClientSockets(broker, configuration, process.spawn)
        telemetry = await enter(open_telemetry(process, stores, core, committed))
        runtime = Runtime(
            configuration, process.started_ms, process.clock.wall_ms, process.stopping
        )
        sessions = InProcessClients(sockets)
        shovels = NodeShovels(process, broker, sockets, cluster)
        context = replace(
            _admin_context(stores, core, telemetry, runtime, sessions), shovels=shovels.shovels
        )
        if cluster is not None:
            context = replace(
                context,
                forwarding=cluster.forwarding,
                cluster=cluster.operated,
                queues_of_cluster=cluster.figures,
            )
            await cluster.begin(process, context)
        await _import_definitions(context, runtime.configuration)
        await _tell_recovered(context, began)
        collector = start_collector(broker)
        await enter(open_control(process, context))
        http = await enter(open_http(process))
        amqp = await enter(open_amqp(sockets, broker))
        await enter(shovels.running(context))
        parts.enter_context(publishing_log(process, broker))
        instruments = start_watching(process, stores, broker)
        process.spawn(stores.encryption.remove_unneeded())
        process.spawn(collect_garbage(process, collector, stores.topics.tail_cache))
        listeners = runtime.listeners = (*amqp, *http.listeners)
        tell_ready(
            listeners, configuration.data_dir, time.monotonic() - began, configuration.log_format
        )
        managed = ManagedNode(
            broker.node_name,
            broker,
            context,
            configuration,
            sessions,
            listeners,
            lambda: runtime.is_serving,
            instruments,
            None if cluster is None else cluster.http,
        )
        http.start(managed)
        if cluster is not None:
            cluster.http.serve_by(partial(load_forwarded, managed))
        parts.callback(broker.pulls.close)
        parts.callback(broker.range_reads.close)
        parts.callback(broker.batch_leases.close)
        await process.stopping.wait()
        logger.info("stopping: %d connections are open", len(broker.connections))
        tell_stopping()
        stopping_since = time.monotonic()
        if cluster is not None:
            await cluster.leave()
        return stopping_since


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


def _admin_context(
    stores: Stores, core: Core, telemetry: Telemetry, runtime: Runtime, sessions: InProcessClients
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
