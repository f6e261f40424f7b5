"""Ends of links without sockets, whose time stands still."""

from __future__ import annotations

from functools import partial

from leveret.cluster.links.link import LinkLimits, NodeLink
from leveret.replication.codec import LENGTH
from tests.cluster.links.peers import acceptor, opener
from tests.support.clock import FakeClock


def framed(*frames):
    return b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)


class Loop(FakeClock):
    """Loop whose time a test lets pass."""

    time = FakeClock.seconds

    def call_later(self, seconds, callback, *arguments):
        return super().call_later(seconds, partial(callback, *arguments))

    def call_soon(self, callback, *arguments):
        return self.call_later(0, callback, *arguments)


class Owner:
    """Notes what a link tells."""

    def __init__(self):
        self.events = []
        self.when_received = None

    def opened(self, link):
        self.events.append("opened")

    def received(self, link, frame):
        assert type(frame) is bytearray
        self.events.append(bytes(frame))
        if self.when_received is not None:
            self.when_received(link)

    def ended(self, link, reason):
        self.events.append(f"ended: {reason}")

    @property
    def ends(self):
        return [event for event in self.events if str(event).startswith("ended")]


class Transport:
    """Transport whose bytes a test carries."""

    def __init__(self):
        self.written = []
        self.unread_bytes = 0
        self.state = "open"

    def get_extra_info(self, name):
        return self if name == "socket" else ("host", 1)

    def setsockopt(self, *option):
        self.option = option

    def get_write_buffer_size(self):
        return self.unread_bytes

    def write(self, data):
        self.written.append(data)

    def writelines(self, pieces):
        self.written += pieces

    def close(self):
        self.state = "closed"

    def abort(self):
        self.state = "aborted"

    def take(self):
        data = b"".join(self.written)
        self.written.clear()
        return data


class End:
    """One end of a link, without a socket."""

    def __init__(self, handshake, loop=None, **limits):
        self.loop = loop or Loop()
        self.owner, self.transport = Owner(), Transport()
        self.link = NodeLink(self.owner, handshake, LinkLimits(**limits), self.loop)
        self.link.connection_made(self.transport)

    @property
    def events(self):
        return self.owner.events

    def feed(self, data, sizes=()):
        """Have bytes come, in parts of these sizes at most; the last one goes on."""
        sizes = iter(sizes)
        size = 1 << 30
        left = memoryview(data)
        while left:
            size = next(sizes, size)
            buffer = self.link.get_buffer(-1)
            count = min(size, len(buffer), len(left))
            buffer[:count] = left[:count]
            left = left[count:]
            self.link.buffer_updated(count)


def pass_on(source, target, sizes=()):
    """Carry what an end has written to the other one. Returns whether there was something."""
    data = source.transport.take()
    target.feed(data, sizes)
    return bool(data)


def talk(one, other, sizes=()):
    """Carry bytes until both ends are silent."""
    while pass_on(one, other, sizes) or pass_on(other, one, sizes):
        pass


def linked(**limits):
    """Return both ends of an open link: the opener's, the acceptor's."""
    loop = Loop()
    ends = End(opener(), loop, **limits), End(acceptor(), loop, **limits)
    talk(*ends)
    assert [end.events for end in ends] == [["opened"], ["opened"]]
    for end in ends:
        end.events.clear()
    return ends
