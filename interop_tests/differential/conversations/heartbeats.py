"""Heartbeats: sent when the broker has nothing to say, missed when the client has not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pamqp import heartbeat

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


@pytest.mark.covers("B-009")
def heartbeats_are_sent_when_idle(talk: Talk) -> None:
    connection = talk.connection(heartbeat_seconds=1)
    for _ in range(2):
        _, found = connection.next_frame(3)
        talk.note(f"got {type(found).__name__}")
        connection.send_bytes(heartbeat.Heartbeat.marshal())
    connection.channel().count("amq.none")


@pytest.mark.covers("B-009")
def silent_client_is_cut_off(talk: Talk) -> None:
    """Between two and three intervals after its last byte; a slow machine may add to that."""
    connection = talk.connection(heartbeat_seconds=1)
    started = time.monotonic()
    found: object = None
    while not isinstance(found, str):
        _, found = connection.next_frame(10)
    lasted = time.monotonic() - started
    talk.note(f"{found} after at least 1.5 s: {lasted > 1.5}, within 6 s: {lasted < 6}")


@pytest.mark.covers("B-009")
def any_traffic_counts_as_a_heartbeat(talk: Talk) -> None:
    connection = talk.connection(heartbeat_seconds=1)
    channel = connection.channel()
    for _ in range(8):
        time.sleep(0.5)
        channel.qos(1)
