"""Resource alarms: while one stands, connections that publish are held and told so."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.ports.callbacks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Resource(Enum):
    """What can run low; in the order in which texts name them."""

    MEMORY = "memory"
    DISK = "disk"


class Watcher(Protocol):
    """A connection as the alarms see it."""

    def alarm_changed(self, reason: str) -> None:
        """`reason` is empty when no alarm stands any more."""
        ...


class Observer(Protocol):
    """Who is told of each resource by itself."""

    def __call__(self, resource: Resource, *, low: bool) -> None:
        """`resource` has become low, or is no more."""
        ...


class Alarms:
    """Which resources are low. `watchers` and `observer` are told when that changes.

    `report(callback, error)` is told of each of them that raises: all others are told anyway.
    """

    def __init__(
        self,
        watchers: Iterable[Watcher],
        report: Callable[[object, Exception], None],
        observer: Observer | None = None,
    ) -> None:
        self._watchers = watchers
        self._report = report
        self._observer = observer
        self._low: set[Resource] = set()
        self.reason = ""

    @property
    def low(self) -> list[Resource]:
        """What is low now, in the order of `Resource`."""
        return [resource for resource in Resource if resource in self._low]

    def set(self, resource: Resource, *, low: bool) -> bool:
        """Note the state of one resource. Returns whether it changed."""
        if low is (resource in self._low):
            return False
        (self._low.add if low else self._low.discard)(resource)
        names = [resource.value for resource in self.low]
        self.reason = f"low on {' & '.join(names)}" if names else ""
        told = [partial(watcher.alarm_changed, self.reason) for watcher in self._watchers]
        if self._observer is not None:
            told.append(partial(self._observer, resource, low=low))
        call_each(told, self._report)
        return True
