"""Names of those who take part in a transaction, as its decision keeps them.

    KEY@EPOCH         a partition, and the epoch in which its part was prepared
    @NODE.SESSION     the node whose client commits, as long as its process lives
    @NODE.SESSION/KEY a partition of a queue that lives and ends with that process
    !NODE/LOG         a log that only this node has, by its key in the store

Whoever has led a partition in that epoch or later, and has no part of the transaction, has had the
outcome in all copies in sync. So nobody will lead it who has not.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Participant"]


class Participant(NamedTuple):
    """Parts of a name. Without a partition `key` and a `log`, it is a node's process."""

    key: str = ""
    epoch: int = 0
    node: int | None = None
    session: int = 0
    log: str = ""

    @classmethod
    def parse(cls, name: str) -> Participant:
        """Return the parts of a name. Raises ValueError."""
        if name.startswith("!"):
            node, _, log = name[1:].partition("/")
            return cls(node=int(node), log=log)
        if name.startswith("@"):
            process, _, key = name[1:].partition("/")
            node, _, session = process.partition(".")
            return cls(key, node=int(node), session=int(session))
        key, at, epoch = name.rpartition("@")
        if not at:
            raise ValueError(f"{name!r} names nobody who takes part in transactions")
        return cls(key, int(epoch))

    def __str__(self) -> str:
        if self.node is None:
            return f"{self.key}@{self.epoch}"
        if self.log:
            return f"!{self.node}/{self.log}"
        process = f"@{self.node}.{self.session}"
        return f"{process}/{self.key}" if self.key else process
