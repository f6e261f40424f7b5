"""Client of the control socket: one request to the node of a data directory.

It imports little, because probes run every few seconds and people wait for each command.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ANSWER_SECONDS_MAX", "CONTROL_SOCKET", "control_address", "request"]

CONTROL_SOCKET = "control.sock"  # in the data directory
ANSWER_SECONDS_MAX = 60.0  # a node that is alive answers within its disk's worst flush
ADDRESS_BYTES_MAX = 100  # of the 108 that the kernel's sockaddr_un holds, some systems fewer


def request(
    path: Path,
    operation: str,
    parameters: dict[str, object],
    *,
    seconds_max: float = ANSWER_SECONDS_MAX,
) -> dict[str, Any]:
    """Send a request to the node listening at `path`; the timeout is for each part of the answer.

    Raises StorageError if there is none.
    """
    line = json.dumps({"operation": operation, "parameters": parameters}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds_max)
            with control_address(path) as address:
                connection.connect(address)
            connection.sendall(line)
            with connection.makefile("rb") as stream:
                answer = stream.readline()
    except TimeoutError as error:
        raise StorageError(
            f"the node at {path} did not answer within {seconds_max:g} s: it may be stopped or "
            "overloaded; --timeout waits longer"
        ) from error
    except OSError as error:
        raise StorageError(
            f"no node answers at {path} ({error.strerror or error}): is it still starting?"
        ) from error
    if not answer:
        raise StorageError(f"the node at {path} hung up: is it stopping?")
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


@contextmanager
def control_address(path: Path) -> Iterator[str]:
    """Yield the address to bind or connect to; a path too long for the kernel is shortened."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
