"""Dependencies of the features, injected by the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.core.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.command_replies import CommandReplies
    from leveret.core.feature_counters import FeatureCounters
    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.logs.atomic import AtomicWrites
    from leveret.core.logs.internal_topics import InternalTopics
    from leveret.core.publish_interceptors import PublishInterceptors
    from leveret.core.telemetry.event_exchange import Events
    from leveret.core.telemetry.trace import Tracer
    from leveret.core.vhost import Vhost
    from leveret.ports import StateStore

__all__ = ["CoreServices"]


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
