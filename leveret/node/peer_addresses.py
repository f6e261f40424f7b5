"""Addresses of the other nodes: those that are registered are dialed, others are not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.ports.host_port import parse_host_port

if TYPE_CHECKING:
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator, NodeRegistration

__all__ = ["PeerAddresses"]

logger = logging.getLogger(__name__)


class PeerAddresses:
    """Tells the links of node `own` where the others are, each time that some come or go."""

    def __init__(self, own: int, coordinator: Coordinator, links: Links) -> None:
        self._own = own
        self._coordinator = coordinator
        self._links = links
        self._known: dict[int, NodeRegistration] = {}
        self._ended = False

    def start(self) -> None:
        """Follow the coordinator."""
        self._coordinator.follow_nodes(self._look)
        self._look()

    def end(self) -> None:
        """Dial nobody from now on."""
        self._ended = True

    def _look(self) -> None:
        if self._ended:
            return
        nodes = {node: each for node, each in self._coordinator.nodes.items() if node != self._own}
        for node in [node for node in self._known if node not in nodes]:
            del self._known[node]
            self._links.clear_address(node)
        for node, registration in nodes.items():
            if self._known.get(node) != registration:
                self._known[node] = registration
                self._dial(registration)

    def _dial(self, registration: NodeRegistration) -> None:
        """Dial a node that has begun, or begun anew: what failed before does not count."""
        self._links.clear_address(registration.node)
        try:
            host, port = parse_host_port(registration.peer_address)
            if port is None:
                raise ValueError("its port is missing")  # noqa: TRY301
        except ValueError as error:
            logger.warning(
                "node %d cannot be dialed at %.255r: %s",
                registration.node,
                registration.peer_address,
                error,
            )
        else:
            self._links.set_address(registration.node, host, port)
