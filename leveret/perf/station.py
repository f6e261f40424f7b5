"""One connection of a worker: the socket, its link, and its endpoints."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from leveret.perf.wire import Link

if TYPE_CHECKING:
    from leveret.perf.publisher import LoadPublisher
    from leveret.perf.session import LoadSession

__all__ = ["Station"]


class Station:
    """A session that becomes a link once `hand_over` is called."""

    def __init__(self, session: LoadSession, poll: select.epoll) -> None:
        self.session = session
        self.link = Link(session.socket.fileno(), session.frame_bytes_max)
        self.publishers: list[LoadPublisher] = []
        self.consumes: list[bytes] = []
        self._poll = poll
        self._watching_writes = False

    def hand_over(self) -> None:
        """Hand the socket over to the link, which alone reads and writes it from now on."""
        self.session.socket.setblocking(False)
        self._poll.register(self.link.fd, select.EPOLLIN)
        if self.session.received:
            self.link.feed(bytes(self.session.received))

    def subscribe(self) -> None:
        """Send the prepared basic.consume methods."""
        if self.consumes:
            self.link.send(b"".join(self.consumes))
            self.consumes.clear()
            self.watch()

    def serve(self, mask: int) -> None:
        """Read what has come, then write the answers."""
        if mask & ~select.EPOLLOUT:
            self.link.receive()
        self.link.flush()
        self.watch()

    def publish(self, allowance: int) -> bool:
        """Publish as far as possible; return whether more could be published at once."""
        eager = False
        for publisher in self.publishers:
            publisher.pump(allowance)
            eager = eager or publisher.eager
        self.watch()
        return eager and not self.link.unsent

    def watch(self) -> None:
        """Watch for writability while, and only while, output is waiting."""
        unsent = self.link.unsent
        if unsent != self._watching_writes:
            self._watching_writes = unsent
            self._poll.modify(self.link.fd, select.EPOLLIN | (select.EPOLLOUT if unsent else 0))

    def close(self) -> None:
        """Unregister from the poll and close the socket."""
        self._poll.unregister(self.link.fd)
        self.session.socket.close()
