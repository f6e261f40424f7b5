"""Celery's tasks, as people read them: what is called with what, and when.

A worker is told of a task by the headers of its message (Celery's message protocol, version 2):

    task, id            the task's name, and this call's id
    argsrepr, kwargsrepr  what it is called with, as Python writes it; Celery cuts long ones
    eta, expires        when it is to run, and when no longer: ISO 8601
    retries, origin     how often it was tried again, and which process sent it
    root_id, parent_id, group   the work that it is a part of

The body has the arguments themselves, in whatever way the application has chosen to write them, and
is not looked at. Pure functions.
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
    "eta": "To run at",
    "expires": "Not after",
    "retries": "Retries so far",
    "group": "Group",
    "parent_id": "Called by",
    "root_id": "Began with",
    "origin": "Sent by",
}
NO_ARGUMENTS = {"", "()", "[]", "{}", "None"}


@dataclass(frozen=True, slots=True)
class Task:
    """One call. `facts` are what else is known of it, by titles."""

    name: str
    args: str
    kwargs: str
    facts: Mapping[str, str]

    @property
    def call(self) -> str:
        """In one line, nearly as Python would write it: `mail.send(17, {'to': 'anna'})`."""
        inner = self.args[1:-1].rstrip(", ") if self.args[:1] in {"(", "["} else self.args
        return f"{self.name}({', '.join(part for part in (inner, self.kwargs) if part)})"


def task_of(headers: Any) -> Task | None:
    """The task that a message's headers tell of, shown as JSON; None where they tell of none."""
    if not isinstance(headers, Mapping) or TELLING.isdisjoint(headers):
        return None
    name, id_ = headers.get("task"), headers.get("id")
    if not (isinstance(name, str) and name and isinstance(id_, str)):
        return None
    facts = {title: str(headers[key]) for key, title in FACTS.items() if _says(headers.get(key))}
    return Task(name, _arguments(headers, "argsrepr"), _arguments(headers, "kwargsrepr"), facts)


def with_tasks(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows that may have the headers of messages, with the `task` of each, which may be None."""
    return [{**row, "task": task_of(row.get("headers"))} for row in rows]


def _says(value: object) -> bool:
    """Whether a header says something: Celery sends all of them, most without a value."""
    return value not in (None, "", 0)


def _arguments(headers: Mapping[str, Any], name: str) -> str:
    value = headers.get(name)
    return "" if not isinstance(value, str) or value in NO_ARGUMENTS else value
