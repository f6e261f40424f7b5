"""The connection of a node to ZooKeeper, before it is a member of a cluster."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from leveret.cluster.coordination.settings import ZooKeeperSettings, ZooKeeperTls
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator
from leveret.config.cluster import parse_connect_string
from leveret.ports.coordinator import CoordinatorUnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from leveret.config import Configuration
    from leveret.node.process import Process

__all__ = ["connect_zookeeper"]

logger = logging.getLogger("leveret.cluster")

RETRY_SECONDS = 1.0  # before a node that has found no server tries again


async def connect_zookeeper(process: Process) -> ZooKeeperCoordinator | None:
    """Return a coordinator that is reached, as soon as it can be; None if the node is to stop."""
    settings = zookeeper_settings(process.configuration)
    logger.info("connecting to ZooKeeper at %s", ", ".join(settings.connect.servers))
    told = ""
    while not process.stopping.is_set():
        coordinator = ZooKeeperCoordinator(settings)
        try:
            if await _unless_stopping(process, coordinator.start()):
                return coordinator
        except CoordinatorUnavailableError as error:
            if str(error) != told and not process.stopping.is_set():
                logger.warning("%s. This node tries again", str(error).rstrip("."))
            told = str(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await process.stopping.wait()
    return None


async def _unless_stopping(process: Process, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, and return whether it is done: it is cancelled if the node is to stop."""
    working = process.loop.create_task(work)
    stopping = process.loop.create_task(process.stopping.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def zookeeper_settings(configuration: Configuration) -> ZooKeeperSettings:
    """Return how ZooKeeper is spoken to."""
    tls = ZooKeeperTls(
        configuration.zookeeper_ca_file,
        configuration.zookeeper_certificate_file,
        configuration.zookeeper_key_file,
    )
    return ZooKeeperSettings(
        parse_connect_string(configuration.cluster),
        session_ms=configuration.cluster_session_ms,
        user=configuration.zookeeper_user or None,
        password=configuration.zookeeper_password.get_secret_value(),
        tls=tls if configuration.zookeeper_tls else None,
    )
