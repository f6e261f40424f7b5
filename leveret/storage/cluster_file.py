"""The file by which a node remembers its cluster: `cluster.json` in its data directory.

    {"format": 1, "directory": "0123…", "cluster": "4567…", "node": 2, "incarnation": 7,
     "epochs": {"0": 3}, "founding": null}

`directory` is random, and told to the coordinator: a node whose disk was lost, or which uses
another node's directory, is known by that. `epochs` are the highest in which it has acted in each
shard; whoever forgot one could be cut by an older leader. `founding` is the id of the cluster that
this node was about to found as `node`: if there is one of that id, it has. It is no member by that.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from leveret.errors import NewerFormatError, StorageError
from leveret.ports.cluster import new_id
from leveret.storage.files import RealFileSystem, read_file, storage_error, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["ClusterFile", "ClusterState", "refuse_member"]

NAME = "cluster.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Content of the file.

    `cluster` is the cluster's id, None before the node was in any; `founding` that of one which
    the node is founding, None as soon as it is a member.
    """

    directory: str
    cluster: str | None = None
    node: int | None = None
    incarnation: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    founding: str | None = None


class ClusterFile:
    """The file of a data directory. Changes are on the disk when they return; from any thread."""

    def __init__(self, files: FileSystem, data: Path) -> None:
        """Read the file, if there is one. Raises NewerFormatError, StorageError."""
        self._files = files
        self._path = data / NAME
        self._lock = threading.Lock()
        self.state = self._read() or ClusterState(new_id())

    def _read(self) -> ClusterState | None:
        if not self._files.exists(self._path):
            return None
        try:
            return _parse(json.loads(bytes(read_file(self._files, self._path))))
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        except (KeyError, ValueError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise StorageError(
                f"{self._path} is damaged ({reason}): without it this node may not count as one "
                "that has what it once acknowledged. Move it away, and start the node with "
                "--replace: it then copies everything anew"
            ) from error

    def change(self, **fields: Any) -> None:
        """Change some fields of the state. Raises StorageError; nothing has changed then."""
        with self._lock:
            self._write(replace(self.state, **fields))

    def _write(self, state: ClusterState) -> None:
        """Have another state. The caller has the lock. Raises StorageError."""
        content = json.dumps({"format": FORMAT, **asdict(state)}).encode()
        try:
            write_file(self._files, self._path, content, flush=True)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error("write", self._path, error) from error
        self.state = state

    def epoch(self, shard: int) -> int:
        """Return the highest epoch in which the node has acted in a shard."""
        return self.state.epochs.get(str(shard), 0)

    def keep_epoch(self, shard: int, epoch: int) -> None:
        """Note that the node acts in an epoch of a shard. Raises StorageError."""
        with self._lock:  # or one that waits for another's flush would set that one's epoch back
            if epoch > self.epoch(shard):
                epochs = {**self.state.epochs, str(shard): epoch}
                self._write(replace(self.state, epochs=epochs))


def refuse_member(data: Path, what_to_do: str) -> None:
    """Raise StorageError if a directory is that of a member of a cluster."""
    state = ClusterFile(RealFileSystem(), data).state
    if state.cluster is not None:
        raise StorageError(
            f"{data} is the directory of node {state.node} of cluster {state.cluster}, which may "
            f"have gone on without it: {what_to_do}"
        )


def _parse(fields: Any) -> ClusterState:
    """Return the state of the file's content. Raises NewerFormatError, KeyError, ValueError."""
    if type(fields) is not dict:
        raise ValueError("it has no fields")
    number = _number("format", fields["format"])
    if number > FORMAT:
        raise NewerFormatError(f"{NAME} (format {number})")
    if number == 0:
        raise ValueError("there is no format 0")
    cluster, node, founding = fields["cluster"], fields["node"], fields.get("founding")
    epochs = fields["epochs"]
    if type(epochs) is not dict:
        raise ValueError("epochs has no fields")
    return ClusterState(
        directory=_text("directory", fields["directory"]),
        cluster=None if cluster is None else _text("cluster", cluster),
        node=None if node is None else _number("node", node),
        incarnation=_number("incarnation", fields["incarnation"]),
        epochs={shard: _number("an epoch", epoch) for shard, epoch in epochs.items()},
        founding=None if founding is None else _text("founding", founding),
    )


def _number(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is no number")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{name} is no text")
    return value
