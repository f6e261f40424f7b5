"""Dependencies of the core, injected by the node, and of the features, injected by the broker.

Neither has a clock, an event loop or a random source of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from leveret.core.command_replies import CommandReplies
    from leveret.core.exchanges import RandomBelow
    from leveret.core.feature_counters import FeatureCounters
    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.logs.atomic import AtomicWrites
    from leveret.core.logs.internal_topics import InternalTopics
    from leveret.core.publish_interceptors import PublishInterceptors
    from leveret.core.telemetry.event_exchange import Events
    from leveret.core.telemetry.trace import Tracer
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost
    from leveret.ports import StateStore

__all__ = ["CoreServices", "Environment"]

CHANCES = 1 << 30  # resolution of random fractions


@dataclass(frozen=True, slots=True)
class Environment:
    """Injected functions for time, tasks, error reports and randomness.

    `spawn(coroutine)` runs it in the node's task group; `report(subject, error)` reports an
    unexpected error; `random_name()` returns a unique string, `random_below(n)` one of 0 … n - 1.
    """

    turn: Turn
    timers: Timers
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    random_name: Callable[[], str]
    random_below: RandomBelow

    def common(self) -> dict[str, Any]:
        """Return these functions by name, for an environment that offers more."""
        return {each.name: getattr(self, each.name) for each in fields(Environment)}

    def random_part(self) -> float:
        """Return a random number in [0, 1)."""
        return self.random_below(CHANCES) / CHANCES


@dataclass(frozen=True, slots=True)
class CoreServices(Environment):
    """Environment of the features of one broker, with what its core offers to them.

    Features add themselves to `publish_interceptors`. `vhosts` are those that exist, by name.
    """

    vhosts: Mapping[str, Vhost]
    state: StateStore
    atomic: AtomicWrites
    internal_topics: InternalTopics
    publisher: InternalPublisher
    publish_interceptors: PublishInterceptors
    command_replies: CommandReplies
    events: Events
    tracer: Tracer
    feature_counters: FeatureCounters
