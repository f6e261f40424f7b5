"""Parts of atomic writes that the leader of a partition prepares: at the node of the client.

    PREPARE ─► PREPARED ── the decision ── RESOLVE ─► RESOLVED

What the leader has prepared, the next leader has as well, and asks for the outcome. So nothing is
sent twice: a part that was not prepared before its leader went has failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.clustering.forwarding.wire import (
    PrepareOutcome,
    PrepareTransaction,
    ResolveTransaction,
    TransactionPrepared,
    TransactionResolved,
)
from leveret.clustering.transactions.participants import Participant
from leveret.errors import StorageError
from leveret.replication.replica import partition_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.clustering.forwarding.remote_partition import RemotePartition
    from leveret.core.logs.log_writer import Waiter
    from leveret.ports.records import BatchBuilder

__all__ = ["LeaderGoneError", "RemotePart", "RemoteParts"]

# Bytes of a part, which is one message: links take no more than 32 MiB.
PREPARE_BYTES_MAX: Final = 31 << 20
LEADER_MS_MAX: Final = 10_000  # until there is a leader, an election included


class LeaderGoneError(StorageError):
    """The leader went before it answered."""


@dataclass(slots=True)
class RemotePart:
    """A part of an atomic write, whose `message` has not been sent while it is there."""

    prepared: Callable[[Exception | None], None] | None
    seen: Waiter | None
    message: PrepareTransaction | None = None
    participant: str = ""
    is_resolved: bool = False  # the leader is told, and has not answered

    def answer(self, error: Exception | None) -> None:
        """Tell that it is prepared, or is not."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared(error)

    def show(self) -> None:
        """Tell that it is carried out, or will be by whoever leads."""
        seen, self.seen = self.seen, None
        if seen is not None:
            seen.done(failed=False)


class RemoteParts:
    """Parts in one partition; also what atomic writes know of its log."""

    is_replicated = True
    end = 0  # records have no offsets before the leader has them

    def __init__(self, partition: RemotePartition) -> None:
        self._partition = partition
        self._parts: dict[int, RemotePart] = {}

    def participant(self, transaction: int) -> str:
        """Return the name of the partition among those that take part; empty: it has no part."""
        part = self._parts.get(transaction)
        return "" if part is None else part.participant

    def _leader_name(self) -> str:
        partition = self._partition
        definition, (node, epoch) = partition.definition, partition.leader
        key = partition_key(definition.incarnation, partition.number)
        if definition.home is None:
            return str(Participant(key, epoch))
        return str(Participant(key, node=node, session=epoch))

    # -- preparing

    def prepare(
        self,
        transaction: int,
        records: BatchBuilder,
        ranges: Sequence[tuple[int, int]],
        part: RemotePart,
    ) -> None:
        """Have the leader prepare a part. Raises StorageError.

        Without a leader it waits a while, unless it settles what an earlier one has delivered.
        """
        partition = self._partition
        if ranges and not partition.is_connected:
            raise LeaderGoneError(f"{partition} has no leader: what was delivered will be again")
        batch = records.seal(0) if records.count else None
        if batch is not None and batch.size > PREPARE_BYTES_MAX:
            text = f"a transaction has more than {PREPARE_BYTES_MAX} bytes for {partition}"
            raise StorageError(text)
        part.message = PrepareTransaction(transaction, list(ranges), batch)
        self._parts[transaction] = part
        if partition.is_connected:
            self._send(part)
        else:
            give_up = partial(self._give_up, transaction)
            partition.services.timers.after(LEADER_MS_MAX, give_up)

    def _send(self, part: RemotePart) -> None:
        message, part.message = part.message, None
        if message is not None:
            part.participant = self._leader_name()
            self._partition.post(message)

    def _give_up(self, transaction: int) -> None:
        part = self._parts.get(transaction)
        if part is not None and part.message is not None:
            del self._parts[transaction]
            part.answer(LeaderGoneError(f"{self._partition} has no leader"))

    def connected(self) -> None:
        """Send what has waited for a leader."""
        for part in list(self._parts.values()):
            self._send(part)

    def handle(self, message: TransactionPrepared | TransactionResolved) -> None:
        """Handle an answer of the leader."""
        part = self._parts.get(message.transaction)
        if part is None:
            return
        if isinstance(message, TransactionResolved):
            self._parts.pop(message.transaction).show()
        elif message.outcome is PrepareOutcome.PREPARED:
            part.answer(None)
        else:
            text = message.text or f"{self._partition} has no room for a transaction"
            self._parts.pop(message.transaction).answer(StorageError(text))

    # -- resolving

    def carry_out(self, transaction: int, seen: Waiter | None) -> None:
        """Tell the leader that a write has committed."""
        part = self._parts.get(transaction)
        if part is None:  # it had nothing to prepare
            if seen is not None:
                seen.done(failed=False)
            return
        part.seen = seen or part.seen
        if self._partition.is_connected:
            part.is_resolved = True
            self._partition.post(ResolveTransaction(transaction, True))
        else:  # another leader asks for the outcome
            self._parts.pop(transaction).show()

    def undo(self, transaction: int) -> None:
        """Tell the leader that a write has failed."""
        if self._parts.pop(transaction, None) is not None and self._partition.is_connected:
            self._partition.post(ResolveTransaction(transaction, False))

    def leader_gone(self, reason: str, *, with_unsent: bool = False) -> None:
        """Give up parts that the leader has not prepared; of outcomes the next one hears itself.

        What it has prepared stays: the next leader has it.
        """
        for transaction, part in list(self._parts.items()):
            is_unsent = part.message is not None
            if part.is_resolved:
                self._parts.pop(transaction).show()
            elif part.prepared is not None and (with_unsent or not is_unsent):
                error = LeaderGoneError(f"{self._partition}: {reason}")
                self._parts.pop(transaction).answer(error)
