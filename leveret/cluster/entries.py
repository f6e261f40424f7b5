"""Entries of the coordinator: their paths, and what they hold as JSON.

    /cluster           id of the cluster, and the secret of its links    made by its first node
    /nodes/N           a registered node: its directory and incarnation  written by the node
    /live/N            ephemeral: that it lives, and where it is          written by the node
    /controller        ephemeral: who is the controller
    /controller_epoch  whose version each controller moves on, and checks in its writes
    /shards/S          leader, epoch and in-sync set                      by leader and controller

Nothing of it grows with queues or clients. Whoever can write there can do anything to the cluster;
values are checked all the same, since releases differ and people make mistakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leveret.config.cluster import NODE_MAX
from leveret.ports.coordinator import CoordinatorError
from leveret.replication.shard import ShardEntry

if TYPE_CHECKING:
    from leveret.ports.coordinator import CoordinatorEntry

__all__ = [
    "CLUSTER",
    "CONTROLLER",
    "CONTROLLER_EPOCH",
    "LIVE",
    "NODES",
    "SHARD",
    "SHARDS",
    "ClusterValue",
    "ControllerValue",
    "EntryValue",
    "LiveValue",
    "MalformedEntryError",
    "NodeValue",
    "ShardValue",
    "live_path",
    "node_path",
    "parse_entry",
    "shard_path",
]

CLUSTER = "/cluster"
NODES = "/nodes"
LIVE = "/live"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
SHARDS = "/shards"

SHARD = 0  # all logs are one shard
FORMAT = 1

NodeNumber = Annotated[int, Field(ge=0, le=NODE_MAX)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Epoch = Annotated[int, Field(ge=0, lt=1 << 32)]  # as batches have it
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Secret = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
Host = Annotated[str, Field(min_length=1, max_length=255)]
Port = Annotated[int, Field(ge=1, le=0xFFFF)]
Text = Annotated[str, Field(max_length=255)]


class MalformedEntryError(CoordinatorError):
    """An entry holds something else than this release expects."""


class EntryValue(BaseModel):
    """Value of an entry. Fields that a later release adds are not looked at."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    def to_bytes(self) -> bytes:
        """Return the value as it is written."""
        return self.model_dump_json().encode()


class ClusterValue(EntryValue):
    """The cluster: its id, and the secret by which its nodes know each other on links."""

    format: int = FORMAT
    id: Id
    secret: Secret


class NodeValue(EntryValue):
    """A registered node: the id of its data directory, and its last incarnation."""

    directory: Id
    incarnation: Count
    rack: Text


class LiveValue(EntryValue):
    """A node that is live, in one incarnation: where other nodes reach it, and its release."""

    incarnation: Count
    host: Host
    port: Port
    release: Text


class ControllerValue(EntryValue):
    """The node that is the controller, in one incarnation."""

    node: NodeNumber
    incarnation: Count


class ShardValue(EntryValue):
    """Entry of a shard (see replication.ShardEntry); `leader` is a node and its incarnation."""

    leader: Annotated[list[Count], Field(min_length=2, max_length=2)] | None
    epoch: Epoch
    isr: list[NodeNumber]
    replicas: list[NodeNumber]
    change: Count
    joined: list[NodeNumber]

    @classmethod
    def of(cls, entry: ShardEntry) -> ShardValue:
        """Return the value of an entry."""
        return cls(
            leader=None if entry.leader is None else [entry.leader, entry.incarnation],
            epoch=entry.epoch,
            isr=sorted(entry.isr),
            replicas=list(entry.replicas),
            change=entry.change,
            joined=sorted(entry.joined),
        )

    @property
    def entry(self) -> ShardEntry:
        """The entry that this is the value of."""
        leader, incarnation = (None, 0) if self.leader is None else self.leader
        return ShardEntry(
            *(leader, incarnation, self.epoch, frozenset(self.isr), tuple(self.replicas)),
            *(self.change, frozenset(self.joined)),
        )


V = TypeVar("V", bound=EntryValue)


def parse_entry(kind: type[V], path: str, entry: CoordinatorEntry) -> V:
    """Return the value of an entry. Raises MalformedEntryError."""
    try:
        value = kind.model_validate_json(entry.value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise MalformedEntryError(
            f"ZooKeeper's entry {path} is not as this release writes it ({where or 'all'}: "
            f"{problem['msg']}): check that nothing else uses the same path of ZooKeeper"
        ) from None
    if isinstance(value, ClusterValue) and value.format > FORMAT:
        raise MalformedEntryError(
            f"the cluster was made by a newer release (format {value.format}, this one knows "
            f"{FORMAT}): upgrade this node"
        )
    return value


def node_path(node: int) -> str:
    """Return the path of a registered node's entry."""
    return f"{NODES}/{node}"


def live_path(node: int) -> str:
    """Return the path of a live node's entry."""
    return f"{LIVE}/{node}"


def shard_path(shard: int) -> str:
    """Return the path of a shard's entry."""
    return f"{SHARDS}/{shard}"
