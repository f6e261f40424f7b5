"""Leadership of decisions is handed over when no transaction has a number of the present leader.

The next leader would take those for aborted that are not decided by then. So the leader gives no
more numbers, and has all nodes give theirs back, which they do once they use none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.clustering.transactions.decision_log import LedDecisions
    from leveret.replication.replicator import Replicator
    from leveret.storage.log import PartitionLog

__all__ = ["PausedDecisions"]


@dataclass(frozen=True, slots=True, eq=False)
class PausedDecisions:
    """A partition of the decisions that is about to be handed over: questions are asked again."""

    key: str
    decisions: LedDecisions
    log: PartitionLog
    replicator: Replicator

    @property
    def is_over(self) -> bool:
        """Whether this node has ceased to lead, or leads on (see PausedLeadership)."""
        return self.decisions.has_ended or not self.decisions.is_paused

    @property
    def is_committed(self) -> bool:
        """Whether all decisions are committed."""
        return self.log.committed >= self.log.end

    def confirm(self) -> None:
        """Have the followers know which decisions are forgotten."""
        self.log.write_settlements()

    def is_ready_for(self, node: int) -> bool:
        """Whether a node has all that is in the log."""
        led = self.replicator.led(self.key)
        return led is not None and led.has_all(node)

    def resume(self) -> None:
        """Lead on, if this node still leads."""
        self.decisions.is_paused = self.decisions.is_leaving = False
