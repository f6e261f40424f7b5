"""Ports for servers that tests start again at the same address."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# Below those that the system gives to clients (from 32768 on Linux): while the server is away, no
# connection of another process takes its port for its own end.
FIRST, STOP = 20_000, 32_000
CLAIMS = Path(tempfile.gettempdir()) / f"leveret-test-ports-{os.getuid()}"

_claimed: list[int] = []  # files that are locked as long as this process lives


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on, and no other test gets before this process ends."""
    CLAIMS.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(FIRST, STOP), STOP - FIRST):
        claim = os.open(CLAIMS / str(port), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server((host, port)).close()
        except OSError:
            os.close(claim)
            continue
        _claimed.append(claim)
        return port
    raise AssertionError(f"no port of {FIRST} to {STOP - 1} is free on {host}")


def free_ports(count: int) -> list[int]:
    """Return so many ports as `free_port` does."""
    return [free_port() for _ in range(count)]
