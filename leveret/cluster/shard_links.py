"""Messages of one shard over the links of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.replication.codec import LinkDecoder, LinkEncoder, MalformedMessageError
from leveret.replication.messages import Acknowledge, Attach, Detached

if TYPE_CHECKING:
    from leveret.cluster.links.link import NodeLink
    from leveret.cluster.links.links import Links
    from leveret.cluster.replica_runner import ReplicaRunner
    from leveret.replication.messages import Message

__all__ = ["ShardLinks"]

FROM_FOLLOWERS = (Attach, Acknowledge, Detached)


class ShardLinks:
    """`LinkObserver` of a node's `links`, and `RunnerLinks` of a replica's `runner`.

    A follower opens a link to its leader. If there are links in both directions with a node, the
    end of one ends the other: the replica knows nodes, not links.
    """

    links: Links
    runner: ReplicaRunner

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._present: dict[tuple[bool, int], tuple[NodeLink, LinkEncoder, LinkDecoder]] = {}

    # -- RunnerLinks

    def send(self, node: int, message: Message) -> None:
        """Send a message over the present link with a node (see RunnerLinks)."""
        present = self._present.get((isinstance(message, FROM_FOLLOWERS), node))
        if present is not None:
            link, encoder, _ = present
            link.send(encoder.encode(message))

    def connect(self, node: int | None) -> None:
        """Keep a link open to a node, and to no other (see RunnerLinks)."""
        self.links.connect(node)

    def disconnect(self, node: int) -> None:
        """Close the present link to or from a node (see RunnerLinks)."""
        self.links.disconnect(node, "the replica begins anew")

    # -- LinkObserver

    def connected(self, link: NodeLink) -> None:
        """Note a link (see LinkObserver)."""
        key = link.is_outgoing, link.peer.node
        self._present[key] = link, LinkEncoder(self._shard), LinkDecoder(self._shard)
        if link.is_outgoing:
            self.runner.connected(link.peer.node)

    def received(self, link: NodeLink, frame: bytearray) -> None:
        """Decode a message, and hand it to the replica (see LinkObserver)."""
        node = link.peer.node
        _, _, decoder = self._present[link.is_outgoing, node]
        try:
            message = decoder.decode(frame)
        except MalformedMessageError as error:
            link.abort(str(error))
            return
        if isinstance(message, FROM_FOLLOWERS) is link.is_outgoing:
            link.abort(f"{type(message).__name__} does not come from this end")
            return
        self.runner.received(node, message)

    def disconnected(self, link: NodeLink, reason: str) -> None:
        """Tell the replica that its link with a node has ended (see LinkObserver)."""
        node = link.peer.node
        del self._present[link.is_outgoing, node]
        self.links.disconnect(node, reason)
        self.runner.disconnected(node)
