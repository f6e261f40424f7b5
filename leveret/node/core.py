"""The broker and its administration, restored from definitions, and its authentication."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.amqp.lease_commands import LEASE_EXCHANGE, LeaseCommands
from leveret.auth.chain import AuthenticatorChain
from leveret.auth.passwords import PasswordChecks
from leveret.broker.broker import Broker
from leveret.broker.settings import BrokerSettings
from leveret.core.access.authentication import InternalAuthenticator
from leveret.core.access.guesses import Guarded, Guesses
from leveret.core.access.limits import NodeLimits
from leveret.core.access.passwords import verify_password
from leveret.core.access.permissions import AccessControl
from leveret.core.definitions.administration import Administration
from leveret.core.environment import Environment
from leveret.core.settings.policies import Policies
from leveret.core.settings.queue_settings import rate_of
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.batch_leases.rules import LeaseLimits
from leveret.features.dedup.interceptor import IdempotencyLimits
from leveret.features.groups.rules import GroupLimits
from leveret.features.rates.rules import ConnectionRates
from leveret.features.staged_batches.rules import BatchLimits
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.node.process import node_name
from leveret.node.watching import raise_alarm_on_full_disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from leveret.config import Configuration
    from leveret.node.process import Process
    from leveret.node.stores import Stores
    from leveret.ports.authentication import Authenticator

__all__ = ["Core", "node_limits", "open_core"]

logger = logging.getLogger(__package__)

# How often it is looked whether all is known that an earlier run has seen of publishers.
LEARNING_POLL_SECONDS = 0.005

# What moves messages by itself takes so long at most to end what it has begun.
REST_SECONDS_MAX = 2.0

# A password check takes 19 MiB for some 30 ms of one core: more of them at a time would finish no
# sooner, and whoever guesses many would take that much more memory.
PASSWORD_THREADS = 2


@dataclass(frozen=True, slots=True)
class Core:
    """The broker and the administration of its definitions."""

    broker: Broker
    administration: Administration


@contextlib.asynccontextmanager
async def open_core(process: Process, stores: Stores) -> AsyncIterator[Core]:
    """Restore the definitions; on the first start, create the defaults."""
    access, policies = AccessControl(), Policies()
    async with _open_logins(process, access) as authenticators:
        broker = _make_broker(process, stores, access, policies, authenticators)
        raise_alarm_on_full_disk(process, broker)
        broker.publish_interceptors.commands[LEASE_EXCHANGE] = LeaseCommands()
        administration = _administer(broker, policies)
        is_first_start = await stores.metadata.is_new()
        definitions = await stores.metadata.load()
        administration.restore(definitions)
        await broker.restore(definitions)
        while broker.is_restoring:  # noqa: ASYNC110  # at the start
            await asyncio.sleep(LEARNING_POLL_SECONDS)
        if is_first_start and process.configuration.definitions is None:
            await create_defaults(administration)  # else the imported ones say who may enter
        _mention_orphans(stores.topics.orphans())
        try:
            yield Core(broker, administration)
        finally:
            await _come_to_rest(broker)
            await broker.delayed_stores.close()


async def _come_to_rest(broker: Broker) -> None:
    """Stop the broker's own activities and finish those begun, while all logs are open."""
    broker.timers.close()
    broker.turn.flush_parked()
    with contextlib.suppress(TimeoutError):  # a disk that hangs
        async with asyncio.timeout(REST_SECONDS_MAX):
            while broker.atomic.is_busy or broker.turn.opening_count:  # noqa: ASYNC110  # at the end
                await asyncio.sleep(LEARNING_POLL_SECONDS)


@contextlib.asynccontextmanager
async def _open_logins(
    process: Process, access: AccessControl
) -> AsyncIterator[Sequence[Authenticator]]:
    """Yield the sources of users; wrong passwords slow further attempts down."""
    configuration = process.configuration
    threads = ThreadPoolExecutor(PASSWORD_THREADS, "password")

    async def check(phc: str, password: str) -> bool:
        return await process.loop.run_in_executor(threads, verify_password, phc, password)

    checks = PasswordChecks(
        check,
        process.loop,
        parallel=PASSWORD_THREADS,
        failed_seconds=configuration.login_delay_seconds,
    )
    cache_key = secrets.token_bytes(32)
    try:
        internal = InternalAuthenticator(access, cache_key, checks.check)
        chain = AuthenticatorChain(configuration, internal, cache_key)
        try:
            delay_ms = int(configuration.login_delay_seconds * 1000)
            wall_ms = process.clock.wall_ms
            yield [Guarded(chain.authenticators, Guesses(delay_ms), cache_key, wall_ms)]
        finally:
            await chain.close()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _make_broker(
    process: Process,
    stores: Stores,
    access: AccessControl,
    policies: Policies,
    authenticators: Sequence[Authenticator],
) -> Broker:
    environment = Environment(
        turn=Turn(process.loop.call_soon, process.report, time.monotonic_ns),
        timers=Timers(process.clock.wall_ms, process.loop.call_later, time.monotonic),
        spawn=process.spawn,
        report=process.report,
        random_name=lambda: secrets.token_urlsafe(16),
        random_below=random.Random(secrets.randbits(64)).randrange,  # noqa: S311  # no secret
    )
    return Broker(
        environment,
        _broker_settings(process.configuration),
        access=access,
        policies=policies,
        authenticators=authenticators,
        metadata=stores.metadata,
        topics=stores.topics,
        state=stores.state,
    )


def _broker_settings(configuration: Configuration) -> BrokerSettings:
    return BrokerSettings(
        node_name=node_name(),
        platform=f"Python {platform.python_version()}",
        durability=configuration.durability,
        log_exchange=configuration.log_exchange,
        redeclare_mismatch=configuration.redeclare_mismatch,
        counts_every_return=configuration.delivery_limit_counts == "returns",
        dedup_keys_max=configuration.dedup_keys_max,
        limits=node_limits(configuration),
        connection_rates=_connection_rates(configuration),
        once_limits=IdempotencyLimits(
            configuration.producers_max,
            configuration.producer_idle_ms,
            configuration.prepared_messages_max,
            configuration.prepared_checks_max,
        ),
        batch_limits=BatchLimits(
            configuration.staged_bytes_max,
            configuration.staged_commit_bytes_max,
            configuration.staged_parts_max,
            configuration.staged_writers_max,
            configuration.staged_parts_per_user_max,
            configuration.staged_writers_per_user_max,
            configuration.staged_batches_expire_ms,
            configuration.staged_writer_idle_ms,
            configuration.message_bytes_max,
        ),
        lease_limits=LeaseLimits(
            configuration.leased_messages_max,
            configuration.leased_bytes_max,
            configuration.lease_holders_max,
        ),
        group_limits=GroupLimits(
            configuration.groups_per_queue_max, configuration.group_partitions_per_vhost_max
        ),
    )


def _administer(broker: Broker, policies: Policies) -> Administration:
    return Administration(
        broker.access,
        broker.metadata,
        random_name=lambda: broker.random_name(""),
        on_vhost_added=broker.add_vhost,
        on_vhost_deleted=broker.remove_vhost,
        on_vhost_changed=broker.change_vhost,
        on_user_deleted=broker.shut_user,
        on_user_changed=broker.change_user,
        emit=broker.events.emit,
        on_policies_changed=broker.apply_policies,
        policies=policies,
        parameters=broker.parameters,
        trace=lambda vhost, on: broker.trace(vhost, on=on),
    )


def node_limits(configuration: Configuration) -> NodeLimits:
    """Return the limits of all clients together, and of each connection."""
    return NodeLimits(
        connections_max=configuration.connections_max,
        channels_max=configuration.channels_per_node_max,
        queues_max=configuration.queues_max,
        exchanges_max=configuration.exchanges_max,
        consumers_per_channel_max=configuration.consumers_per_channel_max,
        arguments_bytes_max=configuration.arguments_bytes_max,
        arguments_values_max=configuration.arguments_values_max,
        large_arguments_bytes_max=configuration.large_arguments_bytes_max,
    )


def _connection_rates(configuration: Configuration) -> ConnectionRates:
    """Return the rate limits of each connection."""
    values = {
        "publish-rate": configuration.connection_publish_rate,
        "publish-burst": configuration.connection_publish_burst,
        "consume-rate": configuration.connection_consume_rate,
        "consume-burst": configuration.connection_consume_burst,
    }
    return ConnectionRates(rate_of(values, "publish"), rate_of(values, "consume"))


def _mention_orphans(orphans: list[Path]) -> None:
    """Log logs without a queue: left by a crash during a deletion, or by lost definitions."""
    if orphans:
        logger.warning(
            "%d queue logs belong to no queue that is defined and are left as they are, the first "
            "of them %s: `leveret adopt` makes queues of them again",
            len(orphans),
            orphans[0],
        )
