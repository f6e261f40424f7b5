"""Tells whoever started the node when it serves, and when it begins to stop.

On standard output stands one line, which scripts and tests wait for:

    ready amqp=127.0.0.1:5672 http=127.0.0.1:15672 prometheus=127.0.0.1:15692 data=/var/lib/leveret

systemd (`Type=notify`) and whoever else speaks its protocol are told through the socket that they
have named in the environment; see sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leveret.mgmt_ui.managed import Listener

__all__ = ["tell_ready", "tell_stopping"]

log = logging.getLogger(__name__)

SOCKET_VARIABLE = "NOTIFY_SOCKET"
# What the ready line calls a protocol, where RabbitMQ's name for it is no word.
SCHEMES = {"amqp/ssl": "amqps", "http/prometheus": "prometheus"}


def tell_ready(listeners: Sequence[Listener], data_dir: Path) -> None:
    """The node takes clients now."""
    addresses = " ".join(
        f"{SCHEMES.get(each.protocol, each.protocol)}={each.host}:{each.port}" for each in listeners
    )
    print(f"ready {addresses} data={data_dir}", flush=True)
    _notify(f"READY=1\nSTATUS=Serving {addresses}")


def tell_stopping() -> None:
    """The node takes no more clients."""
    _notify("STOPPING=1")


def _notify(state: str) -> None:
    """Send a state to the service manager, if there is one. Its absence stops nothing."""
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
        log.warning("cannot tell the service manager %r: %s", state.partition("=")[0], error)
