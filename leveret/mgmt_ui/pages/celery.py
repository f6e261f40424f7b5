"""Celery tasks, parsed from the headers of messages.

The headers of a message describe the task (Celery's message protocol, version 2):

    task, id            the task's name, and this call's id
    argsrepr, kwargsrepr  its arguments as Python writes them; Celery cuts long ones
    eta, expires        earliest and latest time to run: ISO 8601
    retries, origin     number of retries, and the sending process
    root_id, parent_id, group   the workflow that it is part of

The body has the arguments themselves, in the serialization that the application has chosen, and is
not parsed. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Task", "task_of", "with_tasks"]

# Others have headers `task` and `id`, too: one of these says that it is Celery.
TELLING = frozenset({"argsrepr", "kwargsrepr", "eta", "root_id", "lang"})
FACTS = {
    "id": "Id",
    "eta": "ETA",
    "expires": "Expires",
    "retries": "Retries",
    "group": "Group",
    "parent_id": "Parent",
    "root_id": "Root",
    "origin": "Origin",
}
NO_ARGUMENTS = {"", "()", "[]", "{}", "None"}


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a task. `facts` are further facts by title."""

    name: str
    args: str
    kwargs: str
    facts: Mapping[str, str]

    @property
    def call(self) -> str:
        """The call in one line, nearly as in Python: `mail.send(17, {'to': 'anna'})`."""
        inner = self.args[1:-1].rstrip(", ") if self.args[:1] in {"(", "["} else self.args
        return f"{self.name}({', '.join(part for part in (inner, self.kwargs) if part)})"


def task_of(headers: Any) -> Task | None:
    """Return the task of a message's headers, given as JSON; None if it is no task."""
    if not isinstance(headers, Mapping) or TELLING.isdisjoint(headers):
        return None
    name, id_ = headers.get("task"), headers.get("id")
    if not (isinstance(name, str) and name and isinstance(id_, str)):
        return None
    facts = {title: str(headers[key]) for key, title in FACTS.items() if _says(headers.get(key))}
    return Task(name, _arguments(headers, "argsrepr"), _arguments(headers, "kwargsrepr"), facts)


def with_tasks(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the `task` of each, or None, from its headers."""
    return [{**row, "task": task_of(row.get("headers"))} for row in rows]


def _says(value: object) -> bool:
    """Whether a header has a value: Celery sends all of them, most of them null."""
    return value not in (None, "", 0)


def _arguments(headers: Mapping[str, Any], name: str) -> str:
    value = headers.get(name)
    return "" if not isinstance(value, str) or value in NO_ARGUMENTS else value
