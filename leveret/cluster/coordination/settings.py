"""Which ZooKeeper servers there are, and how to speak to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["ConnectString", "ZooKeeperSettings", "ZooKeeperTls", "parse_connect_string"]

PORT = 2181  # IANA's
SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
SESSION_MS = 4_000
"""Requested session; servers make it at least two of their ticks, and at most twenty.

It should have two seconds or more: kazoo lets two thirds of a second pass between pings then.
"""


class ConnectString(NamedTuple):
    """Servers, each as `host:port`, and the path below which everything is kept ("" for all)."""

    servers: tuple[str, ...]
    root: str


def parse_connect_string(text: str) -> ConnectString:
    """Return what is named by `zk1:2181,zk2:2181/path`; a port is 2181 if it is left out.

    Raises ValueError.
    """
    hosts, slash, path = text.partition("/")
    names = path.split("/") if slash and path else []
    if any(
        not name.isascii() or not name.isprintable() or name in {"", ".", ".."} for name in names
    ):
        raise ValueError(f"no path of ZooKeeper: /{path}")
    return ConnectString(
        tuple(_server(host.strip()) for host in hosts.split(",")),
        "".join(f"/{name}" for name in names),
    )


def _server(text: str) -> str:
    found = SERVER.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise ValueError(f"no address of a ZooKeeper server: {text!r}")
    return f"{found['host']}:{port}"


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """Files of a connection over TLS. The server's name must be the one in its certificate.

    Without `ca_file` the system's authorities are trusted; a certificate of our own, with its key,
    is shown if the server asks for one.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Servers, the length of a session, and credentials.

    With a user, all that is made can be read and written with the same user and password only.
    """

    connect: ConnectString
    session_ms: int = SESSION_MS
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ZooKeeperTls | None = None
