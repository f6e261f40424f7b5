"""Which ZooKeeper servers there are, and how to speak to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.config.cluster import ConnectString

__all__ = ["ZooKeeperSettings", "ZooKeeperTls"]


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """Files of a connection over TLS. The server's name must be the one in its certificate.

    Without `ca_file` the system's authorities are trusted; a certificate of our own, with its key,
    is shown if the server asks for one.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Servers, the length of a session that is asked for, and credentials.

    Servers make a session at least two of their ticks, and at most twenty. It should have two
    seconds or more: kazoo lets two thirds of a second pass between pings then. With a user, all
    that is made can be read and written with the same user and password only.
    """

    connect: ConnectString
    session_ms: int
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ZooKeeperTls | None = None
