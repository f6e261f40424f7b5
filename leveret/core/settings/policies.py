"""Policies: settings for all queues and exchanges whose names match a regular expression.

Of the policies that match a resource only the one of the highest priority counts, and of equal ones
the first by name. An operator policy is chosen the same way, and limits the values of the other
one. Patterns are searched in names, not matched whole (see leveret.core.patterns).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from leveret.core.erlang_terms import binary, json_term, term
from leveret.core.patterns import NOWHERE, PATTERN_CHARACTERS_MAX, Pattern, PatternError
from leveret.core.settings.contradictions import contradictions_of_policy
from leveret.core.settings.policy_settings import SETTINGS, bounded, foreign_to, merged
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.ports.definitions import Json, PolicyDefinition

__all__ = ["NO_POLICY", "EffectivePolicy", "InvalidPolicyError", "Policies", "check_policy"]

QUEUES_OF_TYPE: Final = {
    "classic": "classic_queues",
    "quorum": "quorum_queues",
    "stream": "streams",
}
APPLY_TO: Final = {"all", "queues", "exchanges", *QUEUES_OF_TYPE.values()}


class InvalidPolicyError(LeveretError):
    """Raised for an invalid policy, with the text that RabbitMQ's tools show."""


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """Effective policy of one queue or exchange; `definition` must not be changed."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Json] = field(default_factory=dict)


NO_POLICY: Final = EffectivePolicy()


@dataclass(frozen=True, slots=True)
class _Ready:
    """Policy with its compiled pattern."""

    definition: PolicyDefinition
    pattern: Pattern

    @property
    def rank(self) -> tuple[int, str]:
        return -self.definition.priority, self.definition.name


class Policies:
    """All policies of a node, in memory."""

    def __init__(self) -> None:
        # By (vhost, operator), in order of precedence.
        self._ranked: dict[tuple[str, bool], list[_Ready]] = {}

    def restore(self, definitions: Iterable[PolicyDefinition]) -> None:
        """Restore the stored policies; one that is no longer valid applies to nothing."""
        for kept in definitions:
            definition = replace(kept, definition=bounded(kept.definition))
            try:
                pattern = check_policy(definition)
            except InvalidPolicyError:
                pattern = NOWHERE
            self._place(_Ready(definition, pattern))

    def put(self, definition: PolicyDefinition, *, imported: bool = False) -> None:
        """Add or replace a policy. Raises InvalidPolicyError.

        An imported one may have settings without effect, as a stored one.
        """
        pattern = check_policy(definition)
        if not imported:
            for setting, problem in contradictions_of_policy(definition):
                raise InvalidPolicyError(f"{setting}: {problem}")
        self._place(_Ready(definition, pattern))

    def _place(self, ready: _Ready) -> None:
        definition = ready.definition
        self.remove(definition.vhost, definition.name, operator=definition.operator)
        ranked = self._ranked.setdefault((definition.vhost, definition.operator), [])
        ranked.append(ready)
        ranked.sort(key=lambda held: held.rank)

    def remove(self, vhost: str, name: str, *, operator: bool) -> PolicyDefinition | None:
        """Remove and return a policy; None if it does not exist."""
        ranked = self._ranked.get((vhost, operator), [])
        for index, held in enumerate(ranked):
            if held.definition.name == name:
                return ranked.pop(index).definition
        return None

    def remove_vhost(self, vhost: str) -> list[PolicyDefinition]:
        """Remove and return all policies of a virtual host."""
        return [
            held.definition
            for operator in (False, True)
            for held in self._ranked.pop((vhost, operator), [])
        ]

    def select(self, vhost: str | None = None, *, operator: bool) -> list[PolicyDefinition]:
        """Return policies of one kind, of one virtual host or all; by vhost, then precedence."""
        return [
            held.definition
            for (of_vhost, kind), ranked in sorted(self._ranked.items())
            if kind is operator and vhost in {None, of_vhost}
            for held in ranked
        ]

    def for_queue(self, vhost: str, name: str, queue_type: str) -> EffectivePolicy:
        """Return the effective policy of a queue."""
        applying = {"all", "queues", QUEUES_OF_TYPE[queue_type]}
        return self._effective(vhost, name, applying, queue_type)

    def for_exchange(self, vhost: str, name: str) -> EffectivePolicy:
        """Return the effective policy of an exchange."""
        return self._effective(vhost, name, {"all", "exchanges"}, None)

    def _effective(
        self, vhost: str, name: str, applying: set[str], queue_type: str | None
    ) -> EffectivePolicy:
        own, operators = (
            self._first(self._ranked.get((vhost, operator), ()), name, applying, queue_type)
            for operator in (False, True)
        )
        if own is None and operators is None:
            return NO_POLICY
        return EffectivePolicy(
            own.name if own else None,
            operators.name if operators else None,
            merged(own.definition if own else {}, operators.definition if operators else {}),
        )

    @staticmethod
    def _first(
        ranked: Iterable[_Ready], name: str, applying: set[str], queue_type: str | None
    ) -> PolicyDefinition | None:
        """Return the first policy that applies.

        One with a setting foreign to the queue's type does not.
        """
        for held in ranked:
            definition = held.definition
            if (
                definition.apply_to in applying
                and (
                    queue_type is None
                    or foreign_to(queue_type, definition.apply_to).isdisjoint(definition.definition)
                )
                and held.pattern.is_in(name)
            ):
                return definition
        return None


def check_policy(policy: PolicyDefinition) -> Pattern:
    """Return the policy's compiled pattern. Raises InvalidPolicyError for the first error."""
    pattern = _compiled(policy.pattern)
    if policy.apply_to not in APPLY_TO:
        raise InvalidPolicyError(
            f"apply-to '{policy.apply_to}' unrecognised; should be one of: 'queues', "
            "'classic_queues',  'quorum_queues', 'streams', 'exchanges', or 'all'"
        )
    if not policy.definition:
        raise InvalidPolicyError("no policy provided")
    unknown = []
    for key, value in sorted(policy.definition.items()):
        setting = SETTINGS.get(key)
        if setting is None or (policy.operator and not setting.operator):
            unknown.append(f"{{{binary(key)},{json_term(value)}}}")
        elif (problem := setting.problem(value)) is not None:
            raise InvalidPolicyError(problem)
    if unknown:
        raise InvalidPolicyError(f"[{','.join(unknown)}] are not recognised policy settings")
    return pattern


def _compiled(pattern: str) -> Pattern:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidPolicyError(f"pattern is longer than {PATTERN_CHARACTERS_MAX} characters")
    try:
        return Pattern(pattern)
    except PatternError as error:
        quoted = term(error.reason).removeprefix("<<").removesuffix(">>")
        raise InvalidPolicyError(
            f"pattern should be regular expression but is invalid: {{{quoted},{error.position}}}"
        ) from None
