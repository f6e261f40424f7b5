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
    as_json = False
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--json":
            as_json = True
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
    return probe(Path(str(stated["--data-dir"])), seconds, as_json=as_json)


def probe(data_dir: Path, seconds: float, *, as_json: bool) -> int:
    """Query the node and print its state. Returns 0 if it serves clients, else 1."""
    try:
        answer = request(data_dir / CONTROL_SOCKET, "node.health", {}, seconds_max=seconds)
    except StorageError as error:
        answer = {"ok": False, "explanation": str(error)}
    reason, alarms = _understood(answer)
    if as_json:
        found: dict[str, object] = {"status": "failed" if reason else "ok", "alarms": alarms}
        print(json.dumps({**found, "reason": reason} if reason else found))
    elif reason:
        print(f"leveret: {reason}", file=sys.stderr)
    else:
        print(f"ok, but low on {' and '.join(alarms)}: publishers are blocked" if alarms else "ok")
    return 1 if reason else 0


def _understood(answer: dict[str, object]) -> tuple[str, list[str]]:
    """Return why a node does not serve clients, empty if it does, and its alarms."""
    match answer:
        case {"ok": True, "result": {"serving": bool(serving), "alarms": list(alarms)}}:
            return "" if serving else "the node is starting or stopping", alarms
        case _:
            return str(answer.get("explanation", "the node's answer was not understood")), []
