"""What the shell may complete: names that a running node knows. Never fails, never waits long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer  # read when the command is built

__all__ = ["queue_names", "vhost_names"]

NAMES_MAX = 200  # more than anybody reads
ANSWER_SECONDS_MAX = 1.0  # somebody waits with a finger on the key


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Queues of the virtual host that was named before."""
    stated = {"vhost": context.params.get("vhost") or "/", "name": incomplete or None}
    page = {"sort": None, "reverse": False, "limit": NAMES_MAX, "after": None}
    found = _asked(context, "queue.list", **stated, **page)
    return _beginning(found.get("rows", []) if isinstance(found, dict) else [], incomplete)


def vhost_names(context: typer.Context, incomplete: str) -> list[str]:
    """Virtual hosts."""
    found = _asked(context, "vhost.list")
    return _beginning(found if isinstance(found, list) else [], incomplete)


def _beginning(rows: list[dict[str, Any]], incomplete: str) -> list[str]:
    return [row["name"] for row in rows if row["name"].startswith(incomplete)]


def _asked(context: typer.Context, operation: str, **parameters: object) -> Any:
    """What the node says; None where there is none, or it is busy."""
    from leveret.errors import StorageError
    from leveret.mgmt_ui.control_client import CONTROL_SOCKET, request

    stated = context.params.get("data_dir") or os.environ.get("LEVERET_DATA_DIR", "var")
    socket = Path(stated) / CONTROL_SOCKET
    try:
        answer = request(socket, operation, parameters, seconds_max=ANSWER_SECONDS_MAX)
    except StorageError:
        return None
    return answer.get("result")
