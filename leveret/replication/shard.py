"""Entry of a shard in the coordinator."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ShardEntry"]


class ShardEntry(NamedTuple):
    """Leader of a shard, its epoch, and the nodes that have all that is committed.

    Its writes replace one another one by one: `change` counts them, and whoever writes names the
    entry that it has read. Each change of `leader` to a node is a new `epoch`. `isr` is the in-sync
    set, `replicas` are those who copy the shard, in the order in which they are preferred. `joined`
    are those who have been in sync once: as many a log may need to be in sync.
    """

    leader: int | None
    incarnation: int  # of the leader; 0 without one
    epoch: int
    isr: frozenset[int]
    replicas: tuple[int, ...]
    change: int
    joined: frozenset[int] = frozenset()

    def is_led_by(self, node: int, incarnation: int) -> bool:
        """Whether it names a node as the leader, in this incarnation."""
        return (self.leader, self.incarnation) == (node, incarnation)

    def changed(
        self, *, isr: frozenset[int] | None = None, replicas: tuple[int, ...] | None = None
    ) -> ShardEntry:
        """Return the entry that follows in the same reign."""
        isr = self.isr if isr is None else isr
        return self._replace(
            isr=isr,
            joined=self.joined | isr,
            replicas=self.replicas if replicas is None else replicas,
            change=self.change + 1,
        )

    def elected(self, node: int, incarnation: int) -> ShardEntry:
        """Return the entry that makes a node the leader."""
        return self._replace(
            leader=node,
            incarnation=incarnation,
            epoch=self.epoch + 1,
            change=self.change + 1,
        )

    def resigned(self) -> ShardEntry:
        """Return the entry by which the leader gives up and leaves the in-sync set."""
        assert self.leader is not None
        return self._replace(
            leader=None,
            incarnation=0,
            isr=self.isr - {self.leader},
            change=self.change + 1,
        )
