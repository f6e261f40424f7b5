"""Settings: membership of a cluster, which ZooKeeper coordinates."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from leveret.config.settings import PORT_MAX, Settings
from leveret.ports import Durability

__all__ = ["NODE_MAX", "ClusterSettings", "ConnectString", "parse_connect_string"]

ZOOKEEPER_PORT: Final = 2181  # IANA's
ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")
NODE_MAX: Final = 0xFFFF  # links have 16 bits for it


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
        tuple("{}:{}".format(*_address(host.strip(), ZOOKEEPER_PORT)) for host in hosts.split(",")),
        "".join(f"/{name}" for name in names),
    )


def _address(text: str, port: int) -> tuple[str, int]:
    """Return the host and port of HOST or HOST:PORT. Raises ValueError."""
    found = ADDRESS.fullmatch(text)
    number = int(found["port"] or port) if found else 0
    if found is None or not 0 < number <= PORT_MAX:
        raise ValueError(f"no address of a server: {text!r}")
    return found["host"], number


class ClusterSettings(Settings):
    """A node's place in a cluster. All of it is without effect unless `cluster` is set."""

    cluster: str = Field(
        "",
        description="ZooKeeper servers that coordinate the cluster, and the path of the cluster in "
        "them: `zk1:2181,zk2:2181,zk3:2181/leveret`. Empty for a single node.",
    )
    node_id: int | None = Field(
        None,
        ge=0,
        le=NODE_MAX,
        description="Number of the node in its cluster, which no other node has and which belongs "
        "to its data directory.",
    )
    cluster_port: int = Field(
        25672,
        ge=1,
        le=PORT_MAX,
        description="Port for the other nodes of the cluster, RabbitMQ's number for the same.",
    )
    advertise: str = Field(
        "",
        description="Address by which the other nodes reach this one, HOST or HOST:PORT; empty for "
        "the name of the machine and `cluster_port`.",
    )
    cluster_host: str = Field(
        "",
        description="Address to listen on for other nodes, with `cluster_port`; empty for the host "
        "and the port of `advertise`.",
    )
    rack: str = Field(
        "",
        description="Rack or zone of the node, of which others can see whether they fail with it; "
        "empty for the name of the machine.",
    )
    cluster_replicas: int = Field(
        3,
        ge=1,
        le=9,
        description="Nodes that hold a copy of every log. Further nodes hold none, and pass their "
        "clients on.",
    )
    cluster_session_ms: int = Field(
        4_000,
        ge=2_000,
        le=60_000,
        description="Milliseconds after which a node that is not heard of counts as dead: the "
        "longest part of the time without a leader. ZooKeeper makes it two of its ticks at least.",
    )
    cluster_hold_ms: int = Field(
        10_000,
        ge=0,
        le=600_000,
        description="Milliseconds for which clients that connect while no node leads are kept "
        "waiting, before they are told so.",
    )
    cluster_replace: bool = Field(
        False,
        description="Whether the node may start although what it once had is lost: another data "
        "directory, or an older copy of it. It leaves the in-sync set and copies what it lacks.",
    )
    zookeeper_user: str = Field(
        "",
        description="User that ZooKeeper knows by `zookeeper_password`; then only this user can "
        "read and write what the cluster keeps there.",
    )
    zookeeper_password: SecretStr = Field(
        SecretStr(""), description="Password of `zookeeper_user`; best given by the environment."
    )
    zookeeper_tls: bool = Field(
        False, description="Whether the servers of ZooKeeper are spoken to over TLS."
    )
    zookeeper_ca_file: Path | None = Field(
        None,
        description="PEM file with the authorities of ZooKeeper's certificates; empty for those of "
        "the system.",
    )
    zookeeper_certificate_file: Path | None = Field(
        None, description="PEM file with the certificate that this node shows to ZooKeeper."
    )
    zookeeper_key_file: Path | None = Field(
        None, description="PEM file with the key of `zookeeper_certificate_file`, not encrypted."
    )

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port by which the other nodes reach this one."""
        host, port = _address(self.advertise or socket.gethostname(), self.cluster_port)
        return host.strip("[]"), port

    @property
    def cluster_address(self) -> tuple[str, int]:
        """Host and port that this node listens on for the other nodes."""
        return (self.cluster_host, self.cluster_port) if self.cluster_host else self.advertised

    @field_validator("cluster")
    @classmethod
    def _is_connect_string(cls, value: str) -> str:
        if value:
            parse_connect_string(value)
        return value

    @field_validator("cluster")
    @classmethod
    def _survives_power_failures(cls, value: str, info: ValidationInfo) -> str:
        """Refuse `os`: a node whose machine was restarted would lack what it has acknowledged."""
        if value and info.data.get("durability") is Durability.OS:
            raise ValueError("a cluster needs the setting 'durability' to be 'fsync'")
        return value

    @field_validator("node_id")
    @classmethod
    def _is_numbered(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None and info.data.get("cluster"):
            raise ValueError("needed beside 'cluster': a number that no other node of it has")
        return value

    @field_validator("advertise")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            _address(value, ZOOKEEPER_PORT)
        return value

    @field_validator("zookeeper_password", mode="before")
    @classmethod
    def _is_shown_to_nobody(cls, value: object) -> object:
        """Convert any value to text: a value of a wrong type would be quoted in the error."""
        return value if isinstance(value, SecretStr) else str(value)
