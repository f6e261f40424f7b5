from leveret.core.ledgers.ledger import Ledger
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch

class PriorityLedger(Ledger):
    """Stub; at run time not a subclass, but with the same methods."""

    def __init__(
        self,
        first: int,
        committed: int,
        settled: RangeSet,
        redelivered_stop: int = 0,
        priority_max: int = 255,
        otherwise: int = 0,
        returns_first: bool = False,
    ) -> None: ...
    def index(self, batch: Batch) -> None: ...
    def truncate(self, offset: int) -> None: ...
