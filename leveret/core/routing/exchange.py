"""Exchange: its definition, its router, and its edges in the routing graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.routes import Route, RouteCache
from leveret.core.settings.arguments import ALTERNATE_EXCHANGE, DEDUP_WINDOW, window_ms
from leveret.core.settings.policies import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from leveret.core.routing.bindings import Binding
    from leveret.core.routing.router import Router
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.ports.counters import Counters
    from leveret.ports.definitions import ExchangeDefinition


class Exchange:
    """A named point to publish to.

    Its `cache` stays the same object as long as the exchange exists; connections keep it. It counts
    publishes.
    """

    __slots__ = (
        "cache",
        "dedup_window_ms",
        "definition",
        "filters",
        "gone",
        "incoming",
        "outgoing",
        "policy",
        "router",
    )

    def __init__(
        self,
        definition: ExchangeDefinition,
        router: Router,
        resolve: Callable[[Exchange, bytes], Route],
        policy: EffectivePolicy = NO_POLICY,
    ) -> None:
        self.definition = definition
        self.follow_policy(policy)
        self.router = router
        self.outgoing: dict[Hashable, Binding] = {}
        self.incoming: dict[Hashable, Binding] = {}
        self.filters = 0  # number of its bindings with a filter
        self.gone = False  # deleted: remaining bindings have no effect
        self.cache = RouteCache(self, lambda key: resolve(self, key), router.key_decides)

    @property
    def counters(self) -> Counters:
        """Publish counters."""
        return self.cache.counters

    @property
    def name(self) -> str:
        """Name of the exchange; empty for the default exchange."""
        return self.definition.name

    @property
    def key_decides(self) -> bool:
        """Whether its routes depend on the routing key alone."""
        return self.router.key_decides and not self.filters

    @property
    def alternate(self) -> str | None:
        """Name of the alternate exchange, or None; the argument overrides the policy."""
        given = self.policy.definition.get(ALTERNATE_EXCHANGE)
        name = self.definition.arguments.get(ALTERNATE_EXCHANGE, given)
        return name if isinstance(name, str) else None

    def follow_policy(self, policy: EffectivePolicy) -> None:
        """Set its policy, and the settings by that; its arguments override the policy."""
        self.policy = policy
        stated = self.definition.arguments.get(DEDUP_WINDOW)
        if stated is None:
            stated = policy.definition.get("dedup-window")
        self.dedup_window_ms = window_ms(stated)  # None: messages are not de-duplicated

    def __repr__(self) -> str:
        return f"Exchange({self.definition!r})"
