"""Parameters: JSON values that operators set for components, such as alerts, and for the node.

They are stored and listed here; their meaning is up to the component.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.ports.definitions import GlobalParameterDefinition, ParameterDefinition

__all__ = ["CLUSTER_NAME", "Parameters"]

CLUSTER_NAME = "cluster_name"  # RabbitMQ's name of the parameter


class Parameters:
    """All parameters of a node, in memory."""

    def __init__(self) -> None:
        # By (vhost, component, name).
        self._held: dict[tuple[str, str, str], ParameterDefinition] = {}
        self._global: dict[str, GlobalParameterDefinition] = {}
        # By component: what is told of changes, with virtual host and name.
        self._followers: dict[str, Callable[[str, str], None]] = {}

    def follow(self, component: str, changed: Callable[[str, str], None]) -> None:
        """Call `changed(vhost, name)` after each change of a component's parameter."""
        self._followers[component] = changed

    def find(self, vhost: str, component: str, name: str) -> ParameterDefinition | None:
        """Return a parameter, or None."""
        return self._held.get((vhost, component, name))

    def _tell(self, parameter: ParameterDefinition) -> None:
        if follower := self._followers.get(parameter.component):
            follower(parameter.vhost, parameter.name)

    def restore(
        self,
        parameters: Iterable[ParameterDefinition],
        global_parameters: Iterable[GlobalParameterDefinition],
    ) -> None:
        """Restore the stored parameters."""
        for parameter in parameters:
            self.put(parameter)
        for global_parameter in global_parameters:
            self.put_global(global_parameter)

    def select(
        self, *, vhost: str | None = None, component: str | None = None
    ) -> list[ParameterDefinition]:
        """Return those of a virtual host, of a component, or all; by vhost, component and name."""
        return [
            held
            for _, held in sorted(self._held.items(), key=lambda item: item[0])
            if vhost in {None, held.vhost} and component in {None, held.component}
        ]

    def all_global(self) -> list[GlobalParameterDefinition]:
        """Return the global parameters, sorted by name."""
        return sorted(self._global.values(), key=lambda held: held.name)

    @property
    def cluster_name(self) -> str | None:
        """Cluster name set by an administrator, or None."""
        held = self._global.get(CLUSTER_NAME)
        return held.value if held is not None and isinstance(held.value, str) else None

    def put(self, parameter: ParameterDefinition) -> None:
        """Add or replace a parameter."""
        self._held[parameter.vhost, parameter.component, parameter.name] = parameter
        self._tell(parameter)

    def remove(self, vhost: str, component: str, name: str) -> ParameterDefinition | None:
        """Remove and return a parameter; None if it does not exist."""
        removed = self._held.pop((vhost, component, name), None)
        if removed is not None:
            self._tell(removed)
        return removed

    def remove_vhost(self, vhost: str) -> list[ParameterDefinition]:
        """Remove and return all parameters of a virtual host."""
        doomed = self.select(vhost=vhost)
        for parameter in doomed:
            self.remove(vhost, parameter.component, parameter.name)
        return doomed

    def put_global(self, parameter: GlobalParameterDefinition) -> None:
        """Add or replace a global parameter."""
        self._global[parameter.name] = parameter

    def remove_global(self, name: str) -> GlobalParameterDefinition | None:
        """Remove and return a global parameter; None if it does not exist."""
        return self._global.pop(name, None)
