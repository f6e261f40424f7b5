"""Port of the coordinator: state that all nodes of a cluster agree on, and who of them is there.

The state is a mapping of keys to values, changed by writes that take effect in one sequence, the
same for every node. Each node has all of it in memory. Everything is called on the event loop, and
only the coroutines wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from leveret.errors import LeveretError

__all__ = [
    "CONTROLLER_KEY",
    "DIRECTORIES_PREFIX",
    "DRAINING",
    "KEY_BYTES_MAX",
    "LINKS_PREFIX",
    "MOVES_PREFIX",
    "NODES_PREFIX",
    "SESSIONS_PREFIX",
    "VALUE_BYTES_MAX",
    "WRITE_BYTES_MAX",
    "ConflictError",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorSettingsError",
    "CoordinatorUnavailableError",
    "CorruptZnodeError",
    "Entries",
    "KeyChange",
    "KeyCheck",
    "KeyEntry",
    "NodeIdTakenError",
    "NodeRegistration",
    "NotControllerError",
    "OutcomeUnknownError",
    "WriteTooLargeError",
    "draining_nodes",
]

KEY_BYTES_MAX = 2048  # a binding's key: four names of 255 bytes, escaped, and a digest
VALUE_BYTES_MAX = 128 * 1024  # arguments of a queue are bounded to less; two fit into one write
WRITE_BYTES_MAX = 256 * 1024  # one znode: a quarter of what ZooKeeper takes by default (1 MiB)

# And the node id; its value: the id of the data directory that the node has.
DIRECTORIES_PREFIX = "directories/"
NODES_PREFIX = "nodes/"  # and the node id; its value, if it is to have no replicas: DRAINING
DRAINING = b'{"draining":true}'
MOVES_PREFIX = (
    "moves/"  # and the key of a partition's log; its value: a cluster.moves.PartitionMove
)
LINKS_PREFIX = "links/"  # and the node id; its value: see replication.link_reports
CONTROLLER_KEY = "controller"  # its value: node, session and epoch of the controller elected last
SESSIONS_PREFIX = "sessions/"  # and the node id; its value: the session of the node's last start


class CoordinatorError(LeveretError):
    """Root of the errors of a coordinator; the text says what an operator can do."""


class CoordinatorUnavailableError(CoordinatorError):
    """The coordinator is away: nothing was written, and nothing can be for now."""


class OutcomeUnknownError(CoordinatorError):
    """A write may have been applied: it was on its way when the node closed or could not read."""


class CoordinatorSettingsError(CoordinatorError):
    """The coordinator refuses this node, or cannot be used as it is set: address, path, rights."""


class CorruptZnodeError(CoordinatorError):
    """A znode is not what a node has written; the text names it."""


class NodeIdTakenError(CoordinatorError):
    """Another process has this node's id."""


class NotControllerError(CoordinatorError):
    """This node is not the controller any more, or never was; nothing was written."""


class WriteTooLargeError(CoordinatorError):
    """A write, a key or a value is beyond its limit, and must be cut by the caller."""


class ConflictError(CoordinatorError):
    """Keys have other versions than a write expects; nothing was written."""

    def __init__(self, keys: Sequence[str]) -> None:
        """`keys` are all that conflict, in the write's order."""
        super().__init__(f"changed by others in the meantime: {', '.join(keys)}")
        self.keys = tuple(keys)


class KeyChange(NamedTuple):
    """New value of a key, None to delete it.

    With `expected` only if the key has that version: the sequence number of its last change, 0 if
    it does not exist.
    """

    key: str
    value: bytes | None
    expected: int | None = None


class KeyCheck(NamedTuple):
    """Condition of a write: `key` has the version `expected`, 0 if it does not exist."""

    key: str
    expected: int


class KeyEntry(NamedTuple):
    """Value of a key, and its version: the sequence number of its last change."""

    version: int
    value: bytes


class Entries(Protocol):
    """Read-only view of the state; it changes whenever the event loop runs something else."""

    def __getitem__(self, key: str) -> KeyEntry: ...

    def __contains__(self, key: object) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...

    def get(self, key: str) -> KeyEntry | None:
        """Return the entry of a key, or None."""
        ...

    def version(self, key: str) -> int:
        """Return the version of a key, 0 if it does not exist: what a write may expect."""
        ...

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return the keys that begin with `prefix`, in order; it costs what it returns."""
        ...


@dataclass(frozen=True, slots=True)
class NodeRegistration:
    """A node that is there, as it says of itself.

    Each start of its process has a greater `session`, which the coordinator gives: 0 before. Of its
    versions of the protocol between nodes, two nodes use the highest that both know. `directory` is
    a random id kept in the data directory: a process that holds that directory's lock, and meets a
    registration with the same one, knows that the process behind it is dead.
    """

    node: int
    peer_address: str
    client_address: str
    directory: str
    rack: str = ""
    incarnation: int = 0
    software: str = ""
    protocol_min: int = 1
    protocol_max: int = 1
    session: int = 0
    name: str = ""  # in lists, metrics and logs


ChangesCallback = Callable[[int, Sequence[KeyChange]], None]


class Coordinator(Protocol):
    """One node's part in the coordination of its cluster, registered while it is open.

    The registration outlasts lost connections for the session timeout; after that it is made again,
    by itself and for the same `session`, unless another process has taken the node id: then
    `failure` is a NodeIdTakenError, for good.
    """

    @property
    def cluster_id(self) -> str:
        """Random id of the cluster, made with its state."""
        ...

    @property
    def session(self) -> int:
        """Number of this process among the starts of its node."""
        ...

    @property
    def sequence(self) -> int:
        """Number of the last write that the local state has."""
        ...

    @property
    def entries(self) -> Entries:
        """Local state, as of `sequence`."""
        ...

    async def write(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        """Apply all changes if all expectations hold, and return the sequence number they got.

        That is the new version of the changed keys; the local state has them on return, and
        followers were called. A key must not occur in two changes. A write without a change returns
        the sequence number as of which its checks held. Writes of one node that wait at the same
        time share a round trip, in order; many changes that need not be atomic are therefore best
        written by several calls at once.

        Raises ConflictError, which holds for a moment during the call, WriteTooLargeError above
        `WRITE_BYTES_MAX`, and CoordinatorUnavailableError. After an error nothing was written, nor
        will it be, except after OutcomeUnknownError. A write that was under way when the connection
        broke waits until its outcome is known. A call that is cancelled may have written or not.
        """
        ...

    async def write_as_controller(self, changes: Sequence[KeyChange | KeyCheck]) -> int:
        """Write as `write` does, if this node is the controller, and no other was elected since.

        Raises NotControllerError otherwise.
        """
        ...

    def follow(self, callback: ChangesCallback) -> None:
        """Call `callback(sequence, changes)` for all that is applied from now on, in order.

        The changes expect nothing. After the node has lagged far behind, they are the difference
        between the old state and the new one, under one number.
        """
        ...

    async def catch_up(self) -> None:
        """Wait until the local state has all that any node had written before this call.

        Raises CoordinatorUnavailableError.
        """
        ...

    @property
    def nodes(self) -> Mapping[int, NodeRegistration]:
        """Nodes that are registered, by id: as of now, or of when the coordinator was there."""
        ...

    def follow_nodes(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `nodes` has changed."""
        ...

    @property
    def controller(self) -> int | None:
        """Node that is the controller, None while there is none."""
        ...

    @property
    def is_controller(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        ...

    def follow_controller(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `controller` or `is_controller` has changed."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator answers, and this node is registered."""
        ...

    @property
    def failure(self) -> LeveretError | None:
        """Reason why this node does not follow the state any more, though the coordinator is there.

        It tries again by itself, except after NodeIdTakenError.
        """
        ...

    def follow_connection(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `is_connected` or `failure` has changed."""
        ...

    async def close(self) -> None:
        """Give up the registration, and the controller's place, at once."""
        ...


def draining_nodes(entries: Entries) -> frozenset[int]:
    """Return the nodes that are to have no replicas, and to lead nothing."""
    return frozenset(
        int(key.removeprefix(NODES_PREFIX))
        for key in entries.keys(NODES_PREFIX)
        if entries[key].value == DRAINING
    )
