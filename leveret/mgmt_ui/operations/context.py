"""The subject of administrative operations: a running node, or the files of a stopped one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leveret.config.handshake import PRODUCT, PRODUCT_VERSION
from leveret.core.admin.node import not_running

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.core.access.limits import NodeLimits
    from leveret.core.definitions.administration import Administration
    from leveret.core.vhost import Vhost
    from leveret.features.alerts.alerting import Alerting
    from leveret.features.batch_leases.batch_leases import BatchLeases
    from leveret.features.dead_letter.redrive import Redrives
    from leveret.features.dedup.interceptor import DedupInterceptor
    from leveret.features.delay.delayed_delivery import DelayedDelivery
    from leveret.features.delay.schedules import Schedules
    from leveret.features.groups.groups import ConsumerGroups
    from leveret.features.staged_batches.batches import BatchesOfNode
    from leveret.features.topics.partition_changes import PartitionChanges
    from leveret.features.transactions.prepared_interceptor import PreparedInterceptor
    from leveret.mgmt_ui.operations.audit import Audit
    from leveret.mgmt_ui.operations.runtime import Runtime
    from leveret.ports.cluster import ClusterView
    from leveret.ports.sessions import Sessions
    from leveret.ports.usage import Account, Usage
    from leveret.storage.key_administration import KeyAdministration
    from leveret.storage.losses import LossLedger
    from leveret.storage.snapshot import Snapshots
    from leveret.storage.store import FileTopicStore

__all__ = [
    "AdminContext",
    "UsageRecords",
    "runtime_of",
]


class UsageRecords(Protocol):
    """Source of usage records: a running node, or the file of a stopped one."""

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """Return the usage of a range of hours (see ports.usage.UsageStore)."""
        ...


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Parts of a node that operations use; `vhosts` belong to `administration`."""

    administration: Administration
    vhosts: Mapping[str, Vhost]
    limits: NodeLimits | None = None
    usage: UsageRecords | None = None
    product: str = PRODUCT
    version: str = PRODUCT_VERSION
    encryption: KeyAdministration | None = None  # None where a command does not ask for it
    broker: Broker | None = None  # of a running node
    alerting: Alerting | None = None  # of a running node
    audit: Audit | None = None  # None where nobody keeps one
    losses: LossLedger | None = None  # None where nothing is kept
    runtime: Runtime | None = None  # of a running node
    sessions: Sessions | None = None  # of a running node: by which messages come and go
    topics: FileTopicStore | None = None  # of a running node
    snapshots: Snapshots | None = None  # of a running node
    cluster: ClusterView | None = None  # of a running node that is a member of one

    @property
    def http_delete(self) -> bool:
        """Whether queues may be deleted by HTTP; always true without a running node."""
        return self.runtime is None or self.runtime.configuration.http_delete

    @property
    def schedules(self) -> Schedules | None:
        """Delayed messages of a running node, else None."""
        return None if self.broker is None else self.broker.schedules

    @property
    def redrives(self) -> Redrives | None:
        """Redrives of a running node, else None."""
        return None if self.broker is None else self.broker.redrives

    @property
    def dedup(self) -> DedupInterceptor | None:
        """De-duplication of a running node, else None."""
        return None if self.broker is None else self.broker.idempotency.interceptor

    @property
    def groups(self) -> ConsumerGroups | None:
        """Consumer groups of a running node, else None."""
        return None if self.broker is None else self.broker.groups

    @property
    def partitions(self) -> PartitionChanges | None:
        """Changes of partitions on a running node, else None."""
        return None if self.broker is None else self.broker.partitions

    @property
    def prepared(self) -> PreparedInterceptor | None:
        """Prepared messages of a running node, else None."""
        return None if self.broker is None else self.broker.idempotency.prepared

    @property
    def batches(self) -> BatchesOfNode | None:
        """Staged batches of a running node, else None."""
        return None if self.broker is None else self.broker.batches

    @property
    def batch_leases(self) -> BatchLeases | None:
        """Batch leases of a running node, else None."""
        return None if self.broker is None else self.broker.batch_leases

    @property
    def delayed(self) -> DelayedDelivery | None:
        """Stores of delayed messages of a running node, else None."""
        return None if self.broker is None else self.broker.delayed


async def policies_followed(node: AdminContext) -> None:
    """Wait until all queues and exchanges follow the policies."""
    # The turn is at it, a part in each pass of the loop, and knows of nobody to wake.
    while node.broker is not None and not node.broker.follows_policies:  # noqa: ASYNC110
        await asyncio.sleep(0)


def runtime_of(node: AdminContext) -> Runtime:
    """Return the process of a running node. Raises AdministrationError for a stopped one."""
    if node.runtime is None:
        raise not_running()
    return node.runtime
