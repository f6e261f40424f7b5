"""Notification that the node is ready, or begins to stop.

A node is ready when every configured port answers. Standard output then gets one line, which
scripts and tests wait for:

    ready amqp=127.0.0.1:5672 http=127.0.0.1:15672 prometheus=127.0.0.1:15692 data=/var/lib/leveret

Where lines of the log are JSON, so is this one:

    {"ready": {"amqp": "127.0.0.1:5672", "http": "127.0.0.1:15672", …, "data": "/var/lib/leveret"}}

systemd (`Type=notify`) and others that speak its protocol are notified through the socket named in
the environment; see sd_notify(3).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.mgmt_ui.operations.runtime import Listener

__all__ = ["tell_ready", "tell_serving", "tell_stopping"]

log = logging.getLogger(__name__)

SOCKET_VARIABLE = "NOTIFY_SOCKET"
# What the ready line calls a protocol, where RabbitMQ's name for it is no word.
ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104  # to be recognised, not to be listened on
SCHEMES = {"amqp/ssl": "amqps", "http/prometheus": "prometheus"}


def tell_serving(amqp: Sequence[Listener], others: Sequence[Listener]) -> None:
    """Log that AMQP clients are served, if other ports have yet to answer."""
    if others:
        addresses = ", ".join(map(_address, amqp))
        names = ", ".join(SCHEMES.get(each.protocol, each.protocol) for each in others)
        log.info("AMQP clients are served at %s; starting %s", addresses, names)


def tell_ready(
    listeners: Sequence[Listener], data_dir: Path, seconds: float, log_format: str
) -> None:
    """Announce that every port answers, `seconds` after the node's start."""
    bound = {SCHEMES.get(each.protocol, each.protocol): _address(each) for each in listeners}
    addresses = " ".join(f"{name}={address}" for name, address in bound.items())
    if log_format == "json":
        _print(json.dumps({"ready": {**bound, "data": str(data_dir)}}))
    else:
        _print(f"ready {addresses} data={data_dir}")
    pages = _pages(listeners)
    log.info("ready after %.1f s%s", seconds, f": the web UI is at {pages}" if pages else "")
    _notify(f"READY=1\nSTATUS=Serving {addresses}")


def _print(line: str) -> None:
    """Print a line, if anybody reads it: a script may want but the first one.

    After an error nothing is printed any more: what is left in the buffer would fail again at each
    line, and make the node's exit status an error.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        log.warning("cannot print that the node is ready: %s", error.strerror)
        sys.stdout = None


def _address(listener: Listener) -> str:
    return f"{listener.host}:{listener.port}"


def _pages(listeners: Sequence[Listener]) -> str:
    """Return the web UI's address for a browser on this machine; empty if there is none."""
    for each in listeners:
        if each.protocol in {"http", "https"}:
            host = "localhost" if each.host in ANY_HOST else each.host
            name = f"[{host}]" if ":" in host else host
            return f"{each.protocol}://{name}:{each.port}/"
    return ""


def tell_stopping() -> None:
    """Announce that the node takes no more clients."""
    _notify("STOPPING=1")


def _notify(state: str) -> None:
    """Send a state to the service manager, if there is one; errors are ignored."""
    address = os.environ.get(SOCKET_VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # of the abstract name space
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.connect(address)
            notifying.send(state.encode())
    except OSError as error:
        log.warning("cannot tell the service manager '%s': %s", state.partition("=")[0], error)
