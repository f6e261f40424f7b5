"""Settings of a broker that the operator configures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.core.access.limits import NodeLimits
from leveret.features.batch_leases.rules import LeaseLimits
from leveret.features.dedup.interceptor import IdempotencyLimits
from leveret.features.groups.rules import GroupLimits
from leveret.features.rates.rules import NO_RATES, ConnectionRates
from leveret.features.staged_batches.rules import BatchLimits

if TYPE_CHECKING:
    from leveret.ports import Durability

__all__ = ["BrokerSettings"]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Configured settings; `leveret.config` gives the reason for each."""

    node_name: str
    platform: str  # platform shown to clients
    durability: Durability  # of durable queues and of the broker's own topics
    log_exchange: bool = False  # whether to create the exchange for log lines
    # "refuse" or "warn": handling of a mismatching queue declaration, unless a policy says
    # otherwise.
    redeclare_mismatch: str = "refuse"
    counts_every_return: bool = True  # against the delivery limit; else only failures
    dedup_keys_max: int = 1_000_000  # ids that one window keeps in memory
    limits: NodeLimits = field(default_factory=NodeLimits)
    connection_rates: ConnectionRates = NO_RATES
    once_limits: IdempotencyLimits = field(default_factory=IdempotencyLimits)
    batch_limits: BatchLimits = field(default_factory=BatchLimits)
    lease_limits: LeaseLimits = field(default_factory=LeaseLimits)
    group_limits: GroupLimits = field(default_factory=GroupLimits)
