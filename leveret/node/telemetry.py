"""Telemetry of a node: samples, usage, the audit log, and alerts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leveret.broker.usage_keeping import UsageKeeper
from leveret.core.statistics.keeping import SamplesKeeper
from leveret.core.statistics.sampler import Sampler
from leveret.errors import StorageError
from leveret.features.alerts.alerting import Alerting
from leveret.features.alerts.rules import AlertCondition
from leveret.features.groups.lag_history import sample_lag
from leveret.mgmt_ui.operations.audit import Audit
from leveret.mgmt_ui.process import memory_bytes_used, node_gauges, read_process
from leveret.mgmt_ui.webhooks import Webhooks
from leveret.mgmt_ui.yielding import in_yielding_chunks
from leveret.ports.log_text import one_line, quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from leveret.broker.broker import Broker
    from leveret.core.logs.log_writer import Committing
    from leveret.features.alerts.rules import Alert
    from leveret.node.core import Core
    from leveret.node.process import Process
    from leveret.node.stores import Stores

__all__ = ["Telemetry", "open_telemetry"]

logger = logging.getLogger(__package__)

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
SAMPLES_KEPT_EVERY_MS = 1_800_000  # longest part of the week's charts that a crash loses


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The parts of telemetry that operations use."""

    usage: UsageKeeper
    audit: Audit
    alerting: Alerting


@contextlib.asynccontextmanager
async def open_telemetry(
    process: Process,
    stores: Stores,
    core: Core,
    committed: Callable[[Collection[Committing]], Awaitable[bool]],
) -> AsyncIterator[Telemetry]:
    """Restore telemetry from an earlier run; at the end, when all clients are gone, write it.

    `committed(queues)` waits for what was published to them.
    """
    broker, wall_ms = core.broker, process.clock.wall_ms
    configuration = process.configuration
    samples = SamplesKeeper(broker.statistics, broker.vhosts, stores.state, logger.warning)
    samples.restore()
    tasks = [process.spawn(_take_samples(process, broker, samples))]
    usage = UsageKeeper(
        broker,
        stores.usage,
        wall_ms,
        committed,
        configuration.usage_days_max,
        publishes=configuration.usage_stream,
        node_id=configuration.node_id if configuration.cluster else None,
    )
    try:
        await usage.catch_up()
    except StorageError as error:
        logger.error("usage of the last run is not complete: %s", error)  # noqa: TRY400  # says it all
    tasks.append(process.spawn(_keep_usage(process, usage)))
    audit = Audit(stores.audit, wall_ms)
    tasks.append(process.spawn(_forget_audited(process, audit)))
    try:
        yield Telemetry(usage, audit, _start_alerting(process, core, tasks))
    finally:
        for task in tasks:  # or they would find closed logs and open closed files
            task.cancel()
        await asyncio.wait(tasks)
        await _write_usage(usage)
        await _write_samples(samples)


async def _take_samples(process: Process, broker: Broker, keeper: SamplesKeeper) -> None:
    interval_ms, clock = process.configuration.statistics_interval_ms, process.clock
    sampler = Sampler(
        broker.vhosts,
        broker.connections,
        broker.statistics,
        interval_ms,
        histories_max=process.configuration.statistics_histories_max,
        pause=lambda: asyncio.sleep(0),
    )
    keep_at_ms = clock.monotonic_ms() + SAMPLES_KEPT_EVERY_MS
    while not process.stopping.is_set():
        now_ms = clock.wall_ms()
        await sampler.sample(now_ms, await _look_at_process(process, broker))
        async for groups in in_yielding_chunks(broker.groups.all()):
            for group in groups:
                sample_lag(group, broker.statistics.tick_ms)
        if clock.monotonic_ms() >= keep_at_ms:
            keep_at_ms += SAMPLES_KEPT_EVERY_MS
            await _write_samples(keeper)
        await asyncio.sleep((interval_ms - clock.wall_ms() % interval_ms) / 1000)


async def _look_at_process(process: Process, broker: Broker) -> dict[str, int] | None:
    """Return the sampled gauges of the process; None if they cannot be read."""
    try:
        figures = await asyncio.to_thread(read_process, process.configuration.data_dir)
    except OSError:
        return None
    return node_gauges(figures, len(broker.connections))


async def _write_samples(keeper: SamplesKeeper) -> None:
    try:
        await keeper.keep()
    except StorageError as error:
        logger.warning("statistics samples could not be saved: %s", error)


async def _keep_usage(process: Process, keeper: UsageKeeper) -> None:
    interval_ms = process.configuration.usage_interval_ms
    while not process.stopping.is_set():
        # Also when an hour is over, so that what is counted counts for that hour.
        hour_left_ms = HOUR_MS - process.clock.wall_ms() % HOUR_MS
        await asyncio.sleep(min(interval_ms, hour_left_ms) / 1000)
        await _write_usage(keeper)


async def _write_usage(keeper: UsageKeeper) -> None:
    try:
        await keeper.keep()
    except StorageError as error:
        logger.error("usage could not be saved: %s", error)  # noqa: TRY400  # says it all


async def _forget_audited(process: Process, audit: Audit) -> None:
    """Delete old records of the audit log."""
    kept_ms = process.configuration.audit_days_max * DAY_MS
    while not process.stopping.is_set():
        try:
            await audit.store.forget(process.clock.wall_ms() - kept_ms)
        except StorageError as error:
            logger.error("old audit records could not be deleted: %s", error)  # noqa: TRY400  # says it all
        await asyncio.sleep(DAY_MS / 1000)


def _start_alerting(process: Process, core: Core, tasks: list[asyncio.Task[None]]) -> Alerting:
    broker, data_dir = core.broker, process.configuration.data_dir
    webhooks = Webhooks(broker.node_name)
    alerting = Alerting(
        broker.vhosts,
        broker.events,
        core.administration.parameters,
        wall_ms=process.clock.wall_ms,
        node_values=lambda: {
            AlertCondition.DISK_FREE: shutil.disk_usage(data_dir).free,
            AlertCondition.MEMORY: memory_bytes_used(),
            AlertCondition.CONNECTIONS: len(broker.connections),
        },
        tell=partial(_tell_alert, webhooks),
        breathe=lambda: asyncio.sleep(0),
        lags_of=lambda queue: {
            name: group.lag for name, group in broker.groups.of_queue(queue).items()
        },
    )
    tasks.append(process.spawn(webhooks.run()))
    tasks.append(process.spawn(_watch_alerts(process, alerting)))
    return alerting


async def _watch_alerts(process: Process, alerting: Alerting) -> None:
    pause_seconds = interval_seconds = process.configuration.alert_interval_ms / 1000
    while not process.stopping.is_set():
        await asyncio.sleep(pause_seconds)
        begun = time.monotonic()
        try:
            await alerting.check()
        except Exception:  # a bug here must not stop the node
            logger.exception("alert rules could not be evaluated")
        if alerting.overlooked:
            logger.error("%d alerts above the limit are not reported", alerting.overlooked)
        # Half of the time at most: thousands of rules on thousands of queues take seconds.
        pause_seconds = max(interval_seconds, time.monotonic() - begun)


def _tell_alert(webhooks: Webhooks, alert: Alert) -> None:
    """Log an alert, and send it to its rule's webhook."""
    rule = alert.rule
    logger.warning(
        "alert '%s' in vhost '%s' %s: %s %s is %g %s",
        one_line(rule.name),
        one_line(rule.vhost),
        "fires" if alert.is_firing else "is over",
        rule.condition.value,
        _subject(alert),
        alert.value,
        rule.condition.unit,
    )
    webhooks.tell(alert)


def _subject(alert: Alert) -> str:
    if not alert.subject:
        return "of the node"
    group = f"consumer group {quoted(alert.group)} of " if alert.group else ""
    return f"of {group}queue {quoted(alert.subject)}"
