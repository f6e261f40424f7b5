"""Limits of links, and what two nodes tell each other of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LinkLimits", "LinkSettings"]

KIB: Final = 1024
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits that one side of a link accepts; the other side is told in the handshake, and obeys.

    A side that is sent more than it accepts closes the link: the other one is broken.
    """

    # Requests without an answer. Each is a task; a follower asks once for all its partitions.
    requests_max: int = 1024
    # Streams at a time. Each of them can wait with a window of received bytes.
    streams_max: int = 1024
    # Bytes of a stream that may lie here unread, and one message more: some milliseconds of a fast
    # network, so that a stream which is read is never waited for.
    window_bytes: int = 1 * MIB
    # Bytes of one message: a batch with the largest body that a node can be set to take would need
    # more, but then eight of them at a time are what a peer can have us allocate.
    message_bytes_max: int = 32 * MIB
    # Messages in fragments at a time, each in memory of its own until its last fragment is there.
    # More of them would come no faster.
    interleaved_max: int = 8


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Limits and intervals of all links of a node."""

    limits: LinkLimits = LinkLimits()
    # Bytes of a large message that are sent before others have their turn. With 64 KiB a megabyte
    # takes a third more processor time; with 1 MiB a sixth less, and others wait four times as
    # long.
    fragment_bytes: int = 256 * KIB
    # Bytes queued to one peer beyond which nobody may add more: what a fast network takes within
    # 100 ms. One message of any size is let in when nothing waits.
    queued_bytes_max: int = 64 * MIB
    # Bytes that wait in one stream, for credit too, beyond which its sender must stop.
    stream_queued_bytes_max: int = 1 * MIB
    # Bytes of one peer's requests that are being worked on; more are answered BUSY. One request of
    # any size is let in.
    handled_bytes_max: int = 128 * MIB
    # Bytes read at a time where no large message is awaited. One buffer for each link.
    input_bytes: int = 256 * KIB
    # Bytes of memory that is kept for large messages to come, of all links together: what some
    # followers have in their hands at a time.
    kept_bytes_max: int = 32 * MIB
    # Bytes read or written before other sockets have their turn: about half a millisecond.
    turn_bytes_max: int = 1 * MIB
    # Bytes in the transport beyond which the machine keeps the rest: what is still in the machine
    # can be overtaken by smaller messages.
    write_high_water_bytes: int = 256 * KIB
    # Bytes that the kernel takes beyond those that are on their way, for the same reason.
    unsent_bytes_max: int = 512 * KIB
    # Time for connecting, and for the handshake (TLS's own included): both take some round trips.
    connect_ms_max: int = 3_000
    handshake_ms_max: int = 5_000
    # Connections that have not proved to know the secret; the oldest is closed for another one.
    strangers_max: int = 32
    # Connections from nodes: one of each, and more than clusters have.
    accepted_max: int = 256
    # Each side sends one heartbeat in this time, whatever else it sends.
    heartbeat_ms: int = 400
    # Time without a byte after which a peer is taken for dead: stopped processes and cut cables are
    # noticed within two seconds, and four heartbeats in a row are not late by chance.
    silent_ms_max: int = 1_600
    # Time for the answer to a heartbeat. It waits behind what is in the kernel's buffers, so a slow
    # network needs seconds for it.
    answer_ms_max: int = 15_000
    # Failed attempts in a row that open the circuit breaker.
    failures_max: int = 3
    # Requests in a row that were not answered in time, with heartbeats all the while: the link is
    # closed, so that the other side drops what it is stuck with.
    timeouts_max: int = 8
    # First and longest wait before another attempt; it doubles, and half of it is drawn. There are
    # few nodes, and all wait for the one that is back.
    retry_ms_min: int = 100
    retry_ms_max: int = 2_000
    # A link that has held for so long ends a series of failures.
    steady_ms: int = 10_000
    # Time for the last output to be read before a socket is closed anyway.
    close_ms_max: int = 1_000
