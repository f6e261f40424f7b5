"""Shell completion of names from a running node. Never fails, never waits long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer  # read when the command is built

__all__ = ["queue_names", "vhost_names"]

NAMES_MAX = 200  # enough for people
ANSWER_SECONDS_MAX = 1.0  # the user is waiting for the completion


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues of the virtual host given before."""
    stated = {"vhost": context.params.get("vhost") or "/", "name": incomplete or None}
    page = {"sort": None, "reverse": False, "limit": NAMES_MAX, "after": None}
    found = _asked(context, "queue.list", **stated, **page)
    return _beginning(found.get("rows", []) if isinstance(found, dict) else [], incomplete)


def vhost_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the virtual hosts."""
    found = _asked(context, "vhost.list")
    return _beginning(found if isinstance(found, list) else [], incomplete)


def _beginning(rows: list[dict[str, Any]], incomplete: str) -> list[str]:
    return [row["name"] for row in rows if row["name"].startswith(incomplete)]


def _asked(context: typer.Context, operation: str, **parameters: object) -> Any:
    """Return the node's answer; None if no node answers in time."""
    from leveret.errors import StorageError
    from leveret.mgmt_ui.control_client import CONTROL_SOCKET, request

    stated = context.params.get("data_dir") or os.environ.get("LEVERET_DATA_DIR", "var")
    socket = Path(stated) / CONTROL_SOCKET
    try:
        answer = request(socket, operation, parameters, seconds_max=ANSWER_SECONDS_MAX)
    except StorageError:
        return None
    return answer.get("result")
