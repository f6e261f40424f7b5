"""What the operator has decided about a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.core.access.limits import NodeLimits
from leveret.core.dedup.idempotent_publish import IdempotencyLimits

if TYPE_CHECKING:
    from leveret.ports import Durability

__all__ = ["BrokerSettings"]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """See the configuration, where each has its reason."""

    node_name: str
    platform: str  # what clients are told that the broker runs on
    durability: Durability  # of durable queues and of the broker's own topics
    log_exchange: bool = False  # whether there is one for log lines, to which others publish
    # "refuse" or "warn": what becomes of a declaration that does not fit its queue, where no policy
    # says otherwise.
    redeclare_mismatch: str = "refuse"
    counts_every_return: bool = True  # against the limit of deliveries; else only failures
    dedup_keys_max: int = 1_000_000  # that one window holds in memory
    limits: NodeLimits = field(default_factory=NodeLimits)
    once_limits: IdempotencyLimits = field(default_factory=IdempotencyLimits)
