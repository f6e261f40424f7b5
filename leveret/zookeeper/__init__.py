"""Coordinator of a cluster on ZooKeeper, by kazoo.

Kazoo runs in threads of its own, and only `connection` knows them: everything else is called on the
event loop. Below the chroot there are

    /leveret/head          how far the sequence of changes has come, and its last snapshot
            /changes/N     one batch of changes each
            /snapshots/S/K chunks of a snapshot
            /nodes/ID      a node that is there (ephemeral)
            /controller    the node that is the controller (ephemeral)

and nothing for each queue. A batch is written together with the head, on condition that the head is
still the one that was read (docs/decisions/0058).
"""

from leveret.zookeeper.coordinator import ZooKeeperCoordinator
from leveret.zookeeper.settings import ZooKeeperSettings

__all__ = ["ZooKeeperCoordinator", "ZooKeeperSettings"]
