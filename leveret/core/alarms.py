"""Resource alarms: while one is active, publishing connections are blocked and notified."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.ports.callbacks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Resource(Enum):
    """Resource that can run low; in the order in which texts name them."""

    MEMORY = "memory"
    DISK = "disk"


class Watcher(Protocol):
    """Connection that is notified of alarms."""

    def alarm_changed(self, reason: str) -> None:
        """Handle a change of the alarms; `reason` is empty if none is active."""
        ...


class Observer(Protocol):
    """Callback for the alarm state of single resources."""

    def __call__(self, resource: Resource, *, low: bool) -> None:
        """Handle that `resource` has become low, or is no longer."""
        ...


class Alarms:
    """Alarm state of the resources. Notifies `watchers` and `observer` of changes.

    A callback that raises is reported with `report(callback, error)`; the others are still called.
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
        """Resources that are low now, in the order of `Resource`."""
        return [resource for resource in Resource if resource in self._low]

    def set(self, resource: Resource, *, low: bool) -> bool:
        """Record the state of one resource. Returns whether it changed."""
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
