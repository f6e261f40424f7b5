"""A node from start to stop, by itself or as a member of a cluster.

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
from typing import TYPE_CHECKING

import uvloop

from leveret import __version__
from leveret.errors import LeveretError, StorageError
from leveret.mgmt_ui.log_budget import TOLD_EVERY_SECONDS, LineBudget
from leveret.mgmt_ui.log_output import open_log
from leveret.node.open_files import share_open_files
from leveret.node.process import Process, node_name
from leveret.node.serving import serve
from leveret.node.stores import open_databases, open_stores
from leveret.storage.cluster_file import refuse_member
from leveret.storage.lock import DirectoryLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.config import Configuration
    from leveret.mgmt_ui.log_output import LogOutput

__all__ = ["run"]

logger = logging.getLogger(__package__)

START_IN_CLUSTER = (
    "start it with --cluster; to have what it holds as a single node, move cluster.json away"
)
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
        node_name(),
        LineBudget(configuration.log_lines_per_second_max, time.monotonic),
    )
    logger.info(
        "starting leveret %s on Python %s: node %s, data directory %s",
        __version__,
        platform.python_version(),
        node_name(),
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
                run_node = _serve_in_cluster if configuration.cluster else _serve_alone
                stopping_since = await run_node(process, lock, began)
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


async def _serve_alone(process: Process, lock: DirectoryLock, began: float) -> float:
    """Serve clients until the node stops; return when that began, on the monotonic clock."""
    refuse_member(process.configuration.data_dir, START_IN_CLUSTER)
    async with contextlib.AsyncExitStack() as parts:
        enter = parts.enter_async_context
        databases = await enter(open_databases(process))
        stores = await enter(open_stores(process, lock, databases))
        return await serve(process, stores, began)


async def _serve_in_cluster(process: Process, lock: DirectoryLock, began: float) -> float:
    from leveret.node.clustered import serve_in_cluster  # noqa: PLC0415  # only in a cluster

    return await serve_in_cluster(process, lock, began)
