"""The composition root: builds every part of a node, starts it, and stops it in order.

Started last, stopped first: clients before queues, queues before stores. Every task of the process
runs in the task group that lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import random
import resource
import secrets
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from leveret.amqp.inner import InnerClients
from leveret.amqp.lease_commands import LEASE_EXCHANGE, LeaseCommands
from leveret.amqp.listener import AmqpListener
from leveret.auth.chain import AuthenticatorChain
from leveret.auth.passwords import PasswordChecks
from leveret.config import ConfigurationError
from leveret.core.access.authentication import InternalAuthenticator
from leveret.core.access.guesses import Guarded, Guesses
from leveret.core.access.limits import NodeLimits
from leveret.core.access.passwords import verify_password
from leveret.core.access.permissions import AccessControl
from leveret.core.access.rates import ConnectionRates
from leveret.core.alarms import Resource
from leveret.core.broker import Broker
from leveret.core.definitions.administration import Administration, AdministrationError
from leveret.core.definitions.document import DefinitionsError, decode
from leveret.core.definitions.policies import Policies
from leveret.core.once.sending_once import SendingOnceLimits
from leveret.core.statistics.keeping import SamplesKeeper
from leveret.core.statistics.sampler import Sampler
from leveret.core.telemetry.alerting import Alerting
from leveret.core.telemetry.log_exchange import LogExchange
from leveret.core.telemetry.usage_keeping import UsageKeeper
from leveret.core.turn import Turn
from leveret.errors import (
    ConnectionClosingError,
    DiskFullError,
    LeveretError,
    StorageError,
    ToleratedError,
)
from leveret.features.alerts import Condition
from leveret.features.rates import rate_of
from leveret.mgmt_ui.control import ControlServer
from leveret.mgmt_ui.log_format import formatter
from leveret.mgmt_ui.log_handler import LogExchangeHandler
from leveret.mgmt_ui.managed import Listener, ManagedNode
from leveret.mgmt_ui.metrics.instruments import Instruments, watch_loop
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.mgmt_ui.operations.administered import Administered
from leveret.mgmt_ui.operations.audit import Audit
from leveret.mgmt_ui.operations.runtime import Runtime
from leveret.mgmt_ui.operations.transfer import import_definitions
from leveret.mgmt_ui.process import memory_bytes_total, memory_bytes_used
from leveret.mgmt_ui.readiness import tell_ready, tell_stopping
from leveret.mgmt_ui.server import ManagementServer, MetricsServer
from leveret.mgmt_ui.webhooks import Webhooks
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.files import RealFileSystem
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.keyring import Keyring
from leveret.storage.lock import DirectoryLock
from leveret.storage.master_key import read_master_key
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.state import LmdbStateStore
from leveret.storage.store import FileTopicStore, StorageLimits
from leveret.storage.usage import SqliteUsageStore

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from leveret.config import Configuration
    from leveret.features.alerts import Alert

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000
# How long clients may take to answer connection.close when the node stops.
STOP_GRACE_SECONDS = 2.0

# How often it is looked whether all is known that an earlier run has seen of publishers.
SAMPLES_KEPT_EVERY_MS = 1_800_000  # what a crash takes away of the week's charts
LEARNING_POLL_SECONDS = 0.005

# A password check takes 19 MiB for some 30 ms of one core: more of them at a time would finish no
# sooner, and whoever guesses many would take that much more memory.
PASSWORD_THREADS = 2


def run(configuration: Configuration) -> int:
    """Run a node until SIGTERM or SIGINT. Returns the process's exit status."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(configuration.log_format, _node_name()))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    _allow_open_files()
    try:
        uvloop.run(Node(configuration).run())
    except LeveretError as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400  # the text says all there is to say
        return 1
    return 0


def _allow_open_files() -> None:
    """Connections and segments are open files: take as many as the system lets this user have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _node_name() -> str:
    """What the node is called, in logs, lists and metrics."""
    return f"leveret@{platform.node()}"


class SystemClock:
    """The machine's time (ports.Clock)."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment."""
        return time.monotonic_ns() // 1_000_000


class Node:
    """One broker process."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._stopping = asyncio.Event()
        self._password_threads = ThreadPoolExecutor(PASSWORD_THREADS, "password")
        self._broker: Broker | None = None
        clock = SystemClock()
        self._runtime = Runtime(configuration, clock.wall_ms(), clock.wall_ms)

    async def run(self) -> None:
        """Start, serve until a signal, stop. Raises LeveretError where the node cannot start."""
        directory = self._configuration.data_dir
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"cannot create {directory}: {error.strerror}") from error
        with DirectoryLock(directory) as lock:
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._serve(tasks, lock)
            except* LeveretError as group:
                raise group.exceptions[0] from None

    async def _serve(self, tasks: asyncio.TaskGroup, lock: DirectoryLock) -> None:
        self._watch_signals()
        configuration = self._configuration
        background: set[asyncio.Task[None]] = set()

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            task = tasks.create_task(_reported(work))
            background.add(task)
            task.add_done_callback(background.discard)

        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._password_threads.shutdown, wait=False, cancel_futures=True)
            metadata = await SqliteMetadataStore.open(configuration.database_path, spawn)
            stack.push_async_callback(metadata.close)
            state = LmdbStateStore(configuration.data_dir / "state.lmdb", logger.warning)
            stack.callback(state.close)
            keyring = self._open_keyring()
            topics = self._open_topics(state, lock, keyring)
            stack.push_async_callback(topics.close)
            broker, administration = await self._open_broker(metadata, topics, state, spawn, stack)
            stack.push_async_callback(broker.waiting_rooms.close)
            _mention_orphans(topics.orphans())
            encryption = KeyAdministration(
                keyring,
                RealFileSystem(),
                configuration.data_dir,
                SystemClock().wall_ms,
                topics.use_key_of,
            )
            listener = AmqpListener(broker, configuration, spawn)
            usage = self._open_usage(broker, listener, stack)
            audit = self._open_audit(stack)
            alerting = self._start_alerting(broker, administration, spawn)
            administered = Administered(
                administration,
                broker.vhosts,
                limits=self._limits(),
                usage=usage,
                product=configuration.product,
                version=configuration.version,
                encryption=encryption,
                schedules=broker.schedules,
                redrives=broker.redrives,
                once=broker.once_operations,
                broker=broker,
                alerting=alerting,
                audit=audit,
                runtime=self._runtime,
            )
            await self._import_definitions(administered)
            control = ControlServer(configuration.control_socket_path, administered, spawn)
            await control.start()
            stack.push_async_callback(control.close)
            management = ManagementServer()
            stack.push_async_callback(management.close)
            http = await management.open(configuration.host, configuration.http_port)
            metrics, scraped = await self._open_metrics(stack)
            amqp = await listener.start()
            stack.push_async_callback(self._disconnect, listener, broker)
            if configuration.log_exchange:
                stack.enter_context(_publishing_log(broker))
            instruments = self._watch(broker, topics, spawn)
            for keeping in (
                encryption.remove_unneeded(),
                self._keep_usage(usage),
                self._keep_audit(audit),
            ):
                spawn(keeping)
            listeners = self._runtime.listeners = (
                *(Listener(*each) for each in amqp),
                http,
                *scraped,
            )
            tell_ready(listeners, configuration.data_dir)
            managed = ManagedNode(
                broker.node_name,
                broker,
                administered,
                configuration,
                InnerClients(listener),
                listeners,
                lambda: not self._stopping.is_set(),
                instruments,
            )
            spawn(management.serve(managed))
            if scraped:
                spawn(metrics.serve(managed))
            stack.callback(broker.pulls.close)
            await self._stopping.wait()
            logger.info("stopping")
            tell_stopping()
        for task in background:
            task.cancel()

    def _watch(self, broker: Broker, topics: FileTopicStore, spawn: Any) -> Instruments:
        """Begin to look after what nobody else notices in time."""
        instruments = Instruments(topics)
        spawn(self._watch_resources(broker))
        spawn(self._watch_consumers(broker))
        spawn(watch_loop(instruments.loop_lag))
        return instruments

    async def _open_metrics(
        self, stack: contextlib.AsyncExitStack
    ) -> tuple[MetricsServer, Sequence[Listener]]:
        """The port for Prometheus, if there shall be one."""
        configuration, server = self._configuration, MetricsServer()
        if configuration.prometheus_port < 0:
            return server, ()
        stack.push_async_callback(server.close)
        host, port = configuration.prometheus_host, configuration.prometheus_port
        return server, (await server.open(host, port),)

    def _open_keyring(self) -> Keyring:
        """The keys of encrypted virtual hosts, which must all be at hand."""
        configuration = self._configuration
        master = read_master_key(
            configuration.encryption_key_file, configuration.encryption_key.get_secret_value()
        )
        keyring = Keyring(RealFileSystem(), configuration.data_dir, master)
        keyring.require_master()
        return keyring

    def _open_usage(
        self, broker: Broker, listener: AmqpListener, stack: contextlib.AsyncExitStack
    ) -> UsageKeeper:
        """Records of who uses how much; the last are written when all clients are gone."""
        configuration = self._configuration
        store = SqliteUsageStore(configuration.data_dir / "usage.db")
        keeper = UsageKeeper(
            broker, store, SystemClock().wall_ms, listener.committed, configuration.usage_days_max
        )
        stack.push_async_callback(store.close)
        stack.push_async_callback(self._keep_usage_once, keeper)
        return keeper

    def _open_statistics(
        self, broker: Broker, state: LmdbStateStore, stack: contextlib.AsyncExitStack
    ) -> SamplesKeeper:
        """The charts of days and weeks go on where they ended."""
        keeper = SamplesKeeper(broker, state, logger.warning)
        keeper.restore()
        stack.push_async_callback(self._keep_samples, keeper)
        return keeper

    async def _take_samples(self, broker: Broker, keeper: SamplesKeeper) -> None:
        configuration = self._configuration
        interval_ms = configuration.statistics_interval_ms
        sampler = Sampler(
            broker,
            broker.statistics,
            interval_ms,
            configuration.statistics_histories_max,
            lambda: asyncio.sleep(0),
        )
        clock = SystemClock()
        keep_at_ms = clock.monotonic_ms() + SAMPLES_KEPT_EVERY_MS
        while not self._stopping.is_set():
            now_ms = clock.wall_ms()
            await sampler.sample(now_ms)
            if clock.monotonic_ms() >= keep_at_ms:
                keep_at_ms += SAMPLES_KEPT_EVERY_MS
                await self._keep_samples(keeper)
            await asyncio.sleep((interval_ms - clock.wall_ms() % interval_ms) / 1000)

    async def _keep_samples(self, keeper: SamplesKeeper) -> None:
        try:
            await keeper.keep()
        except StorageError as error:
            logger.warning("samples of the statistics are not written down: %s", error)

    def _open_audit(self, stack: contextlib.AsyncExitStack) -> Audit:
        """What administrators change is written down until nobody can change anything."""
        store = SqliteAuditStore(self._configuration.data_dir / "audit.db")
        stack.push_async_callback(store.close)
        return Audit(store, SystemClock().wall_ms)

    async def _keep_audit(self, audit: Audit) -> None:
        """Forget what was done too long ago."""
        kept_ms = self._configuration.audit_days_max * DAY_MS
        while not self._stopping.is_set():
            try:
                await audit.store.forget(SystemClock().wall_ms() - kept_ms)
            except StorageError as error:
                logger.error("old audit records stay: %s", error)  # noqa: TRY400  # says it all
            await asyncio.sleep(DAY_MS / 1000)

    def _start_alerting(
        self, broker: Broker, administration: Administration, spawn: Any
    ) -> Alerting:
        webhooks = Webhooks(broker.node_name)
        alerting = Alerting(
            broker,
            administration.parameters,
            wall_ms=SystemClock().wall_ms,
            node_values=lambda: {
                Condition.DISK_FREE: shutil.disk_usage(self._configuration.data_dir).free,
                Condition.MEMORY: memory_bytes_used(),
                Condition.CONNECTIONS: len(broker.connections),
            },
            tell=partial(_tell_alert, webhooks),
            breathe=lambda: asyncio.sleep(0),
        )
        spawn(webhooks.run())
        spawn(self._watch_alerts(alerting))
        return alerting

    async def _watch_alerts(self, alerting: Alerting) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(self._configuration.alert_interval_ms / 1000)
            try:
                await alerting.check()
            except Exception:  # a mistake of ours here must not stop the node
                logger.exception("alerts were not looked at")

    async def _keep_usage(self, keeper: UsageKeeper) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(self._configuration.usage_interval_ms / 1000)
            await self._keep_usage_once(keeper)

    async def _keep_usage_once(self, keeper: UsageKeeper) -> None:
        try:
            await keeper.keep()
        except StorageError as error:
            logger.error("usage is not written down: %s", error)  # noqa: TRY400  # says it all

    def _open_topics(
        self, state: LmdbStateStore, lock: DirectoryLock, keyring: Keyring
    ) -> FileTopicStore:
        configuration = self._configuration
        return FileTopicStore(
            configuration.data_dir,
            RealFileSystem(),
            state,
            asyncio.get_running_loop(),
            clock=SystemClock(),
            limits=StorageLimits(
                segment_bytes_max=configuration.segment_bytes_max,
                tail_cache_bytes_max=configuration.tail_cache_bytes_max,
                settle_flush_interval_ms=configuration.settle_flush_interval_ms,
            ),
            lock=lock,
            keyring=keyring,
            durability=configuration.durability,
        )

    async def _open_broker(
        self,
        metadata: SqliteMetadataStore,
        topics: FileTopicStore,
        state: LmdbStateStore,
        spawn: Any,
        stack: contextlib.AsyncExitStack,
    ) -> tuple[Broker, Administration]:
        """Rebuild what was kept; on the first start, make the defaults."""
        loop = asyncio.get_running_loop()
        access, policies = AccessControl(), Policies()
        cache_key = secrets.token_bytes(32)
        chain = self._open_authenticators(access, cache_key)
        delay_ms = int(self._configuration.login_delay_seconds * 1000)
        guarded = Guarded(chain.authenticators, Guesses(delay_ms), cache_key, SystemClock().wall_ms)
        stack.push_async_callback(chain.close)
        broker = Broker(
            access=access,
            metadata=metadata,
            topics=topics,
            state=state,
            turn=Turn(loop.call_soon, self._report),
            durability=self._configuration.durability,
            platform=f"Python {platform.python_version()}",
            node_name=_node_name(),
            authenticators=(guarded,),
            spawn=spawn,
            report=self._report,
            random_name=lambda: secrets.token_urlsafe(16),
            random_below=random.Random(secrets.randbits(64)).randrange,  # noqa: S311  # no secret
            wall_ms=SystemClock().wall_ms,
            policies=policies,
            limits=self._limits(),
            log_exchange=self._configuration.log_exchange,
            call_later=loop.call_later,
            counts_every_return=self._configuration.delivery_limit_counts == "returns",
            redeclare_mismatch=self._configuration.redeclare_mismatch,
            write_state=partial(_write_state, state),
            dedup_keys_max=self._configuration.dedup_keys_max,
            once_limits=SendingOnceLimits(
                self._configuration.producers_max,
                self._configuration.producer_idle_ms,
                self._configuration.prepared_messages_max,
                self._configuration.prepared_checks_max,
            ),
        )
        self._broker = broker
        broker.intake.commands[LEASE_EXCHANGE] = LeaseCommands()
        administration = Administration(
            access,
            metadata,
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
        definitions = await metadata.load()
        administration.restore(definitions)
        broker.restore(definitions)
        while broker.once is not None and broker.once.is_learning:  # noqa: ASYNC110  # at the start
            await asyncio.sleep(LEARNING_POLL_SECONDS)
        spawn(self._take_samples(broker, self._open_statistics(broker, state, stack)))
        if self._configuration.definitions is None:  # else they say who may enter
            await create_defaults(administration)
        return broker, administration

    async def _import_definitions(self, administered: Administered) -> None:
        """Import the document that the operator named, before any client is let in."""
        file = self._configuration.definitions
        if file is None:
            return
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
        try:
            summary = await import_definitions(administered, decode(text), None)
        except (DefinitionsError, AdministrationError) as error:
            raise ConfigurationError(f"{file}: {error}") from None
        logger.info("imported definitions from %s: %s", file, summary)

    def _limits(self) -> NodeLimits:
        configuration = self._configuration
        return NodeLimits(
            connections_max=configuration.connections_max,
            channels_max=configuration.channels_per_node_max,
            queues_max=configuration.queues_max,
            exchanges_max=configuration.exchanges_max,
            consumers_per_channel_max=configuration.consumers_per_channel_max,
            connection_rates=_connection_rates(configuration),
        )

    def _open_authenticators(self, access: AccessControl, cache_key: bytes) -> AuthenticatorChain:
        """All that may know who somebody is."""
        loop = asyncio.get_running_loop()

        async def check(phc: str, password: str) -> bool:
            threads = self._password_threads
            return await loop.run_in_executor(threads, verify_password, phc, password)

        checks = PasswordChecks(
            check,
            loop,
            parallel=PASSWORD_THREADS,
            failed_seconds=self._configuration.login_delay_seconds,
        )
        internal = InternalAuthenticator(access, cache_key, checks.check)
        return AuthenticatorChain(self._configuration, internal, cache_key)

    async def _watch_resources(self, broker: Broker) -> None:
        """Raise and lower the alarms; a write that finds no space raises one at once."""
        configuration = self._configuration
        memory_bytes_max = configuration.memory_fraction_max * memory_bytes_total()
        while not self._stopping.is_set():
            free = shutil.disk_usage(configuration.data_dir).free
            self._alarm(broker, Resource.DISK, low=free < configuration.disk_free_bytes_min)
            self._alarm(broker, Resource.MEMORY, low=memory_bytes_used() > memory_bytes_max)
            await asyncio.sleep(configuration.resource_check_interval_ms / 1000)

    async def _watch_consumers(self, broker: Broker) -> None:
        """End the channels of consumers that hold deliveries for too long."""
        clock = SystemClock()
        while not self._stopping.is_set():
            await asyncio.sleep(self._configuration.consumer_check_interval_ms / 1000)
            for connection in list(broker.connections):
                connection.check_acknowledged(clock.monotonic_ms())

    def _alarm(self, broker: Broker, resource: Resource, *, low: bool) -> None:
        if broker.alarms.set(resource, low=low):
            logger.warning(
                "%s: %s",
                resource.value,
                "running low; publishers are held until there is more" if low else "enough again",
            )

    async def _disconnect(self, listener: AmqpListener, broker: Broker) -> None:
        """Answer the confirms in flight, then tell every client that the node stops."""
        listener.stop_reading()
        await broker.caught_up(listener.committed)
        await listener.stop(
            ConnectionClosingError(320, "broker forced connection closure with reason 'shutdown'"),
            STOP_GRACE_SECONDS,
        )

    def _report(self, subject: object, error: Exception) -> None:
        if isinstance(error, DiskFullError) and self._broker is not None:
            self._alarm(self._broker, Resource.DISK, low=True)
        _report(subject, error)

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)


async def _write_state(
    state: LmdbStateStore, changes: Sequence[tuple[bytes, bytes | None]]
) -> None:
    """Bring changes to the disk beside the event loop."""
    await asyncio.to_thread(state.write, changes, durable=True)


def _connection_rates(configuration: Configuration) -> ConnectionRates:
    """What each connection may do by itself."""
    values = {
        "publish-rate": configuration.connection_publish_rate,
        "publish-burst": configuration.connection_publish_burst,
        "consume-rate": configuration.connection_consume_rate,
        "consume-burst": configuration.connection_consume_burst,
    }
    return ConnectionRates(rate_of(values, "publish"), rate_of(values, "consume"))


def _tell_alert(webhooks: Webhooks, alert: Alert) -> None:
    """For the operator, and for whoever the rule names."""
    rule = alert.rule
    logger.warning(
        "alert %r in vhost %r %s: %s %s is %g",
        rule.name,
        rule.vhost,
        "fires" if alert.is_firing else "is over",
        rule.condition.value,
        f"of queue {alert.subject!r}" if alert.subject else "of the node",
        alert.value,
    )
    webhooks.tell(alert)


def _mention_orphans(orphans: list[Path]) -> None:
    """Logs without a queue: left by a crash while one was deleted, or by lost definitions."""
    if orphans:
        logger.warning(
            "%d queue logs belong to no queue that is defined and are left as they are, the first "
            "of them %s: remove their directories if nothing in them is needed any more",
            len(orphans),
            orphans[0],
        )


async def _reported(work: Coroutine[Any, Any, None]) -> None:
    """Run a background task; its failure is logged and stops nobody else."""
    try:
        await work
    except Exception as error:  # noqa: BLE001  # isolation between tasks
        _report("background task", error)


@contextlib.contextmanager
def _publishing_log(broker: Broker) -> Iterator[None]:
    """Publish what is logged within."""
    exchange = LogExchange(broker.vhosts, broker.publisher, broker.node_name)
    handler = LogExchangeHandler(exchange, asyncio.get_running_loop())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _report(subject: object, error: Exception) -> None:
    """What should not have happened, for the operator."""
    about = {"subject": subject}
    if isinstance(error, ToleratedError):
        logger.warning("%r: %s", subject, error, extra=about)
    elif isinstance(error, LeveretError):
        logger.error("%r: %s", subject, error, extra=about)
    else:
        text = "%r failed: please report this as a bug"
        logger.error(text, subject, exc_info=error, extra=about)
