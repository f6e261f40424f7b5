"""The broker of one node: its virtual hosts, users and queues, without sockets or files.

Connections call it; the composition root gives it its stores, its turn and its ways to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from leveret.core.access.authentication import log_in
from leveret.core.access.limits import Admission, NodeLimits, Quota
from leveret.core.access.rates import Rates
from leveret.core.alarms import Alarms, Resource
from leveret.core.command_replies import CommandReplies
from leveret.core.dead_letters.dead_lettering import DeadLettering
from leveret.core.dead_letters.redrive import Redrives
from leveret.core.dead_letters.topics import DeadLetterTopics
from leveret.core.definitions.parameters import Parameters
from leveret.core.definitions.policies import NO_POLICY, Policies
from leveret.core.delay.delayed_delivery import DelayedDelivery
from leveret.core.delay.delayed_messages import DelayServices
from leveret.core.delay.eta_hold import EtaHold, EtaHolds
from leveret.core.delay.schedule_commands import SCHEDULE_EXCHANGE, ScheduleCommands
from leveret.core.delay.schedules import Schedules
from leveret.core.intake import Intake
from leveret.core.logs.atomic import AtomicWrites
from leveret.core.logs.internal_topics import InternalTopics
from leveret.core.names import resource
from leveret.core.once.dedup import DedupServices
from leveret.core.once.operations import OnceOperations
from leveret.core.once.sending_once import SendingOnce, SendingOnceLimits
from leveret.core.queues.arguments import type_of
from leveret.core.queues.pull import Pulls
from leveret.core.queues.queue import Queue, QueueServices
from leveret.core.queues.settings import resolve_settings
from leveret.core.queues.stream import Stream
from leveret.core.retry.retrying import RetryTopics
from leveret.core.routing.publishing import InternalPublisher
from leveret.core.statistics.statistics import Statistics
from leveret.core.telemetry.events import INTERNAL_USER, Events, acting_as
from leveret.core.telemetry.tally import Tally
from leveret.core.telemetry.trace import Tracer
from leveret.core.telemetry.usage import UsageMeter
from leveret.core.timers import Timers
from leveret.core.vhost import Vhost
from leveret.core.waiting.rooms import WaitingRooms
from leveret.errors import ChannelError, ConnectionClosingError, ToleratedError
from leveret.ports import Durability
from leveret.ports.authentication import Login

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence

    from leveret.core.access.permissions import AccessControl
    from leveret.core.definitions.policies import EffectivePolicy
    from leveret.core.exchanges import RandomBelow
    from leveret.core.logs.appender import Committing
    from leveret.core.once.dedup import Changes
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.telemetry.usage import Metered
    from leveret.core.turn import Turn
    from leveret.ports import MetadataStore, StateStore, TopicStore
    from leveret.ports.authentication import Authenticator, Rights
    from leveret.ports.definitions import Definitions, QueueDefinition, VhostDefinition

CHANCES = 1 << 30  # of which one is drawn where a part of something is left to chance
TRANSACTIONS_MAX = (1 << 64) - 1  # different numbers for them


class Broker:
    """Everything that a node's connections share.

    `authenticators` are asked in turn who somebody is; `spawn(coroutine)` runs it in the node's
    task group; `report(subject, error)` is told of what should not have happened; `random_name()`
    gives a unique string, `random_below(n)` one of 0 … n - 1; `wall_ms()` is the time, in
    milliseconds since 1970; `call_later(seconds, callback)` calls back, unless what it returns is
    cancelled. With `log_exchange` there is one for log lines, to which others publish.
    `write_state(changes)` brings changes of `state` to the disk; without it, nobody's messages are
    checked for duplicates. `redeclare_mismatch`, "refuse" or "warn", is what becomes of a
    declaration that does not fit its queue, where no policy says otherwise.
    """

    def __init__(
        self,
        *,
        access: AccessControl,
        metadata: MetadataStore,
        topics: TopicStore,
        state: StateStore,
        turn: Turn,
        durability: Durability,
        platform: str,
        node_name: str,
        authenticators: Sequence[Authenticator],
        spawn: Callable[[Coroutine[object, object, None]], object],
        report: Callable[[object, Exception], None],
        random_name: Callable[[], str],
        random_below: RandomBelow,
        wall_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], Any],
        counts_every_return: bool = True,
        policies: Policies | None = None,
        limits: NodeLimits | None = None,
        log_exchange: bool = False,
        write_state: Callable[[Changes], Awaitable[None]] | None = None,
        dedup_keys_max: int = 1_000_000,
        once_limits: SendingOnceLimits | None = None,
        redeclare_mismatch: str = "refuse",
    ) -> None:
        self.access = access
        self.policies = policies or Policies()
        self.parameters = Parameters()
        self.metadata = metadata
        self.turn = turn
        self.platform = platform
        self.node_name = node_name
        self.report = report
        self.vhosts: dict[str, Vhost] = {}
        self.publisher = InternalPublisher(turn, wall_ms)
        self.statistics = Statistics()
        self.events = Events(self.vhosts, self.publisher, self.statistics.churn)
        self.tracer = Tracer(self.publisher, node_name)
        self.intake = Intake()
        self.usage = UsageMeter()
        self.tally = Tally()
        self._has_log_exchange = log_exchange
        self._redeclare_mismatch = redeclare_mismatch
        self.connections: set[Any] = set()
        self.reply_consumers: dict[bytes, Any] = {}  # of direct replies, by their addresses
        self.command_replies = CommandReplies(self.publisher, self.reply_consumers)
        self.alarms = Alarms(self.connections, self._tell_alarm)
        limits = limits or NodeLimits()
        self.admission = Admission(node_name, limits, self.connections, access.user)
        self._quota = Quota(limits)
        self._topics = topics
        self.atomic = AtomicWrites(
            topics, turn, lambda: 1 + random_below(TRANSACTIONS_MAX), wall_ms, report
        )
        self.internal_topics = InternalTopics(topics, durability)
        self._durability = durability
        self._authenticators = authenticators
        self._spawn = spawn
        self._unique = random_name
        self._random_below = random_below
        self.timers = Timers(wall_ms, call_later)
        self.waiting_rooms = WaitingRooms(
            self.internal_topics, state, turn, self.timers, spawn, report
        )
        self.rates = Rates(self.timers, access.user, limits.connection_rates, self._follow_rates)
        self.pulls = Pulls(turn, self.timers, random_name, self.statistics)
        self.delayed: DelayedDelivery | None = None
        self.schedules: Schedules | None = None
        self._delay_messages(state)
        self.redrives = Redrives(self.vhosts, self.atomic, self.timers, spawn, self.events.emit)
        dedup = self._dedup_services(state, write_state, dedup_keys_max)
        self.once = None if dedup is None else SendingOnce(self, dedup, once_limits)
        self.once_operations = (
            None if self.once is None else OnceOperations(self.once, self._queues)
        )
        self._queue_services = QueueServices(
            turn,
            spawn,
            report,
            self.timers,
            self._remove_unused,
            DeadLettering(
                self.vhosts,
                DeadLetterTopics(self.vhosts, metadata, spawn, report),
                turn,
                wall_ms,
            ),
            counts_every_return,
            dedup,
            RetryTopics(self.waiting_rooms, lambda: random_below(CHANCES) / CHANCES),
            EtaHolds(self.waiting_rooms),
            tally=self.tally,
        )
        self.toll = self._queue_services.toll

    def _dedup_services(
        self,
        state: StateStore,
        write_state: Callable[[Changes], Awaitable[None]] | None,
        keys_max: int,
    ) -> DedupServices | None:
        if write_state is None:
            return None
        return DedupServices(
            state, write_state, self._spawn, self.timers, self.report, keys_max, self.tally
        )

    def _delay_messages(self, state: StateStore) -> None:
        """Take messages that are due later, and commands about them."""
        services = DelayServices(
            self.waiting_rooms, state, self.turn, self.timers, self._spawn, self.report
        )
        self.delayed = DelayedDelivery(services)
        self.schedules = Schedules(
            self.delayed, self._eta_hold, self.events.emit, self.timers.wall_ms
        )
        self.intake.steps.append(self.delayed)
        self.intake.commands[SCHEDULE_EXCHANGE] = ScheduleCommands(
            self.schedules,
            self.delayed,
            self.command_replies,
            wall_ms=self.timers.wall_ms,
            spawn=self._spawn,
            report=self.report,
        )

    def _eta_hold(self, vhost: str, queue: str) -> EtaHold | None:
        found = self.vhosts[vhost].queues.get(queue) if vhost in self.vhosts else None
        return found.eta_hold if isinstance(found, Queue) else None

    # -- definitions

    def restore(self, definitions: Definitions) -> None:
        """Rebuild what the store kept of virtual hosts; opens every queue's log."""
        for vhost in definitions.vhosts:
            self.add_vhost(vhost)
        for name, vhost_ in self.vhosts.items():
            vhost_.restore(
                [exchange for exchange in definitions.exchanges if exchange.vhost == name],
                [queue for queue in definitions.queues if queue.vhost == name],
                [binding for binding in definitions.bindings if binding.vhost == name],
            )

        if self.delayed is not None:
            self.delayed.restore(self.vhosts.values())
        if self.once is not None:
            self.once.restore(self.vhosts.values())

    def add_vhost(self, definition: VhostDefinition) -> None:
        """Open a virtual host with its predeclared exchanges."""
        self.vhosts[definition.name] = Vhost(
            definition,
            open_queue=self._open_queue,
            store=self.metadata,
            random_name=self._unique,
            random_below=self._random_below,
            deposit=self.publisher.deposit,
            policies=self.policies,
            quota=self._quota,
            emit=self.events.emit,
            log_exchange=self._has_log_exchange,
            tolerates=self._tolerates,
            counters=self.statistics.vhost(definition.name),
        )

    def _tolerates(self, queue: QueueLike, error: ChannelError) -> bool:
        """Whether a queue may be declared otherwise than it is; the operator hears of it."""
        mode = queue.policy.definition.get("redeclare-mismatch", self._redeclare_mismatch)
        if mode != "warn":
            return False
        self.report(queue, ToleratedError(error.explanation))
        return True

    def change_vhost(self, definition: VhostDefinition) -> None:
        """Take over what has become of a virtual host's description and limits."""
        vhost = self.vhosts[definition.name]
        limits, vhost.definition = vhost.definition.limits, definition
        if limits != definition.limits:
            self.rates.limits_changed()

    def apply_policies(self, vhost_name: str) -> None:
        """Let every exchange and queue follow the policies of a virtual host as they are now.

        It takes a pass over all of them, some microseconds each.
        """
        vhost = self.vhosts[vhost_name]
        vhost.apply_policies()
        for queue in map(self._opened, vhost.queues.values()):
            if self._policy_of(queue.definition) != queue.policy:
                self.reconfigure(queue)

    def reconfigure(self, queue: OpenQueue, *, reorder: bool = False) -> None:
        """Let a queue follow what its definition and its policy say now.

        `reorder`: even in the order of messages, which the queue can change now.
        """
        before, queue.policy = queue.policy, self._policy_of(queue.definition)
        settings = resolve_settings(queue.definition, queue.policy.definition)
        if reorder and isinstance(queue, Queue):
            queue.reorder(settings)
        else:
            queue.reconfigure(settings)
        self.rates.follow_queue(queue)
        if queue.policy != before:
            self._tell_policy(queue)

    def _tell_policy(self, queue: OpenQueue) -> None:
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

    def _policy_of(self, queue: QueueDefinition) -> EffectivePolicy:
        return self.policies.for_queue(queue.vhost, queue.name, type_of(queue.arguments))

    def remove_vhost(self, name: str) -> None:
        """Delete a virtual host: its connections are told and closed, its queues are deleted."""
        vhost = self.vhosts.pop(name)
        reason = ConnectionClosingError(320, f"vhost '{name}' is deleted")
        self._shut(reason, lambda connection: connection.vhost is vhost)
        for queue in list(vhost.queues.values()):
            self._drop_queue(vhost, self._opened(queue))
        if self.delayed is not None:
            self.delayed.forget(name)
        if self.once is not None:
            self.once.forget_vhost(name)
        self.waiting_rooms.delete_of_vhost(name)
        self.statistics.vhost_deleted(name)
        vhost.close()
        for exchange in vhost.exchanges:
            self.events.emit("exchange.deleted", {"name": exchange, "vhost": name})

    def shut_user(self, name: str) -> None:
        """A user was deleted: whoever is connected as such is told and closed."""
        reason = ConnectionClosingError(320, f"user '{name}' is deleted")
        self._shut(reason, lambda connection: connection.user == name)

    def _shut(self, reason: ConnectionClosingError, concerns: Callable[[Any], bool]) -> None:
        for connection in [held for held in self.connections if concerns(held)]:
            connection.shut(reason)

    def trace(self, vhost: str, *, on: bool) -> None:
        """Turn the firehose of a virtual host on or off, for connections that are open, too."""
        traced = self.vhosts[vhost]
        traced.traced = on
        for connection in self.connections:
            if connection.vhost is traced:
                connection.tracing_changed()

    def change_user(self, _name: str) -> None:
        """Take over what has become of a user's limits."""
        self.rates.limits_changed()

    def _follow_rates(self) -> None:
        for connection in self.connections:
            connection.follow_rates()

    def _tell_alarm(self, resource: Resource, *, low: bool) -> None:
        key = "alarm.set" if low else "alarm.cleared"
        self.events.emit(key, {"source": resource.value, "node": self.node_name})

    def random_name(self, prefix: str) -> str:
        """A unique name behind `prefix`."""
        return prefix + self._unique()

    # -- queues

    def _open_queue(self, definition: QueueDefinition, owner: object | None) -> OpenQueue:
        policy = self._policy_of(definition)
        settings = resolve_settings(definition, policy.definition)
        log = self._topics.open(
            definition.vhost,
            definition.topic,
            definition.incarnation,
            0,
            self._durability if definition.durable else Durability.NONE,
            retention=settings.retention,
        )
        queue: OpenQueue
        if settings.retention is None:
            queue = Queue(definition, settings, owner, log, self._queue_services)
        else:
            queue = Stream(definition, settings, log, self._queue_services)
        queue.policy = policy
        self.rates.follow_queue(queue)
        return queue

    def delete_queue(
        self, vhost: Vhost, queue: OpenQueue, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete a queue. Returns how many messages were ready. Raises ChannelError 406."""
        name = resource("queue", queue.name, vhost.name)
        if if_unused and queue.consumer_count:
            raise ChannelError(406, f"{name} in use")
        if if_empty and queue.message_count:
            raise ChannelError(406, f"{name} not empty")
        count = queue.message_count
        self._drop_queue(vhost, queue)
        return count

    def _drop_queue(self, vhost: Vhost, queue: OpenQueue) -> None:
        if queue.deleted:
            return
        vhost.remove_queue(queue)
        self.rates.forget_queue(queue)
        queue.mark_deleted()
        self.usage.ended(queue)
        self._spawn(queue.log.delete())

    def _remove_unused(self, queue: Queue) -> None:
        """Nobody has used the queue for as long as it said."""
        vhost = self.vhosts.get(queue.definition.vhost)
        if vhost is not None:
            with acting_as(INTERNAL_USER):  # not whoever's doing had set the timer
                self._drop_queue(vhost, queue)

    def release_owner(self, vhost: Vhost, owner: object) -> None:
        """A connection has ended: its exclusive queues go with it."""
        for queue in vhost.exclusive_queues(owner):
            self._drop_queue(vhost, self._opened(queue))

    async def caught_up(
        self, committed: Callable[[Collection[Committing]], Awaitable[bool]]
    ) -> None:
        """Until everything that was published is committed; `committed` waits for queues."""
        # One wait for all: queues come and go meanwhile.
        queues = (
            self._opened(queue) for vhost in self.vhosts.values() for queue in vhost.queues.values()
        )
        await committed([*queues, *self.waiting_rooms.opened])

    def metered(self) -> Iterator[Metered]:
        """All whose usage counts."""
        yield from self.connections
        for vhost in self.vhosts.values():
            yield from map(self._opened, vhost.queues.values())

    def _queues(self, vhost: Vhost) -> Iterator[OpenQueue]:
        return map(self._opened, vhost.queues.values())

    @staticmethod
    def _opened(queue: QueueLike) -> OpenQueue:
        """Routing knows queues as less than they are: `_open_queue` has made every one of them."""
        return cast("OpenQueue", queue)

    def find_queue(self, vhost: Vhost, name: str, user: object | None) -> OpenQueue:
        """Look a queue up for a connection. Raises ChannelError 404 and 405."""
        return self._opened(vhost.check_queue(name, user))

    # -- users

    async def authenticate(
        self, user: str, password: str | None, peer_host: str = "unknown"
    ) -> Rights | None:
        """What a user may do who proves it; None for everybody else.

        Without a password (None) something else has proved the name: it only must be a user's.
        Raises TooManyGuessesError.
        """
        rights = None
        try:
            rights = await log_in(self._authenticators, Login(user, password, peer_host))
        finally:
            if rights is None:
                self.tally.logins_refused += 1
            else:
                self.tally.logins_accepted += 1
        return rights
