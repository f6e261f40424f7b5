"""Settings of the connection to ZooKeeper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from leveret.ports.coordination import CoordinatorSettingsError

__all__ = ["ZooKeeperSettings", "ZooKeeperTls"]

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+)(:\d{1,5})?")
# ZooKeeper refuses these, or gives them a meaning of its own.
_BAD_SEGMENTS = {"", ".", "..", "zookeeper"}


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """TLS to ZooKeeper (its `secureClientPort`). Host names are checked against certificates."""

    ca_file: Path | None = None  # None: the system's authorities
    certificate_file: Path | None = None  # with `key_file`, for servers that ask for one
    key_file: Path | None = None

    def check(self) -> None:
        """Raise CoordinatorSettingsError if a file is missing."""
        if (self.certificate_file is None) != (self.key_file is None):
            raise CoordinatorSettingsError(
                "TLS to ZooKeeper needs both a certificate and its key, or neither"
            )
        for path in (self.ca_file, self.certificate_file, self.key_file):
            if path is not None and not path.is_file():
                raise CoordinatorSettingsError(f"the file {path} for TLS to ZooKeeper is missing")


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Address of ZooKeeper, rights and times.

    `address` is "host:port,host:port/chroot". With `user` and `password` (scheme digest) all znodes
    are made with rights for that user only, else for everybody.

    A node that dies is noticed after `session_timeout_ms`, and one or two ticks of ZooKeeper. The
    default lets another one take over within 5 s if ZooKeeper's `tickTime` is 1000: a session lasts
    two ticks at least, so that the usual tick of 2000 makes 4 s of it, found up to 2 s later.
    Shorter ones expire while a machine swaps or ZooKeeper elects its leader, and partitions move.
    """

    address: str
    user: str = ""
    password: str = ""
    tls: ZooKeeperTls | None = None
    session_timeout_ms: int = 3000
    connect_timeout_ms: int = 300_000  # when a node starts; later it waits as long as it must

    @property
    def hosts(self) -> str:
        """Addresses without the chroot."""
        return self.address.partition("/")[0]

    @property
    def chroot(self) -> str:
        """Path below which everything lies: empty, or begins with a slash."""
        _, slash, path = self.address.partition("/")
        path = path.removesuffix("/")
        return slash + path if path else ""

    def check(self) -> None:
        """Raise CoordinatorSettingsError if something cannot be right."""
        for host in self.hosts.split(","):
            if not _HOST.fullmatch(host):
                raise CoordinatorSettingsError(
                    f"{self.address!r} is no address of ZooKeeper: {host!r} should be host:port"
                )
        if self.chroot and not _BAD_SEGMENTS.isdisjoint(self.chroot[1:].split("/")):
            raise CoordinatorSettingsError(
                f"{self.chroot!r} cannot be the path of a cluster in ZooKeeper"
            )
        if bool(self.user) != bool(self.password) or ":" in self.user:
            raise CoordinatorSettingsError(
                "ZooKeeper needs a user without colon and a password, or neither"
            )
        if self.session_timeout_ms < 1000 or self.connect_timeout_ms < 100:
            raise CoordinatorSettingsError(
                "the session timeout of ZooKeeper is at least 1000 ms, that of connecting 100 ms"
            )
        if self.tls is not None:
            self.tls.check()
