"""Two machines of a link, joined by a pipe of bytes without sockets."""

from __future__ import annotations

from leveret.links.buffers import MessageBuffers
from leveret.links.counters import PeerCounters
from leveret.links.machine import LinkMachine
from leveret.links.settings import LinkLimits, LinkSettings

SMALL = LinkSettings(
    limits=LinkLimits(
        requests_max=4,
        streams_max=3,
        window_bytes=40_000,
        message_bytes_max=200_000,
        interleaved_max=2,
    ),
    fragment_bytes=10_000,
    stream_queued_bytes_max=60_000,
    queued_bytes_max=1_000_000,
    handled_bytes_max=250_000,
    input_bytes=20_000,
)


def feed(machine: LinkMachine, data: bytes) -> None:
    """Give a machine all these bytes."""
    while data:
        room = machine.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        machine.received(count)


def events(machine: LinkMachine) -> list:
    """Take the events of a machine, their payloads as bytes."""
    found, machine.events = machine.events, []
    return [
        event._replace(payload=bytes(event.payload)) if hasattr(event, "payload") else event
        for event in found
    ]


class Pipe:
    """Dialer and acceptor of one link, and what is on its way between them."""

    def __init__(self, settings: LinkSettings = SMALL) -> None:
        buffers = MessageBuffers(1_000_000)
        self.dialer, self.acceptor = (
            LinkMachine(settings, settings.limits, PeerCounters(), buffers, is_dialer=is_dialer)
            for is_dialer in (True, False)
        )
        self.under_way = {True: b"", False: b""}  # from the dialer; from the acceptor

    def send(self, from_dialer: bool, bytes_max: int = 1 << 30) -> None:
        """Let a side put output on the way."""
        source = self.dialer if from_dialer else self.acceptor
        self.under_way[from_dialer] += b"".join(source.take(bytes_max))

    def carry(self, from_dialer: bool, count: int | None = None) -> None:
        """Let so many bytes arrive."""
        data = self.under_way[from_dialer]
        count = len(data) if count is None else min(count, len(data))
        self.under_way[from_dialer] = data[count:]
        feed(self.acceptor if from_dialer else self.dialer, data[:count])

    def settle(self) -> None:
        """Let everything arrive that is sent, in both directions."""
        while self.dialer.has_output or self.acceptor.has_output or any(self.under_way.values()):
            for side in (True, False):
                self.send(side)
                self.carry(side)
