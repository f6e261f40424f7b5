"""`leveret health`: whether a node serves clients, for probes every few seconds.

A probe runs for as long as its node does, so this costs little: `main` runs it before the rest of
the command line is imported, with the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import CONTROL_SOCKET, request

__all__ = ["PROBE_SECONDS_MAX", "answered", "probe"]

PROBE_SECONDS_MAX = 4.0  # below the five that container runtimes usually allow


def answered(arguments: list[str]) -> int | None:
    """Run `leveret health …` and return its exit status; None if the whole command line is needed.

    That is so for --help, for mistakes, and for abbreviated options.
    """
    stated = {"--data-dir": os.environ.get("LEVERET_DATA_DIR") or "var", "--timeout": None}
    flags = {"--json": False, "--in-sync": False}
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word in flags:
            flags[word] = True
        elif name in stated:
            given = value if equals else next(words, None)
            if given is None:
                return None
            stated[name] = given
        else:
            return None
    try:
        seconds = float(stated["--timeout"] or PROBE_SECONDS_MAX)
    except ValueError:
        return None
    if not 0 < seconds < float("inf"):
        return None
    return probe(
        Path(str(stated["--data-dir"])),
        seconds,
        as_json=flags["--json"],
        in_sync=flags["--in-sync"],
    )


def probe(data_dir: Path, seconds: float, *, as_json: bool, in_sync: bool = False) -> int:
    """Query the node and print its state. Returns 0 if it serves clients, else 1.

    With `in_sync` it must also have all that its cluster has committed.
    """
    reason, alarms = _understood(_ask(data_dir, "node.health", seconds))
    if in_sync and not reason:
        reason = _why_not_in_sync(_ask(data_dir, "cluster.nodes", seconds))
    if as_json:
        found: dict[str, object] = {"status": "failed" if reason else "ok", "alarms": alarms}
        print(json.dumps({**found, "reason": reason} if reason else found))
    elif reason:
        print(f"leveret: {reason}", file=sys.stderr)
    else:
        print(f"ok, but low on {' and '.join(alarms)}: publishers are blocked" if alarms else "ok")
    return 1 if reason else 0


def _ask(data_dir: Path, operation: str, seconds: float) -> dict[str, object]:
    try:
        return request(data_dir / CONTROL_SOCKET, operation, {}, seconds_max=seconds)
    except StorageError as error:
        return {"ok": False, "explanation": str(error)}


def _why_not_in_sync(answer: dict[str, object]) -> str:
    """Return why a node is not in sync, empty if it is."""
    match answer:
        case {"ok": True, "result": list(nodes)}:
            own = [node for node in nodes if node["is_this"]]
            if own and own[0]["is_live"] and own[0]["is_in_sync"]:
                return ""
            return f"the node is not in sync: {own[0]['reason'] if own else 'it is no member yet'}"
        case _:
            return str(answer.get("explanation", "the node's answer was not understood"))


def _understood(answer: dict[str, object]) -> tuple[str, list[str]]:
    """Return why a node does not serve clients, empty if it does, and its alarms."""
    match answer:
        case {"ok": True, "result": {"serving": bool(serving), "alarms": list(alarms)}}:
            return "" if serving else "the node is starting or stopping", alarms
        case _:
            return str(answer.get("explanation", "the node's answer was not understood")), []
