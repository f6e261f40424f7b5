"""A broker without sockets, files, threads or a clock: everything happens when a test says so."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from leveret.amqp.lease_commands import LEASE_EXCHANGE, LeaseCommands
from leveret.amqp.unfinished import Unfinished
from leveret.broker.broker import Broker
from leveret.broker.settings import BrokerSettings
from leveret.config import Configuration
from leveret.core.access.authentication import InternalAuthenticator
from leveret.core.access.limits import NodeLimits
from leveret.core.access.permissions import AccessControl
from leveret.core.environment import Environment
from leveret.core.settings.policies import Policies
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.groups.rules import GroupLimits
from leveret.features.rates.rules import NO_RATES, ConnectionRates
from leveret.ports import Durability
from leveret.ports.definitions import (
    Definitions,
    PermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.storage.state import MemoryStateStore
from tests.memory_metadata import MemoryMetadataStore
from tests.support.clock import FakeClock
from tests.support.gate import Gate
from tests.support.memory_log import MemoryTopicLog, MemoryTopicStore
from tests.support.spawning import spawner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leveret.core.queues.queue import Queue
    from leveret.ports.authentication import Authenticator

PASSES_MAX = 1000  # a stage that has not come to rest by then never will


class Stage:
    """One broker, whose loop is `run`: turns and coroutines go on until nothing moves any more."""

    def __init__(
        self,
        durability: Durability = Durability.OS,
        limits: NodeLimits | None = None,
        connection_rates: ConnectionRates = NO_RATES,
        authenticators: Sequence[Authenticator] = (),
        topics: MemoryTopicStore | None = None,
        state: MemoryStateStore | None = None,
        **settings: object,
    ) -> None:
        self.configuration = Configuration(**settings)
        self.reported: list[tuple[object, Exception]] = []
        self.clock = FakeClock(1_700_000_000_000)
        self.look_ns = 0  # how much later it is whenever somebody looks how long he has worked
        self._looks = 0
        self.topics = topics or MemoryTopicStore()
        self.metadata = MemoryMetadataStore()
        self.state = state or MemoryStateStore()
        self.turn = Turn(self.schedule, self.report)
        self.access = AccessControl()
        self.password_checks = Gate(is_open=True)
        self._tasks: list[Coroutine[Any, Any, None]] = []
        self._spawn = spawner(self._tasks)
        numbers = count(1)
        self.broker = Broker(
            Environment(
                turn=self.turn,
                timers=Timers(lambda: self.now, self.clock.call_later, self.clock.seconds),
                spawn=self.spawn,
                report=self.report,
                random_name=lambda: f"random{next(numbers)}",
                random_below=Random(1).randrange,
            ),
            BrokerSettings(
                node_name="leveret@stage",
                platform="stage",
                durability=durability,
                log_exchange=self.configuration.log_exchange,
                counts_every_return=self.configuration.delivery_limit_counts == "returns",
                limits=limits or NodeLimits(),
                connection_rates=connection_rates,
                group_limits=GroupLimits(
                    self.configuration.groups_per_queue_max,
                    self.configuration.group_partitions_per_vhost_max,
                ),
            ),
            access=self.access,
            policies=Policies(),
            authenticators=(
                InternalAuthenticator(self.access, b"k" * 32, self._check_password),
                *authenticators,
            ),
            metadata=self.metadata,
            topics=self.topics,
            state=self.state,
        )
        self.unfinished = Unfinished(
            self.configuration.node_unfinished_bytes_max,
            self.configuration.unfinished_stall_ms,
            self.broker.timers,
            lambda: bool(self.broker.alarms.reason),
        )
        self.broker.publish_interceptors.commands[LEASE_EXCHANGE] = LeaseCommands()
        self.broker.add_vhost(VhostDefinition("/"))
        self.add_user("guest")
        self._scheduled: list[Callable[[], None]] = []

    def add_user(
        self,
        name: str,
        *,
        password: str = "",
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
    ) -> None:
        """Its password is its name unless told."""
        self.access.put_user(UserDefinition(name, f"hash of {password or name}"))
        self.access.put_permission(PermissionDefinition("/", name, configure, write, read))

    async def _check_password(self, _peer_host: str, password_hash: str, password: str) -> bool:
        await self.password_checks
        return password_hash == f"hash of {password}"

    def report(self, subject: object, error: Exception) -> None:
        self.reported.append((subject, error))

    def schedule(self, callback: Callable[[], None]) -> None:
        self._scheduled.append(callback)

    def restore(self, definitions: Definitions) -> None:
        """Start the broker with what an earlier run has left."""
        self.spawn(self.broker.restore(definitions))
        self.run()

    def definitions(self) -> Definitions:
        """Definitions that an Administration knows at the start."""
        return Definitions(
            vhosts=[vhost.definition for vhost in self.broker.vhosts.values()],
            users=self.access.users(),
            permissions=self.access.permissions(),
        )

    def monotonic_ns(self) -> int:
        self._looks += 1
        return self._looks * self.look_ns

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._spawn(work)

    @property
    def now(self) -> int:
        """Milliseconds since 1970."""
        return self.clock.now

    @now.setter
    def now(self, wall_ms: int) -> None:
        self.clock.now = wall_ms

    async def pause(self, seconds: float) -> None:
        gate = Gate()
        self.clock.call_later(seconds, gate.open)
        await gate

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(int(seconds * 1000))
        self.run()

    def run(self) -> None:
        for _ in range(PASSES_MAX):
            if not self.run_once():
                return
        raise AssertionError("the stage does not come to rest")

    def run_once(self) -> bool:
        """One pass of the loop. Returns whether another one is needed."""
        scheduled, self._scheduled = self._scheduled, []
        for callback in scheduled:
            callback()
        moved = self._step_tasks()
        return moved or bool(self._scheduled)

    def _step_tasks(self) -> bool:
        tasks, self._tasks[:] = list(self._tasks), []
        moved = False
        for task in tasks:
            try:
                task.send(None)
            except StopIteration:
                moved = True
            else:
                self._tasks.append(task)
        return moved

    # -- looking behind the scenes

    def queue(self, name: str) -> Queue:
        return self.broker.vhosts["/"].queues[name]

    def log(self, name: str) -> MemoryTopicLog:
        return self.topics.logs["/", name]
