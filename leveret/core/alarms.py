"""Resource alarms: while one is active, publishing connections are blocked and notified."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from leveret.ports.callbacks import call_each, do_nothing

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

    In a cluster the alarms of all nodes block the publishers of each: whoever is connected to one
    node fills the disks of those that have the replicas. A callback that raises is reported with
    `report(callback, error)`; the others are still called.
    """

    def __init__(
        self,
        watchers: Iterable[Watcher],
        report: Callable[[object, Exception], None],
        observer: Observer | None = None,
    ) -> None:
        self.on_change: Callable[[], None] = do_nothing  # of the alarms of this node
        self._watchers = watchers
        self._report = report
        self._observer = observer
        self._low: set[Resource] = set()
        self._elsewhere: dict[str, frozenset[Resource]] = {}  # by the name of the node
        self.reason = ""

    @property
    def low(self) -> list[Resource]:
        """Resources that are low on this node now, in the order of `Resource`."""
        return [resource for resource in Resource if resource in self._low]

    @property
    def elsewhere(self) -> list[tuple[str, Resource]]:
        """Nodes whose resources are low, other than this one, each with a resource."""
        return [
            (node, resource)
            for node, low in sorted(self._elsewhere.items())
            for resource in Resource
            if resource in low
        ]

    def set(self, resource: Resource, *, low: bool) -> bool:
        """Record the state of one resource of this node. Returns whether it changed."""
        if low is (resource in self._low):
            return False
        (self._low.add if low else self._low.discard)(resource)
        self._tell()
        told: list[Callable[[], None]] = [self.on_change]
        if self._observer is not None:
            told.append(partial(self._observer, resource, low=low))
        call_each(told, self._report)
        return True

    def set_elsewhere(self, node: str, low: frozenset[Resource]) -> bool:
        """Record which resources of another node are low. Returns whether that changed."""
        if low == self._elsewhere.get(node, frozenset()):
            return False
        if low:
            self._elsewhere[node] = low
        else:
            del self._elsewhere[node]
        self._tell()
        return True

    def _tell(self) -> None:
        """Tell the connections what is low now, wherever it is."""
        low = self._low.union(*self._elsewhere.values())
        names = [resource.value for resource in Resource if resource in low]
        reason = f"low on {' & '.join(names)}" if names else ""
        if reason != self.reason:
            self.reason = reason
            call_each(
                [partial(watcher.alarm_changed, reason) for watcher in self._watchers],
                self._report,
            )
