"""Shares of the process's open files: connections, logs, and a reserve for operators.

A connection is an open file, and so is the segment that a queue writes to. Very many of one kind
must not leave none for the others: without a descriptor no operator could connect to see what is
wrong.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.config import Configuration

__all__ = ["passed_clients_max", "share_open_files"]

logger = logging.getLogger(__package__)

# For the HTTP ports and the control socket with their connections, databases, sealed segments that
# are read, and what libraries open; of a small limit a quarter.
HELD_BACK = 1024
SHARE_MIN = 16


def share_open_files(configuration: Configuration, files_max: int) -> Configuration:
    """Return the settings, limited by `files_max` open files; a reduced limit is logged."""
    segments = min(configuration.open_segments_max, max(files_max // 4, SHARE_MIN))
    connections = min(configuration.connections_max, max(_room(files_max, segments), SHARE_MIN))
    if connections < configuration.connections_max:
        logger.info(
            "%d connections at most, not %d (connections_max): the system allows this process %d "
            "open files; `ulimit -n` or LimitNOFILE= in the unit says how many",
            connections,
            configuration.connections_max,
            files_max,
        )
    shares = {"connections_max": connections, "open_segments_max": segments}
    return configuration.model_copy(update=shares)


def passed_clients_max(configuration: Configuration, files_max: int) -> int:
    """Return how many clients a node may have that passes them on, each over another connection.

    `configuration` has its share of `files_max` open files already.
    """
    room = _room(files_max, configuration.open_segments_max)
    return min(configuration.connections_max, max(room, SHARE_MIN) // 2)


def _room(files_max: int, segments: int) -> int:
    """Return how many files are left for connections."""
    return files_max - min(HELD_BACK, files_max // 4) - segments
