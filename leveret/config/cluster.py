"""Settings: a node as one of a cluster, its links to the other nodes, and ZooKeeper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationInfo, field_validator

from leveret.config.settings import PORT_MAX, Settings
from leveret.ports.host_port import parse_host_port

__all__ = ["ClusterSettings"]

NODE_ID_MAX: Final = 2**31 - 1
NAME_CHARACTERS_MAX: Final = 255
# Hosts with ports, and a path: what ZooKeeper allows in the path is checked with its client.
ADDRESSES: Final = re.compile(r"[^\s,/]+(?:,[^\s,/]+)*(?:/[^\s,]*)?")

# Settings without which a node cannot be one of a cluster, each with what is to be done.
NEEDED: Final = {
    "node_id": "give each node of the cluster a number of its own",
    "advertise": "give the host name by which the other nodes reach this one",
    "cluster_secret_file": (
        "name a file with a secret, the same for all nodes; `openssl rand -hex 32` makes one"
    ),
}


class ClusterSettings(Settings):
    """A node of a cluster: who it is, its links to the other nodes, and ZooKeeper."""

    cluster: str = Field(
        "",
        description="Addresses of ZooKeeper and the path below which the cluster is: "
        "`zk1:2181,zk2:2181/leveret-1`. Nodes with the same path are one cluster. Empty: the node "
        "is alone, and needs no ZooKeeper.",
    )
    node_id: int | None = Field(
        None,
        ge=0,
        le=NODE_ID_MAX,
        description="Number of this node, which no other node of the cluster has. It belongs to "
        "the data directory: other nodes count on the messages that are in there.",
    )
    advertise: str = Field(
        "",
        description="Address at which other nodes reach this one, `HOST` or `HOST:PORT`; without a "
        "port it is the one that `link_port` names.",
    )
    rack: str = Field(
        "",
        max_length=NAME_CHARACTERS_MAX,
        description="Rack, room or zone of this node: the replicas of a queue are spread over as "
        "many as there are.",
    )
    link_host: str = Field(
        "0.0.0.0",  # noqa: S104  # opened only for nodes that know the cluster's secret
        description="Address to listen on for other nodes; `::` for IPv6. A node must prove that "
        "it knows the cluster's secret.",
    )
    link_port: int = Field(
        25672,
        ge=0,
        le=PORT_MAX,
        description="Port for other nodes, the number that RabbitMQ's nodes use; 0 takes a free "
        "one.",
    )
    cluster_secret_file: Path | None = Field(
        None,
        description="File with the secret that all nodes of the cluster share, 16 bytes or more. "
        "Only its owner may write it and only its group may read it besides.",
    )
    link_certificate_file: Path | None = Field(
        None,
        description="PEM file with this node's certificate and its chain; encrypts the links, of "
        "all nodes or none. Read again within ten seconds of a change.",
    )
    link_key_file: Path | None = Field(
        None, description="PEM file with the private key of `link_certificate_file`."
    )
    link_ca_file: Path | None = Field(
        None,
        description="PEM file with the authority that signs the certificates of all nodes, and "
        "better of nobody else.",
    )
    link_check_host_names: bool = Field(
        True,
        description="Whether a node's certificate must name the host by which it is dialed. If "
        "false, any certificate of the authority is one of a node.",
    )
    zookeeper_credentials_file: Path | None = Field(
        None,
        description="File with `user:password` for ZooKeeper (scheme digest): only this user then "
        "has rights to what the cluster writes there; without, everybody has. All nodes need the "
        "same. Only its owner may write it and only its group may read it besides.",
    )
    zookeeper_tls: bool = Field(
        False,
        description="Whether to use TLS with ZooKeeper (its `secureClientPort`); its host names "
        "are checked against its certificates.",
    )
    zookeeper_ca_file: Path | None = Field(
        None,
        description="PEM file with the authority of ZooKeeper's certificates; the system's "
        "authorities where it is not set.",
    )
    zookeeper_certificate_file: Path | None = Field(
        None,
        description="PEM file with a certificate of this node, for a ZooKeeper that asks for one.",
    )
    zookeeper_key_file: Path | None = Field(
        None, description="PEM file with the private key of `zookeeper_certificate_file`."
    )
    zookeeper_session_timeout_ms: int = Field(
        3000,
        ge=1000,
        le=600_000,
        description="Milliseconds after which a node that has died counts as gone, and another one "
        "takes over; ZooKeeper makes at least two of its ticks of it, and notices up to a tick "
        "later. Less lets partitions move while a machine swaps or ZooKeeper elects its leader.",
    )
    zookeeper_connect_timeout_ms: int = Field(
        300_000,
        ge=100,
        le=600_000,
        description="Milliseconds for which a node that starts waits for ZooKeeper before it gives "
        "up: longer than an ensemble takes to start after a loss of power, as service managers "
        "give up after some failed starts. One that runs waits as long as it must.",
    )

    cluster_moves_max: int = Field(
        5,
        ge=1,
        le=1000,
        description="Partitions that move to other nodes at the same time: more are done sooner, "
        "and take more of the disks and the network meanwhile.",
    )
    cluster_replace_after_ms: int = Field(
        600_000,
        ge=0,
        le=30 * 24 * 3600 * 1000,
        description="Milliseconds after which the replicas of a node that does not come back are "
        "placed on other nodes, if there are nodes without one; 0: never. Less than a restart of "
        "the machine takes has data copied for nothing.",
    )

    @field_validator("cluster")
    @classmethod
    def _is_an_address_of_zookeeper(cls, value: str) -> str:
        if value and not ADDRESSES.fullmatch(value):
            raise ValueError("expected ZooKeeper's addresses and a path: zk1:2181,zk2:2181/chroot")
        return value

    @field_validator("*")
    @classmethod
    def _fits_to_a_cluster(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a cluster without what it needs, and settings of a cluster without one."""
        name = str(info.field_name)
        if name == "cluster" or name not in ClusterSettings.model_fields:
            return value
        if "cluster" not in info.data:  # which is wrong itself
            return value
        is_default = value == ClusterSettings.model_fields[name].default
        if not info.data["cluster"] and not is_default:
            raise ValueError("is for a node of a cluster: set 'cluster' to ZooKeeper's addresses")
        if info.data["cluster"] and is_default and name in NEEDED:
            raise ValueError(f"is missing, and 'cluster' needs it: {NEEDED[name]}")
        return value

    @field_validator("advertise")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value:
            parse_host_port(value)
        return value

    @field_validator("link_ca_file")
    @classmethod
    def _comes_with_certificate_and_key(
        cls, value: Path | None, info: ValidationInfo
    ) -> Path | None:
        names = ("link_certificate_file", "link_key_file")
        given = [value, *map(info.data.get, names)]
        if any(given) and not all(given):
            raise ValueError("comes together with 'link_certificate_file' and 'link_key_file'")
        return value

    @field_validator("link_check_host_names")
    @classmethod
    def _is_about_certificates(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("link_certificate_file") is None:
            raise ValueError("can be false only where 'link_certificate_file' encrypts links")
        return value

    @field_validator("zookeeper_ca_file", "zookeeper_certificate_file", "zookeeper_key_file")
    @classmethod
    def _is_for_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not info.data.get("zookeeper_tls"):
            raise ValueError("is for TLS with ZooKeeper: set 'zookeeper_tls'")
        return value

    @field_validator("zookeeper_key_file")
    @classmethod
    def _belongs_to_zookeepers_certificate(
        cls, value: Path | None, info: ValidationInfo
    ) -> Path | None:
        if (value is None) != (info.data.get("zookeeper_certificate_file") is None):
            raise ValueError("comes together with 'zookeeper_certificate_file'")
        return value
