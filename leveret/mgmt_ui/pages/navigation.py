"""The navigation menu, in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["SECTIONS", "Entry", "Section", "sections_for"]


def _everybody(_: Caller) -> bool:
    return True


def _administrators(caller: Caller) -> bool:
    return caller.is_administrator


@dataclass(frozen=True, slots=True)
class Entry:
    """A link; `is_for` tells which users may use its page."""

    title: str
    address: str
    is_for: Callable[[Caller], bool] = _everybody

    def is_current(self, address: str) -> bool:
        """Whether the link's page is shown."""
        return address == self.address or address.startswith(f"{self.address.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class Section:
    """Group of links."""

    title: str
    entries: tuple[Entry, ...]


SECTIONS = (
    Section(
        "Broker",
        (
            Entry("Overview", "/overview"),
            Entry("Connections", "/connections"),
            Entry("Channels", "/channels"),
            Entry("Exchanges", "/exchanges"),
            Entry("Queues and streams", "/queues"),
            Entry("Virtual hosts", "/vhosts"),
        ),
    ),
    Section(
        "Messages",
        (
            Entry("Schedules", "/schedules"),
            Entry("Retries", "/retries"),
            Entry("Dead letters", "/dead-letters"),
            Entry("De-duplication", "/once"),
        ),
    ),
    Section(
        "Operation",
        (
            Entry("Alerts", "/alerts"),
            Entry("Usage", "/usage"),
            Entry("Audit log", "/audit", _administrators),
        ),
    ),
    Section(
        "Administration",
        (
            Entry("Users", "/users", _administrators),
            Entry("Policies", "/policies"),
            Entry("Limits", "/limits", _administrators),
            Entry("Definitions", "/definitions", _administrators),
            Entry("Encryption", "/encryption", _administrators),
        ),
    ),
)


def sections_for(caller: Caller) -> list[Section]:
    """Return the menu for a user."""
    shown = [
        Section(section.title, tuple(entry for entry in section.entries if entry.is_for(caller)))
        for section in SECTIONS
    ]
    return [section for section in shown if section.entries]
