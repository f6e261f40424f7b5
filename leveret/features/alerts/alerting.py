"""Alerts: evaluation of the configured alert rules every few seconds.

Rules are parameters of the component `alert` in a virtual host (see leveret.features.alerts.rules),
so they are stored, exported and protected like policies. When an alert begins or ends, the event
`alert.firing` or `alert.resolved` is published, and `tell` is called, for webhooks; alerts still
firing after a restart are reported again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

from leveret.errors import StorageError
from leveret.features.alerts.rules import (
    COMPONENT,
    NODE_CONDITIONS,
    AlertCondition,
    AlertRule,
    InvalidRuleError,
    LastMinute,
    Watch,
)
from leveret.features.browse.browsing import BrowseCursor
from leveret.features.browse.message_filter import MessageFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from leveret.core.definitions.parameters import Parameters
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.telemetry.event_exchange import Events
    from leveret.core.vhost import Vhost
    from leveret.features.alerts.rules import Alert

__all__ = ["Alerting"]

PAST_MAX = 1000  # past alerts kept for display
SLICE_CHECKS = 40  # of rule and queue, per slice: a fraction of a millisecond
WATCHES_MAX = 100_000  # active watches, a fifth of a kilobyte each
MATCHES_MAX = 1_000_000  # cached matches of rules and queues, eight bytes each


class _Counts(NamedTuple):
    """Counts of a queue at one check."""

    at_ms: int
    published: int
    delivered: int

    def rate(self, earlier: int, now: int, since: _Counts) -> float:
        """Return the rate per second between two checks."""
        passed = self.at_ms - since.at_ms
        return max(now - earlier, 0) * 1000 / passed if passed > 0 else 0.0


class _Readings:
    """State of one check, for comparison with the next."""

    def __init__(self) -> None:
        self.watches: set[tuple[str, str, str, str]] = set()  # watches that are still needed
        self.counts: dict[tuple[str, str], _Counts] = {}  # counts of queues with rate rules
        self.deaths: dict[tuple[str, str], LastMinute] = {}
        self.aged: set[tuple[str, str]] = set()


class _Matches:
    """Cache of the rules that apply to each queue of a virtual host."""

    def __init__(self, rules: list[AlertRule]) -> None:
        self.rules = rules
        self._known: dict[str, list[AlertRule]] = {}
        self._seen: dict[str, list[AlertRule]] = {}  # at this check
        self._count = 0

    def of(self, name: str) -> list[AlertRule] | None:
        """Return the cached rules of a queue; None if unknown."""
        found = self._known.get(name)
        if found is not None:
            self.keep(name, found)
        return found

    def keep(self, name: str, rules: list[AlertRule]) -> None:
        """Cache the rules of a queue, if there is room."""
        if self._count + len(rules) < MATCHES_MAX:
            self._count += len(rules) + 1
            self._seen[name] = rules

    def rotate(self) -> None:
        """End a check: drop the queues that were not seen."""
        self._known, self._seen, self._count = self._seen, {}, 0


class Alerting:
    """Alert rules of a node and their states.

    `node_values()` returns the values of the node's conditions; `tell(alert)` must not block;
    `breathe()` yields to the event loop; `lags_of(queue)` returns the lags of its consumer groups.
    """

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        events: Events,
        parameters: Parameters,
        *,
        wall_ms: Callable[[], int],
        node_values: Callable[[], Mapping[AlertCondition, float]],
        tell: Callable[[Alert], None],
        breathe: Callable[[], Awaitable[None]],
        lags_of: Callable[[DeclaredQueue], Mapping[str, int]],
    ) -> None:
        self._vhosts = vhosts
        self._events = events
        self._parameters = parameters
        self._wall_ms = wall_ms
        self._node_values = node_values
        self._tell = tell
        self._breathe = breathe
        self._lags_of = lags_of
        self._rules: dict[tuple[str, str], tuple[object, AlertRule]] = {}
        # By vhost, rule, subject and consumer group.
        self._watches: dict[tuple[str, str, str, str], Watch] = {}
        self._before = _Readings()
        self._looked_ms = wall_ms()  # start of the last check
        self._heads: dict[tuple[str, str, int], tuple[int, int]] = {}  # (oldest offset, its time)
        self._matches: dict[str, _Matches] = {}  # by virtual host
        self._checks = 0  # since the last yield
        self.overlooked = 0  # watches dropped by the last check because there were too many
        self.past: deque[Alert] = deque(maxlen=PAST_MAX)

    @property
    def firing(self) -> list[Alert]:
        """Alerts firing now, by virtual host, rule and subject."""
        return [watch.alert for _, watch in sorted(self._watches.items()) if watch.is_firing]

    def rules(self) -> list[AlertRule]:
        """Return the current rules; stored ones that are no longer valid are skipped."""
        held = self._parameters.select(component=COMPONENT)
        known, self._rules = self._rules, {}
        for parameter in held:
            place = parameter.vhost, parameter.name
            before = known.get(place)
            if before is not None and before[0] is parameter.value:
                self._rules[place] = before
                continue
            try:
                rule = AlertRule.parse(*place, parameter.value)
            except InvalidRuleError:
                continue
            self._rules[place] = parameter.value, rule
        return [rule for _, rule in self._rules.values()]

    async def check(self) -> None:
        """Evaluate all rules once."""
        self.overlooked = 0
        seen, began_ms = _Readings(), self._wall_ms()
        rules = [rule for rule in self.rules() if rule.enabled]
        of_queues = [rule for rule in rules if rule.condition not in NODE_CONDITIONS]
        values = self._node_values() if len(of_queues) < len(rules) else {}
        for rule in rules:
            if rule.condition in values:
                self._observe(rule, "", values[rule.condition], seen)
        by_vhost: dict[str, list[AlertRule]] = {}
        for rule in of_queues:
            by_vhost.setdefault(rule.vhost, []).append(rule)
        known, self._matches = self._matches, {}
        for vhost, its_rules in by_vhost.items():
            matches = known.get(vhost)
            if matches is None or matches.rules != its_rules:
                matches = _Matches(its_rules)
            self._matches[vhost] = matches
            async for queue in self._queues(vhost):
                await self._look(queue, matches, seen)
            matches.rotate()
        self._before, self._looked_ms = seen, began_ms
        self._heads = {at: head for at, head in self._heads.items() if at[:2] in seen.aged}
        for place in [place for place in self._watches if place not in seen.watches]:
            self._note(self._watches.pop(place).end())  # the rule or the queue was deleted

    async def _queues(self, vhost: str) -> AsyncIterator[DeclaredQueue]:
        held = self._vhosts.get(vhost)
        for name in list(held.queues) if held is not None else ():
            await self._checked()
            queue = held.queues.get(name) if held is not None else None
            if held is not None and queue is not None:
                yield cast("DeclaredQueue", held.check_queue(name, queue.owner))

    async def _checked(self) -> None:
        """Count a check of one rule and queue; yield after a slice."""
        self._checks += 1
        if self._checks >= SLICE_CHECKS:
            self._checks = 0
            await self._breathe()

    async def _look(self, queue: DeclaredQueue, matches: _Matches, seen: _Readings) -> None:
        """Evaluate the rules that apply to one queue."""
        name = queue.name
        place = queue.definition.vhost, name
        concerned = matches.of(name)
        if concerned is None:
            concerned = []
            for rule in matches.rules:
                await self._checked()
                if rule.concerns(name):
                    concerned.append(rule)
            matches.keep(name, concerned)
        for rule in concerned:
            await self._checked()
            if queue.deleted:
                return
            if rule.condition is AlertCondition.GROUP_LAG:
                await self._look_at_groups(queue, rule, seen)
                continue
            value = await self._value(queue, rule.condition, place, seen)
            self._observe(rule, name, value, seen)

    async def _look_at_groups(self, queue: DeclaredQueue, rule: AlertRule, seen: _Readings) -> None:
        """Evaluate a rule on the consumer groups of one queue."""
        for group, lag in self._lags_of(queue).items():
            await self._checked()
            if rule.concerns_group(group):
                self._observe(rule, queue.name, lag, seen, group)

    async def _value(
        self,
        queue: DeclaredQueue,
        condition: AlertCondition,
        place: tuple[str, str],
        seen: _Readings,
    ) -> float:
        """Return the value to be compared with the threshold."""
        match condition:
            case AlertCondition.BACKLOG:
                return queue.message_count
            case AlertCondition.UNACKNOWLEDGED:
                return queue.leased_count
            case AlertCondition.NO_CONSUMERS:
                return 0 if queue.consumer_count else queue.message_count
            case AlertCondition.AGE:
                seen.aged.add(place)
                return await self._age_seconds(queue, place)
            case AlertCondition.DEAD_LETTERS:
                return self._deaths(queue, place, seen)
            case _:
                return self._rate(queue, condition, place, seen)

    def _deaths(self, queue: DeclaredQueue, place: tuple[str, str], seen: _Readings) -> float:
        """Return how many messages a queue has discarded within the last minute."""
        now_ms, died = self._wall_ms(), queue.died_count
        deaths = seen.deaths.get(place) or self._before.deaths.get(place)
        if self._is_new(queue):
            deaths = LastMinute(self._looked_ms, 0)
        elif deaths is None:
            deaths = LastMinute(now_ms, died)
        seen.deaths[place] = deaths
        return deaths.grown(now_ms, died)

    def _is_new(self, queue: DeclaredQueue) -> bool:
        """Whether a queue was opened since the last check, so that its counts began at 0."""
        return queue.opened_ms >= self._looked_ms

    def _rate(
        self,
        queue: DeclaredQueue,
        condition: AlertCondition,
        place: tuple[str, str],
        seen: _Readings,
    ) -> float:
        """Return the rate of a queue's counts since the last check."""
        now = seen.counts.get(place)
        if now is None:
            now = seen.counts[place] = _Counts(
                self._wall_ms(), queue.position, queue.total_usage().messages_out
            )
        before = self._before.counts.get(place)
        if self._is_new(queue):
            before = _Counts(self._looked_ms, 0, 0)
        if before is None:
            return 0.0
        if condition is AlertCondition.PUBLISH_RATE:
            return now.rate(before.published, now.published, before)
        return now.rate(before.delivered, now.delivered, before)

    async def _age_seconds(self, queue: DeclaredQueue, place: tuple[str, str]) -> float:
        """Return the age of a queue's oldest unsettled message, in seconds."""
        if queue.settings.is_stream:
            return 0.0  # settled records of a stream say nothing about consumption
        ages = [await self._age_of(part, place) for part in queue.partitions]
        return max(ages)

    async def _age_of(self, part: OpenQueue, place: tuple[str, str]) -> float:
        """Return the age of a partition's oldest unsettled message, in seconds."""
        log = part.log
        oldest = log.settled.gaps(log.first, log.committed).first
        if oldest is None:
            return 0.0
        head = self._heads.get((*place, part.number))
        if head is None or head[0] != oldest:
            try:
                head = oldest, await self._time_ms(part, oldest)
            except StorageError:
                return 0.0  # deliveries handle and report the damage
            self._heads[*place, part.number] = head
        return max(self._wall_ms() - head[1], 0) / 1000

    async def _time_ms(self, queue: OpenQueue, offset: int) -> int:
        """Return when a record was stored in its queue; now, if it is gone."""
        async for found in BrowseCursor(queue, offset, offset + 1).matching(MessageFilter()):
            for one in found:
                return one.time_ms
        return self._wall_ms()

    def _observe(
        self, rule: AlertRule, subject: str, value: float, seen: _Readings, group: str = ""
    ) -> None:
        place = rule.vhost, rule.name, subject, group
        watch = self._watches.get(place)
        if watch is not None and watch.rule is not rule:  # the rule was changed
            self._note(watch.end())
            watch = None
        if watch is None:
            watch = Watch(rule, subject, group)
        alert = watch.observe(value, self._wall_ms())
        if not watch.is_quiet:
            if place not in self._watches and len(self._watches) >= WATCHES_MAX:
                self.overlooked += 1
                return
            self._watches[place] = watch
            seen.watches.add(place)
        else:
            self._watches.pop(place, None)
        self._note(alert)

    def _note(self, alert: Alert | None) -> None:
        """Record and report a state change of an alert."""
        if alert is None:
            return
        rule = alert.rule
        self.past.append(alert)
        self._events.emit(
            "alert.firing" if alert.is_firing else "alert.resolved",
            {
                "name": rule.name,
                "vhost": rule.vhost,
                "condition": rule.condition.value,
                "queue": alert.subject,
                "group": alert.group,
                "value": alert.value,
                "threshold": rule.threshold,
                "unit": rule.condition.unit,
                "severity": rule.severity.value,
                "summary": rule.summary,
            },
        )
        self._tell(alert)
