"""Paths in ZooKeeper."""

from __future__ import annotations

__all__ = ["ZnodeLayout"]

_DIGITS = 16  # so that they list in order


class ZnodeLayout:
    """Paths below the chroot of one cluster."""

    def __init__(self, chroot: str) -> None:
        self.root = f"{chroot}/leveret"
        self.head = f"{self.root}/head"
        self.changes = f"{self.root}/changes"
        self.snapshots = f"{self.root}/snapshots"
        self.nodes = f"{self.root}/nodes"
        self.controller = f"{self.root}/controller"

    def batch(self, sequence: int) -> str:
        """Return the path of a batch of changes."""
        return f"{self.changes}/{sequence:0{_DIGITS}}"

    def snapshot(self, sequence: int, token: int) -> str:
        """Return the path of a snapshot."""
        return f"{self.snapshots}/{sequence:0{_DIGITS}}-{token:016x}"

    def node(self, node: int) -> str:
        """Return the path of a node's registration."""
        return f"{self.nodes}/{node}"
