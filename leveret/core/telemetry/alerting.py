"""Alerts: the rules that operators and owners of queues have set, looked at every few seconds.

Rules are parameters of the component `alert` in a virtual host (see leveret.features.alerts), so
they are kept, exported and guarded as policies are. What begins or ends is told as the event
`alert.firing` or `alert.resolved`, and to `tell`, which knows webhooks; a restart tells again what
still fires.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from leveret.core.browse.browsing import BrowseCursor
from leveret.core.browse.message_filter import MessageFilter
from leveret.core.queues.queue import Queue
from leveret.errors import StorageError
from leveret.features.alerts import (
    COMPONENT,
    NODE_CONDITIONS,
    AlertRule,
    Condition,
    InvalidRuleError,
    LastMinute,
    Watch,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from leveret.core.broker import Broker
    from leveret.core.definitions.parameters import Parameters
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.features.alerts import Alert

__all__ = ["Alerting"]

PAST_MAX = 1000  # alerts that are over, or began, and are still shown
SLICE_CHECKS = 40  # of a rule and a queue: a fraction of a millisecond of the event loop
WATCHES_MAX = 100_000  # what holds and is remembered, a fifth of a kilobyte each
MATCHES_MAX = 1_000_000  # rules of queues that are remembered, eight bytes each


class _Counts(NamedTuple):
    """What a queue has done so far, at one look."""

    at_ms: int
    published: int
    delivered: int

    def rate(self, earlier: int, now: int, since: _Counts) -> float:
        """How many a second came in between."""
        passed = self.at_ms - since.at_ms
        return max(now - earlier, 0) * 1000 / passed if passed > 0 else 0.0


class _Seen:
    """What a look has met, and the next one compares with."""

    def __init__(self) -> None:
        self.watches: set[tuple[str, str, str]] = set()  # that are to be remembered
        self.counts: dict[tuple[str, str], _Counts] = {}  # of queues of which rates are watched
        self.deaths: dict[tuple[str, str], LastMinute] = {}
        self.aged: set[tuple[str, str]] = set()


class _Matches:
    """Which of a virtual host's rules concern which queue: matched once, not at every look."""

    def __init__(self, rules: list[AlertRule]) -> None:
        self.rules = rules
        self._known: dict[str, list[AlertRule]] = {}
        self._seen: dict[str, list[AlertRule]] = {}  # at this look
        self._count = 0

    def of(self, name: str) -> list[AlertRule] | None:
        """The rules of a queue; None: not known."""
        found = self._known.get(name)
        if found is not None:
            self.keep(name, found)
        return found

    def keep(self, name: str, rules: list[AlertRule]) -> None:
        """Remember the rules of a queue, if there is room."""
        if self._count + len(rules) < MATCHES_MAX:
            self._count += len(rules) + 1
            self._seen[name] = rules

    def rotate(self) -> None:
        """A look is over: forget the queues that it did not meet."""
        self._known, self._seen, self._count = self._seen, {}, 0


class Alerting:
    """All rules of a node and what they watch.

    `node_values()` tells the node's own conditions; `tell(alert)` must return at once;
    `breathe()` lets others have a turn of the loop.
    """

    def __init__(
        self,
        broker: Broker,
        parameters: Parameters,
        *,
        wall_ms: Callable[[], int],
        node_values: Callable[[], Mapping[Condition, float]],
        tell: Callable[[Alert], None],
        breathe: Callable[[], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._parameters = parameters
        self._wall_ms = wall_ms
        self._node_values = node_values
        self._tell = tell
        self._breathe = breathe
        self._rules: dict[tuple[str, str], tuple[object, AlertRule]] = {}
        self._watches: dict[tuple[str, str, str], Watch] = {}  # by vhost, rule and subject
        self._before = _Seen()
        self._looked_ms = wall_ms()  # when the last look began
        self._heads: dict[tuple[str, str], tuple[int, int]] = {}  # oldest record, and since when
        self._matches: dict[str, _Matches] = {}  # by virtual host
        self._checks = 0  # since others had a turn
        self.overlooked = 0  # what the last look found too much to remember
        self.past: deque[Alert] = deque(maxlen=PAST_MAX)

    @property
    def firing(self) -> list[Alert]:
        """What fires now, by virtual host, rule and subject."""
        return [watch.alert for _, watch in sorted(self._watches.items()) if watch.is_firing]

    def rules(self) -> list[AlertRule]:
        """The rules as they are now; what was kept and makes no sense any more is left out."""
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
        """One look at everything that is watched."""
        self.overlooked = 0
        seen, began_ms = _Seen(), self._wall_ms()
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
        self._heads = {place: head for place, head in self._heads.items() if place in seen.aged}
        for place in [place for place in self._watches if place not in seen.watches]:
            self._note(self._watches.pop(place).end())  # the rule or the queue is gone

    async def _queues(self, vhost: str) -> AsyncIterator[OpenQueue]:
        held = self._broker.vhosts.get(vhost)
        for name in list(held.queues) if held is not None else ():
            await self._checked()
            queue = held.queues.get(name) if held is not None else None
            if held is not None and queue is not None:
                yield self._broker.find_queue(held, name, queue.owner)

    async def _checked(self) -> None:
        """One more rule and queue."""
        self._checks += 1
        if self._checks >= SLICE_CHECKS:
            self._checks = 0
            await self._breathe()

    async def _look(self, queue: OpenQueue, matches: _Matches, seen: _Seen) -> None:
        """One queue, by all rules that concern it."""
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
            value = await self._value(queue, rule.condition, place, seen)
            self._observe(rule, name, value, seen)

    async def _value(
        self, queue: OpenQueue, condition: Condition, place: tuple[str, str], seen: _Seen
    ) -> float:
        """What is compared with thresholds."""
        match condition:
            case Condition.BACKLOG:
                return queue.message_count
            case Condition.UNACKNOWLEDGED:
                return queue.leased_count
            case Condition.NO_CONSUMERS:
                return 0 if queue.consumer_count else queue.message_count
            case Condition.AGE:
                seen.aged.add(place)
                return await self._age_seconds(queue, place)
            case Condition.DEAD_LETTERS:
                return self._deaths(queue, place, seen)
            case _:
                return self._rate(queue, condition, place, seen)

    def _deaths(self, queue: OpenQueue, place: tuple[str, str], seen: _Seen) -> float:
        """How many messages a queue has given up within the last minute."""
        now_ms, died = self._wall_ms(), _died(queue)
        deaths = seen.deaths.get(place) or self._before.deaths.get(place)
        if self._is_new(queue):
            deaths = LastMinute(self._looked_ms, 0)
        elif deaths is None:
            deaths = LastMinute(now_ms, died)
        seen.deaths[place] = deaths
        return deaths.grown(now_ms, died)

    def _is_new(self, queue: OpenQueue) -> bool:
        """Whether all that a queue has counted has come since the last look."""
        return queue.opened_ms >= self._looked_ms

    def _rate(
        self, queue: OpenQueue, condition: Condition, place: tuple[str, str], seen: _Seen
    ) -> float:
        """How fast a queue's counts have grown since the last look."""
        now = seen.counts.get(place)
        if now is None:
            now = seen.counts[place] = _Counts(
                self._wall_ms(), queue.appended_count, queue.total_usage().messages_out
            )
        before = self._before.counts.get(place)
        if self._is_new(queue):
            before = _Counts(self._looked_ms, 0, 0)
        if before is None:
            return 0.0
        if condition is Condition.PUBLISH_RATE:
            return now.rate(before.published, now.published, before)
        return now.rate(before.delivered, now.delivered, before)

    async def _age_seconds(self, queue: OpenQueue, place: tuple[str, str]) -> float:
        """For how long the oldest message that is not settled has been in a queue."""
        if not isinstance(queue, Queue):
            return 0.0  # a stream keeps what was read
        log = queue.log
        oldest = log.settled.gaps(log.first, log.committed).first
        if oldest is None:
            return 0.0
        head = self._heads.get(place)
        if head is None or head[0] != oldest:
            try:
                head = oldest, await self._time_ms(queue, oldest)
            except StorageError:
                return 0.0  # whoever is to deliver it finds out, and says so
            self._heads[place] = head
        return max(self._wall_ms() - head[1], 0) / 1000

    async def _time_ms(self, queue: Queue, offset: int) -> int:
        """When a record came into its queue; now, where it is gone by now."""
        async for found in BrowseCursor(queue, offset, offset + 1).matching(MessageFilter()):
            for one in found:
                return one.time_ms
        return self._wall_ms()

    def _observe(self, rule: AlertRule, subject: str, value: float, seen: _Seen) -> None:
        place = rule.vhost, rule.name, subject
        watch = self._watches.get(place)
        if watch is not None and watch.rule is not rule:  # it was changed
            self._note(watch.end())
            watch = None
        if watch is None:
            watch = Watch(rule, subject)
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
        """Something begins or ends."""
        if alert is None:
            return
        rule = alert.rule
        self.past.append(alert)
        self._broker.events.emit(
            "alert.firing" if alert.is_firing else "alert.resolved",
            {
                "name": rule.name,
                "vhost": rule.vhost,
                "condition": rule.condition.value,
                "queue": alert.subject,
                "value": alert.value,
                "threshold": rule.threshold,
                "unit": rule.condition.unit,
                "severity": rule.severity.value,
                "summary": rule.summary,
            },
        )
        self._tell(alert)


def _died(queue: OpenQueue) -> int:
    return queue.died_count if isinstance(queue, Queue) else 0
