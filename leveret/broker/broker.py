"""Broker of one node: its virtual hosts, users and queues, without sockets or files.

Connections call it; the composition root passes it its stores, its turn and its timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leveret.core.access.authentication import log_in
from leveret.core.access.limits import Quota
from leveret.core.admission import Admission
from leveret.core.alarms import Alarms, Resource
from leveret.core.chores import Chores, at_once, drain
from leveret.core.command_replies import CommandReplies
from leveret.core.definitions.parameters import Parameters
from leveret.core.dependencies import CoreServices
from leveret.core.events import INTERNAL_USER, acting_as, actor
from leveret.core.feature_counters import FeatureCounters
from leveret.core.internal_publisher import InternalPublisher
from leveret.core.logs.atomic import AtomicWrites
from leveret.core.logs.internal_topics import InternalTopics
from leveret.core.names import resource
from leveret.core.publish_interceptors import PublishInterceptors
from leveret.core.queues.expiry_and_limits import ExpiryAndLimits
from leveret.core.queues.opener import QueueOpener
from leveret.core.queues.partitioned_queue import PartitionedQueue
from leveret.core.queues.services import QueueServices
from leveret.core.settings.arguments import type_of
from leveret.core.settings.policies import NO_POLICY
from leveret.core.statistics.statistics import Statistics
from leveret.core.telemetry.event_exchange import Events
from leveret.core.telemetry.trace import Tracer
from leveret.core.telemetry.usage import UsageMeter
from leveret.core.vhost import Vhost
from leveret.errors import (
    ChannelError,
    ConnectionClosingError,
    StorageError,
    ToleratedError,
)
from leveret.features.batch_leases.batch_leases import BatchLeases
from leveret.features.celery.eta_hold import EtaHolds
from leveret.features.dead_letter.counters import DeadLetterCounters
from leveret.features.dead_letter.dead_lettering import DeadLettering
from leveret.features.dead_letter.redrive import Redrives
from leveret.features.dead_letter.topics import DeadLetterTopics
from leveret.features.dead_letter.worker import DeadLetterWorkers
from leveret.features.dedup.extension import QueueWindows
from leveret.features.dedup.idempotent_publish import IdempotentPublish
from leveret.features.dedup.interceptor import DEDUP_TOPICS
from leveret.features.delay.delayed_delivery import DelayedDelivery
from leveret.features.delay.delayed_messages import DELAYED_TOPIC
from leveret.features.delay.store import DelayedMessageStores
from leveret.features.filters.filtered import ConsumerFilters
from leveret.features.filters.rules import record_filter
from leveret.features.groups.groups import ConsumerGroups
from leveret.features.pull.pull import Pulls
from leveret.features.range_reads.range_reads import RangeReads
from leveret.features.rates.rates import Rates
from leveret.features.retry.key_order import KeyOrder
from leveret.features.retry.retrying import RetryTopics
from leveret.features.staged_batches.batches import BatchesOfNode
from leveret.features.staged_batches.logs import BATCHES_TOPIC, STAGED_TOPIC
from leveret.features.topics.partition_changes import PartitionChanges
from leveret.features.transactions.prepared import PREPARED_TOPIC
from leveret.ports.authentication import Login

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Sequence

    from leveret.broker.settings import BrokerSettings
    from leveret.core.access.permissions import AccessControl
    from leveret.core.environment import Environment
    from leveret.core.logs.log_writer import Committing, Waiter
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.settings.policies import Policies
    from leveret.core.telemetry.usage import Metered
    from leveret.ports import MetadataStore, StateStore, TopicStore
    from leveret.ports.authentication import Authenticator, Rights
    from leveret.ports.definitions import Definitions, QueueDefinition, VhostDefinition

INTERNAL_TOPICS = (
    DELAYED_TOPIC,
    *DEDUP_TOPICS,
    PREPARED_TOPIC,
    STAGED_TOPIC,
    BATCHES_TOPIC,
)  # that a virtual host may have
TRANSACTIONS_MAX = (1 << 64) - 1  # random ids are drawn from this range


class Broker:
    """State and services shared by all connections of a node.

    `authenticators` are tried in order at login.
    """

    def __init__(
        self,
        environment: Environment,
        settings: BrokerSettings,
        *,
        access: AccessControl,
        policies: Policies,
        authenticators: Sequence[Authenticator],
        metadata: MetadataStore,
        topics: TopicStore,
        state: StateStore,
    ) -> None:
        turn, spawn, report = environment.turn, environment.spawn, environment.report
        self._environment = environment
        self._settings = settings
        self._authenticators = authenticators
        self.access = access
        self.policies = policies
        self.parameters = Parameters()
        self.metadata = metadata
        self._topics = topics
        self.turn = turn
        self.timers = environment.timers
        self.report = report
        self.platform = settings.platform
        self.node_name = settings.node_name
        self.vhosts: dict[str, Vhost] = {}
        self.connections: set[Any] = set()
        self.chores = Chores(turn, environment.report)
        self._closing: dict[Vhost, Generator[None]] = {}
        self._following: dict[str, Generator[None]] = {}  # by virtual host

        # Events and statistics.
        self.publisher = InternalPublisher(turn, self.timers.wall_ms)
        self.statistics = Statistics()
        self.events = Events(self.vhosts, self.publisher, self.statistics.churn)
        self.tracer = Tracer(self.publisher, self.node_name)
        self.usage = UsageMeter()
        self.feature_counters = FeatureCounters()

        # Limits.
        self.alarms = Alarms(self.connections, environment.report, self._tell_alarm)
        self.admission = Admission(self.node_name, settings.limits, self.connections, access.user)
        self._quota = Quota(settings.limits)
        self.rates = Rates(self.timers, access.user, settings.connection_rates, self._follow_rates)

        # Features of messages.
        self.publish_interceptors = PublishInterceptors(topics)
        self.reply_consumers: dict[bytes, Any] = {}  # consumers of direct replies, by address
        self.command_replies = CommandReplies(self.publisher, self.reply_consumers)
        self.pulls = Pulls(turn, self.timers, environment.random_name, self.statistics)
        self.atomic = AtomicWrites(
            topics,
            turn,
            lambda: 1 + environment.random_below(TRANSACTIONS_MAX),
            self.timers.wall_ms,
            report,
        )
        self.internal_topics = InternalTopics(topics, settings.durability)
        self.delayed_stores = DelayedMessageStores(self.internal_topics, state, environment)
        core = CoreServices(
            **environment.common(),
            vhosts=self.vhosts,
            state=state,
            atomic=self.atomic,
            internal_topics=self.internal_topics,
            publisher=self.publisher,
            publish_interceptors=self.publish_interceptors,
            command_replies=self.command_replies,
            events=self.events,
            tracer=self.tracer,
            feature_counters=self.feature_counters,
        )
        self.groups = ConsumerGroups(core, metadata, settings.group_limits)
        self.partitions = PartitionChanges(core, metadata, topics, self.groups)
        self.range_reads = RangeReads(core, self.statistics)
        self.batch_leases = BatchLeases(
            core, self.statistics, self.range_reads, settings.lease_limits
        )
        self.redrives = Redrives(self.vhosts, self.atomic, self.timers, spawn, self.events.emit)
        self.idempotency = IdempotentPublish(core, settings.once_limits, settings.dedup_keys_max)
        self.delayed = DelayedDelivery(
            core, self.delayed_stores, self.idempotency.interceptor.forget_key
        )
        self.schedules = self.delayed.schedules
        self.batches = BatchesOfNode(core, settings.batch_limits)

        self.dead_letter_counters = DeadLetterCounters()
        services = self._queue_services(core)
        self._opener = QueueOpener(topics, settings.durability, policies, services)

    def _queue_services(self, core: CoreServices) -> QueueServices:
        topics = DeadLetterTopics(self.vhosts, self.metadata, core.spawn, core.report)
        dead_letter = DeadLettering(self.vhosts, topics, core.turn, core.timers.wall_ms)
        retry_topics = RetryTopics(self.delayed_stores, core.random_part)
        return QueueServices(
            **core.common(),
            unused=self._remove_unused,
            in_sync_count=lambda: self._topics.in_sync_count,
            discarded=DeadLetterWorkers(dead_letter, self.dead_letter_counters, retry_topics),
            counts_every_return=self._settings.counts_every_return,
            extensions=(
                ExpiryAndLimits,
                EtaHolds(self.delayed_stores),
                QueueWindows(core, self._settings.dedup_keys_max),
                KeyOrder,
                retry_topics,
                ConsumerFilters(),
                self.groups,
                self.range_reads,
            ),
            stream_filter=record_filter,
            feature_counters=core.feature_counters,
        )

    @property
    def is_restoring(self) -> bool:
        """Whether features still restore what an earlier run has left: no client may connect."""
        return self.idempotency.is_restoring or self.batches.is_restoring

    # -- definitions

    async def restore(self, definitions: Definitions) -> None:
        """Restore the virtual hosts from stored definitions; open queues that hold something.

        Raises StorageError.
        """
        self.groups.load(definitions.groups)
        for vhost in definitions.vhosts:
            self.add_vhost(vhost)
        await self._recover_logs(definitions)
        for name, vhost_ in self.vhosts.items():
            vhost_.restore(
                [exchange for exchange in definitions.exchanges if exchange.vhost == name],
                [queue for queue in definitions.queues if queue.vhost == name],
                [binding for binding in definitions.bindings if binding.vhost == name],
            )
        self._opener.started()
        self.delayed.restore(self.vhosts.values())
        self.idempotency.restore(self.vhosts.values())
        self.batches.restore(self.vhosts.values())

    async def _recover_logs(self, definitions: Definitions) -> None:
        """Recover the logs of all that `restore` opens, together."""
        topics = (
            self.internal_topics.name(vhost.name, topic, vhost.incarnation)
            for vhost in self.vhosts.values()
            for topic in INTERNAL_TOPICS
        )
        of_queues = (log for queue in definitions.queues for log in self._opener.logs(queue))
        await self._topics.recover([*topics, *of_queues])

    async def recover_queue(self, definition: QueueDefinition) -> None:
        """Recover the logs that an adopted queue is opened with. Raises StorageError."""
        await self._topics.recover(list(self._opener.logs(definition)))
        self._opener.started()

    def add_vhost(self, definition: VhostDefinition) -> None:
        """Create a virtual host with its predeclared exchanges."""
        self.vhosts[definition.name] = Vhost(
            definition,
            open_queue=self._open_queue,
            store=self.metadata,
            random_name=self._environment.random_name,
            random_below=self._environment.random_below,
            deposit=self.publisher.deposit,
            policies=self.policies,
            quota=self._quota,
            emit=self.events.emit,
            log_exchange=self._settings.log_exchange,
            tolerates=self._tolerates,
            counters=self.statistics.vhost(definition.name),
            begin=self.chores.begin,
            wall_ms=self.timers.wall_ms,
        )

    def _tolerates(self, queue: QueueLike, error: ChannelError) -> bool:
        """Whether a mismatching redeclaration of a queue is accepted.

        If so, the operator is told.
        """
        mode = queue.policy.definition.get("redeclare-mismatch", self._settings.redeclare_mismatch)
        if mode != "warn":
            return False
        self.report(queue, ToleratedError(error.explanation))
        return True

    def change_vhost(self, definition: VhostDefinition) -> None:
        """Replace a virtual host's definition: description and limits."""
        vhost = self.vhosts[definition.name]
        before, vhost.definition = vhost.definition, definition
        if before.limits != definition.limits:
            self.rates.limits_changed()
        if before.creates_queues != definition.creates_queues:
            self._change_paths(vhost)

    def apply_policies(self, vhost_name: str) -> None:
        """Apply the current policies of a virtual host to all its exchanges and queues.

        Some at once, the rest in later turns; `follows_policies` tells when it is done. Anything
        declared meanwhile uses the current policies; if they change again, the update starts
        afresh.
        """
        before = self._following.pop(vhost_name, None)
        if before is not None:
            before.close()
        following = self._following[vhost_name] = self._follow_policies(self.vhosts[vhost_name])
        self.chores.begin(following)

    @property
    def follows_policies(self) -> bool:
        """Whether all policy updates are complete."""
        return not self._following

    def _follow_policies(self, vhost: Vhost) -> Generator[None]:
        user = actor.get()  # later steps run in other turns
        try:
            for exchange in list(vhost.exchanges.values()):
                vhost.follow_policy(exchange)
                yield
            for queue in map(self._opened, list(vhost.queues.values())):
                if not queue.deleted and self._opener.policy_of(queue.definition) != queue.policy:
                    with acting_as(user):
                        self.reconfigure(queue)
                yield
        finally:
            self._following.pop(vhost.name, None)

    def reconfigure(self, queue: DeclaredQueue, *, reorder: bool = False) -> None:
        """Apply the current policy and settings to a queue; see QueueOpener.reconfigure."""
        before = queue.policy
        self._opener.reconfigure(queue, reorder=reorder)
        self.rates.follow_queue(queue)
        if queue.policy != before:
            self._tell_policy(queue)

    def _tell_policy(self, queue: DeclaredQueue) -> None:
        told = {
            "name": queue.name,
            "vhost": queue.definition.vhost,
            "type": type_of(queue.definition.arguments),
        }
        if queue.policy is NO_POLICY:
            self.events.emit("queue.policy.cleared", told)
        else:
            definition = dict(queue.policy.definition)
            self.events.emit("queue.policy.updated", {**told, "definition": definition})

    def remove_vhost(self, name: str) -> None:
        """Delete a virtual host: close its connections and delete its queues.

        It is not found any more from now on, and the store has been told. Its contents are removed
        in this turn and later ones; a new one may take the name meanwhile.
        """
        vhost = self.vhosts.pop(name)
        reason = ConnectionClosingError(320, f"vhost '{name}' is deleted")
        self._shut(reason, lambda connection: connection.vhost is vhost)
        self.delayed.forget(name)
        self.idempotency.forget_vhost(name)
        self.batches.forget_vhost(name)
        self.delayed_stores.delete_of_vhost(name)
        self.statistics.vhost_deleted(name)
        closing = self._closing[vhost] = self._close_vhost(vhost)
        self.chores.begin(closing)

    def _close_vhost(self, vhost: Vhost) -> Generator[None]:
        def drop(queue: QueueLike) -> None:
            vhost.remove_queue(queue)
            self._drop_queue(vhost, self._opened(queue))

        user = actor.get()  # later steps run in other turns
        steps = vhost.closing(drop)
        try:
            while True:
                with acting_as(user):
                    if next(steps, steps) is steps:
                        return
                yield
        finally:
            del self._closing[vhost]

    def shut_user(self, name: str) -> None:
        """Close all connections of a deleted user, with the reason."""
        reason = ConnectionClosingError(320, f"user '{name}' is deleted")
        self._shut(reason, lambda connection: connection.user == name)

    def _shut(self, reason: ConnectionClosingError, concerns: Callable[[Any], bool]) -> None:
        for connection in [held for held in self.connections if concerns(held)]:
            connection.shut(reason)

    def trace(self, vhost: str, *, on: bool) -> None:
        """Enable or disable the firehose of a virtual host, for open connections as well."""
        traced = self.vhosts[vhost]
        traced.traced = on
        self._change_paths(traced)

    def _change_paths(self, vhost: Vhost) -> None:
        for connection in self.connections:
            if connection.vhost is vhost:
                connection.choose_paths()

    def await_definitions(self, waiter: Waiter) -> None:
        """Notify a waiter once all present definitions are on disk, or that writing them failed."""
        self._environment.spawn(self._keep_definitions(waiter))

    async def _keep_definitions(self, waiter: Waiter) -> None:
        try:
            await self.metadata.flush()
        except StorageError as error:
            self.report(self, error)
            waiter.done(failed=True)
        else:
            waiter.done(failed=False)

    def change_user(self, _name: str) -> None:
        """Apply changed limits of a user."""
        self.rates.limits_changed()

    def _follow_rates(self) -> None:
        for connection in self.connections:
            connection.follow_rates()

    def _tell_alarm(self, resource: Resource, *, low: bool) -> None:
        key = "alarm.set" if low else "alarm.cleared"
        self.events.emit(key, {"source": resource.value, "node": self.node_name})

    def random_name(self, prefix: str) -> str:
        """Return a unique name that begins with `prefix`."""
        return prefix + self._environment.random_name()

    # -- queues

    def _open_queue(self, definition: QueueDefinition, owner: object | None) -> DeclaredQueue:
        queue = self._opener.open(definition, owner)
        self.rates.follow_queue(queue)
        if isinstance(queue, PartitionedQueue):
            self.partitions.opened(queue)
        return queue

    def delete_queue(
        self, vhost: Vhost, queue: DeclaredQueue, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue and return its number of ready messages. Raises ChannelError 406."""
        name = resource("queue", queue.name, vhost.name)
        if if_unused and queue.consumer_count:
            raise ChannelError(406, f"{name} in use")
        if if_empty and queue.message_count:
            raise ChannelError(406, f"{name} not empty")
        count = queue.message_count
        self._drop_queue(vhost, queue)
        return count

    def _drop_queue(self, vhost: Vhost, queue: DeclaredQueue) -> None:
        if queue.deleted:
            return
        vhost.remove_queue(queue)
        self.rates.forget_queue(queue)
        queue.mark_deleted()
        self.usage.ended(queue)
        queue.delete_logs(self._environment.spawn)

    def _remove_unused(self, queue: DeclaredQueue) -> None:
        """Delete a queue whose expiry time (`x-expires`) has passed without use."""
        vhost = self.vhosts.get(queue.definition.vhost)
        if vhost is not None:
            with acting_as(INTERNAL_USER):  # not of the user whose action set the timer
                self._drop_queue(vhost, queue)

    def release_owner(self, vhost: Vhost, owner: object) -> Iterator[None]:
        """Delete the exclusive queues of a closed connection, one in each step."""
        for queue in drain(vhost.exclusive_queues(owner)):
            self._drop_queue(vhost, self._opened(queue))
            yield

    async def caught_up(
        self, committed: Callable[[Collection[Committing]], Awaitable[bool]]
    ) -> None:
        """Wait until everything published is committed; `committed` waits for queues.

        Called when the node stops, so virtual hosts still being deleted are finished first.
        """
        for closing in list(self._closing.values()):
            at_once(closing)
        # One wait for all: queues may be added and deleted meanwhile.
        queues = (
            self._opened(queue) for vhost in self.vhosts.values() for queue in vhost.queues.values()
        )
        await committed([*queues, *self.delayed_stores.opened])

    def metered(self) -> Iterator[Metered]:
        """Iterate over all objects with usage to be counted: connections and opened queues."""
        yield from self.connections
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                found = self._opened(queue)
                if any(part.is_opened for part in found.partitions):
                    yield found

    @staticmethod
    def _opened(queue: QueueLike) -> DeclaredQueue:
        """Cast a queue as routing knows it to the DeclaredQueue that `_open_queue` made."""
        return cast("DeclaredQueue", queue)

    def find_queue(self, vhost: Vhost, name: str, user: object | None) -> DeclaredQueue:
        """Return a queue that a connection may use. Raises ChannelError 404 and 405."""
        return self._opened(vhost.check_queue(name, user))

    # -- users

    async def authenticate(
        self, user: str, password: str | None, peer_host: str = "unknown"
    ) -> Rights | None:
        """Return the rights of an authenticated user; None if the login is refused.

        Without a password (None) the name has been proved by other means and must be a user's.
        Raises TooManyGuessesError.
        """
        rights = None
        try:
            rights = await log_in(self._authenticators, Login(user, password, peer_host))
        finally:
            if rights is None:
                self.feature_counters.logins_refused += 1
            else:
                self.feature_counters.logins_accepted += 1
        return rights
