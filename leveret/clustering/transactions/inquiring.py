"""Questions about parts whose outcome nobody tells, as who prepared them is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from leveret.cluster.transactions.decisions import TransactionOutcome
from leveret.clustering.transactions.participants import Participant
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.clustering.transactions.partitions import DecisionPartitions
    from leveret.storage.log import PartitionLog

__all__ = ["NodeLog", "PartInquirer", "PartsToAsk", "PlaceOfParts"]

logger = logging.getLogger(__name__)

# After so long without an outcome it is asked for, though who prepared the part is there: more than
# elections take, for which that node may be waiting.
PATIENCE_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 0.1
IDLE_SECONDS: Final = 1.0


class PlaceOfParts(Protocol):
    """A log with parts that others decide about."""

    @property
    def participant(self) -> str | None:
        """Name of whoever asks; None: it is not for this node to ask."""
        ...

    @property
    def has_parts(self) -> bool:
        """Whether there are parts that may have to be asked for."""
        ...

    def to_ask(self, patience: float) -> list[int]:
        """Return transactions to ask for: of nobody who is there, or older than some seconds."""
        ...

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply or undo a part."""
        ...


class PartsToAsk:
    """Places that have parts, of one node."""

    def __init__(self) -> None:
        self.places: dict[PlaceOfParts, None] = {}
        self.changed = asyncio.Event()

    def add(self, place: PlaceOfParts) -> None:
        """Look after the parts of a place until it has none."""
        self.places[place] = None
        self.changed.set()


class NodeLog:
    """A log that no other node has, after a restart (see PlaceOfParts)."""

    def __init__(self, log: PartitionLog, node: int) -> None:
        self._log = log
        self.participant = str(Participant(node=node, log=log.key.decode()))

    @property
    def has_parts(self) -> bool:
        """Whether there are parts."""
        return bool(self._log.undecided) and not self._log.is_closed

    def to_ask(self, patience: float) -> list[int]:  # noqa: ARG002  # nobody will tell
        """Return all transactions with a part here."""
        return self._log.undecided

    def resolve(self, transaction: int, *, committed: bool) -> None:
        """Apply or undo a part."""
        self._log.resolve(transaction, committed=committed)


class PartInquirer:
    """Asks for the outcomes of parts in `watched`."""

    def __init__(self, watched: PartsToAsk, partitions: DecisionPartitions) -> None:
        self._watched = watched
        self._partitions = partitions

    async def run(self, patience: float = PATIENCE_SECONDS) -> None:
        """Ask until cancelled."""
        watched = self._watched
        while True:
            watched.changed.clear()
            for place in list(watched.places):
                if not place.has_parts:
                    watched.places.pop(place, None)
                    continue
                await self._ask(place, place.to_ask(patience))
            try:
                async with asyncio.timeout(RETRY_SECONDS if watched.places else IDLE_SECONDS):
                    await watched.changed.wait()
            except TimeoutError:
                pass

    async def _ask(self, place: PlaceOfParts, transactions: Iterable[int]) -> None:
        for transaction in transactions:
            name = place.participant
            if name is None:
                return
            try:
                outcome = await self._partitions.outcome(transaction, name)
            except LeveretError as error:
                logger.debug("%s does not know an outcome yet: %s", name, error)
                return
            if outcome is not TransactionOutcome.UNKNOWN and place.participant == name:
                place.resolve(transaction, committed=outcome is TransactionOutcome.COMMITTED)
