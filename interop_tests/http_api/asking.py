"""One request, and what of its answer two brokers are compared by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.http import HttpClient


@dataclass(frozen=True)
class Step:
    """A request of a user whose password is the name."""

    method: str
    path: str  # below /api/
    body: object = None
    user: str = "guest"

    def __str__(self) -> str:
        return f"{self.user}: {self.method} {self.path}"


@dataclass
class Answer:
    """`reason` is what an error says, `keys` and `values` are those of an object or of the objects
    of a list."""

    status: int
    error: str = ""
    reason: object = ""
    keys: set[str] = field(default_factory=set)
    value: Any = None


def ask(port: int, step: Step) -> Answer:
    """The answer to one step of the broker whose API listens on `port`."""
    with HttpClient(f"127.0.0.1:{port}/api/", step.user) as client:
        said = client.request(step.method, step.path, json=step.body)
    if not said.headers.get("content-type", "").startswith("application/json"):
        return Answer(said.status_code)
    value = said.json()
    if said.status_code >= 400:
        return Answer(said.status_code, value.get("error", ""), value["reason"])
    rows = [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)]
    return Answer(said.status_code, keys=set().union(*rows) if rows else set(), value=value)
