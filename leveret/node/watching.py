"""Watchdogs: disk space, memory, hanging consumers, late event loop."""

from __future__ import annotations

import asyncio
import logging
import shutil
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.alarms import Resource
from leveret.core.definitions.administration import DEFAULT_USER
from leveret.mgmt_ui.metrics.instruments import Instruments, watch_loop
from leveret.mgmt_ui.operations.health_checks import check_passwords
from leveret.mgmt_ui.process import memory_bytes_total, memory_bytes_used
from leveret.mgmt_ui.yielding import in_yielding_chunks

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.node.process import Process
    from leveret.node.stores import Stores

__all__ = ["raise_alarm_on_full_disk", "start_watching"]

logger = logging.getLogger(__package__)


def raise_alarm_on_full_disk(process: Process, broker: Broker) -> None:
    """Raise the disk alarm as soon as a write finds no space, before the next check."""
    process.on_disk_full = partial(_alarm, broker, Resource.DISK, low=True)


def start_watching(process: Process, stores: Stores, broker: Broker) -> Instruments:
    """Start the watchdogs, until the node stops. Returns their measurements."""
    instruments = Instruments(stores.topics)
    process.spawn(_watch_resources(process, broker))
    process.spawn(_watch_consumers(process, broker))
    process.spawn(watch_loop(instruments.loop_lag))
    process.spawn(_warn_of_known_password(process, broker))
    return instruments


async def _warn_of_known_password(process: Process, broker: Broker) -> None:
    """Log at each start that the default user can log in from elsewhere with its known password."""
    user = broker.access.user(DEFAULT_USER)
    if user is None:
        return
    check = partial(check_passwords, [user], process.configuration)
    for result in await asyncio.to_thread(lambda: list(check())):
        logger.warning(
            "user '%s' %s: %s; %s", result.subject, result.what, result.why, result.remedy
        )


async def _watch_resources(process: Process, broker: Broker) -> None:
    """Raise and clear the resource alarms."""
    configuration = process.configuration
    memory_bytes_max = configuration.memory_fraction_max * memory_bytes_total()
    while not process.stopping.is_set():
        free = shutil.disk_usage(configuration.data_dir).free
        _alarm(broker, Resource.DISK, low=free < configuration.disk_free_bytes_min)
        _alarm(broker, Resource.MEMORY, low=memory_bytes_used() > memory_bytes_max)
        await asyncio.sleep(configuration.resource_check_interval_ms / 1000)


def _alarm(broker: Broker, resource: Resource, *, low: bool) -> None:
    if broker.alarms.set(resource, low=low):
        logger.warning(
            "%s: %s",
            resource.value,
            "running low; publishers are blocked until the alarm clears"
            if low
            else "alarm cleared",
        )


async def _watch_consumers(process: Process, broker: Broker) -> None:
    """Close the channels with a delivery that was not settled within the consumer timeout."""
    while not process.stopping.is_set():
        await asyncio.sleep(process.configuration.consumer_check_interval_ms / 1000)
        async for connections in in_yielding_chunks(list(broker.connections)):
            for connection in connections:
                connection.check_acknowledged(process.clock.monotonic_ms())
