"""The navigation menu, in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["SECTIONS", "MenuEntry", "Section", "sections_for"]


def _everybody(_: Caller) -> bool:
    return True


def _administrators(caller: Caller) -> bool:
    return caller.is_administrator


def _monitors_of_a_cluster(caller: Caller) -> bool:
    return caller.is_monitor and caller.node.context.cluster is not None


@dataclass(frozen=True, slots=True)
class MenuEntry:
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
    entries: tuple[MenuEntry, ...]


SECTIONS = (
    Section(
        "Broker",
        (
            MenuEntry("Overview", "/overview"),
            MenuEntry("Connections", "/connections"),
            MenuEntry("Channels", "/channels"),
            MenuEntry("Exchanges", "/exchanges"),
            MenuEntry("Queues and streams", "/queues"),
            MenuEntry("Topics", "/topics"),
            MenuEntry("Consumer groups", "/consumer-groups"),
            MenuEntry("Virtual hosts", "/vhosts"),
        ),
    ),
    Section(
        "Messages",
        (
            MenuEntry("Schedules", "/schedules"),
            MenuEntry("Retries", "/retries"),
            MenuEntry("Dead letters", "/dead-letters"),
            MenuEntry("De-duplication", "/once"),
        ),
    ),
    Section(
        "Operation",
        (
            MenuEntry("Nodes", "/nodes", _monitors_of_a_cluster),
            MenuEntry("Alerts", "/alerts"),
            MenuEntry("Usage", "/usage"),
            MenuEntry("Audit log", "/audit", _administrators),
        ),
    ),
    Section(
        "Administration",
        (
            MenuEntry("Users", "/users", _administrators),
            MenuEntry("Policies", "/policies"),
            MenuEntry("Limits", "/limits", _administrators),
            MenuEntry("Definitions", "/definitions", _administrators),
            MenuEntry("Encryption", "/encryption", _administrators),
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
