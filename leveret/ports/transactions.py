"""Port of those who decide transactions whose parts lie on several nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

__all__ = ["TransactionDecider"]


class TransactionDecider(Protocol):
    """Decides in a log that has replicas, so that a decision outlasts the node that asked for it.

    `Any` is a log with a part: one of this node, or what stands here for one of another node.
    """

    def is_needed(self, logs: Collection[Any]) -> bool:
        """Whether parts in these logs are not for this node to decide about."""
        ...

    def draw(self) -> int | None:
        """Return the number of a new transaction; None while there is nobody who decides.

        Raises StorageError after that has lasted for long.
        """
        ...

    def when_ready(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once `draw` should be called again."""
        ...

    def ended(self, transaction: int) -> None:
        """Note that a transaction was resolved in the logs of this node."""
        ...

    def decide(
        self,
        transactions: Mapping[int, Collection[Any]],
        decided: Callable[[Exception | None], None],
    ) -> None:
        """Commit transactions that are prepared in all these logs, all of them or none.

        `decided` is called once the outcome is certain, possibly before this returns: with None, or
        with the error if none of them has committed, nor ever will.
        """
        ...
