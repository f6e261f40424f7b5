"""The file that says to which node of which cluster a data directory belongs.

    DATA/node.json
    {
      "version": 1,
      "cluster": "0123…",      id of the cluster, "" until the node has been registered in it
      "node": 3,               id of the node
      "directory": "fedc…",    random id of this directory
      "boot": "89ab…",         id of the machine's last start during which the node ran
      "incarnation": 0         starts of the machine before that, since the directory was made
    }

Other nodes count on what this node has said to have. A process that was killed leaves it in the
page cache; a machine that has failed may have lost what was not flushed, so the incarnation counts
its starts. A copy of the data in another directory, such as a restored backup, has another id.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from leveret.errors import NewerFormatError, StorageError
from leveret.storage.files import RealFileSystem, read_file, storage_error, write_file

__all__ = ["FILE_NAME", "NodeFile", "check_alone", "cluster_of", "read_boot_id"]

FILE_NAME: Final = "node.json"
VERSION: Final = 1
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
DIRECTORY_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class NodeFileContent:
    """Content of the file."""

    cluster: str
    node: int
    directory: str
    boot: str
    incarnation: int


def read_boot_id() -> str:
    """Return a random id that the kernel draws at each start of the machine; "" without one."""
    try:
        return BOOT_ID.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def check_alone(data: Path) -> None:
    """Raise StorageError if the data directory is that of a node of a cluster."""
    if (data / FILE_NAME).exists():
        raise StorageError(
            f"{data} is the data directory of a node of a cluster, which has its definitions: "
            "start it with --cluster, or choose another 'data_dir'"
        )


def cluster_of(data: Path) -> str:
    """Return the id of the cluster that a data directory belongs to; "" of a node by itself.

    Raises StorageError for a file that says nothing of it.
    """
    try:
        return str(json.loads((data / FILE_NAME).read_bytes())["cluster"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(f"cannot read {data / FILE_NAME}: {error}") from error


class NodeFile:
    """The file of a node that runs, whose directory lock is held."""

    def __init__(self, data: Path, node: int, boot_id: str) -> None:
        """Read the file, or make it; note this start of the machine. Raises StorageError.

        Without a `boot_id` each start counts as one after the machine has failed.
        """
        self._files = RealFileSystem()
        self._path = data / FILE_NAME
        found = self._read()
        if found is None:
            directory = secrets.token_hex(DIRECTORY_ID_BYTES)
            content = NodeFileContent("", node, directory, boot_id, 0)
        elif found.node != node:
            raise StorageError(
                f"{data} is the data directory of node {found.node}, and this is node {node}: "
                "correct 'node_id' or 'data_dir'"
            )
        elif not boot_id or found.boot != boot_id:
            content = replace(found, boot=boot_id, incarnation=found.incarnation + 1)
        else:
            content = found
        if content != found:
            self._write(content)
        self._content = content

    @property
    def directory(self) -> str:
        """Random id of the data directory."""
        return self._content.directory

    @property
    def incarnation(self) -> int:
        """Starts of the machine, but the first, since the directory was made."""
        return self._content.incarnation

    def join(self, cluster: str) -> None:
        """Note the cluster that the node is registered in. Raises StorageError for another one."""
        if not self._content.cluster:
            self._write(replace(self._content, cluster=cluster))
        elif self._content.cluster != cluster:
            raise StorageError(
                f"{self._path.parent} has the data of cluster {self._content.cluster}, and "
                f"ZooKeeper has cluster {cluster}: correct 'cluster' or 'data_dir', or give "
                "ZooKeeper back the data that it had"
            )

    def _read(self) -> NodeFileContent | None:
        if not self._path.exists():
            return None
        try:
            found = json.loads(read_file(self._files, self._path))
            version = found["version"]
            if version == VERSION:
                return _checked(found)
        except OSError as error:
            raise storage_error("read", self._path, error) from error
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StorageError(
                f"{self._path} is damaged: give this node another id and an empty data directory, "
                "as others may count on what is missing from this one"
            ) from None
        raise NewerFormatError(str(self._path))

    def _write(self, content: NodeFileContent) -> None:
        text = json.dumps({"version": VERSION, **asdict(content)}, indent=2)
        try:
            write_file(self._files, self._path, f"{text}\n".encode(), flush=True)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error("write", self._path, error) from error
        self._content = content


def _checked(found: dict[str, Any]) -> NodeFileContent:
    """Return the content of a file's fields. Raises KeyError, TypeError or ValueError."""
    texts = [found[name] for name in ("cluster", "directory", "boot")]
    numbers = [found[name] for name in ("node", "incarnation")]
    if not all(isinstance(each, str) for each in texts) or not found["directory"]:
        raise ValueError("no text")
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("no number")
    return NodeFileContent(texts[0], numbers[0], texts[1], texts[2], numbers[1])
