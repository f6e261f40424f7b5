"""Arguments and settings that are valid each, and have no effect or contradict one another.

Whoever states them has made a slip, and would find out only when messages are missing, or lie in
the wrong place. So they are refused where something new is declared. Definitions of earlier
releases were accepted with them: they are restored, imported and changed as they are.

Only names that RabbitMQ does not have are refused here: it ignores arguments in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from leveret.core.names import resource
from leveret.core.settings.arguments import (
    DEDUP_WINDOW,
    FEATURES,
    GROUP_ASSIGN,
    GROUP_MEMBERS,
    GROUP_ORDERING,
    GROUP_SESSION,
    HOLDING,
    RETRY,
    VISIBILITY_TIMEOUT,
    type_of,
)
from leveret.core.settings.partitioning import BY_KEY, NOT_BY_KEY, layout_of, numbers_text
from leveret.core.settings.queue_settings import STREAM_AGE_MS_MAX
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS
from leveret.core.settings.stream_offsets import duration_ms, interval_ms
from leveret.errors import ChannelError
from leveret.features.filters.rules import FILTER_CHECKS, FILTER_UNMATCHED, SKIP

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from leveret.ports.definitions import (
        Arguments,
        ExchangeDefinition,
        PolicyDefinition,
        QueueDefinition,
    )

__all__ = [
    "Contradiction",
    "check_consumer",
    "check_exchange",
    "check_queue",
    "contradictions_of_policy",
    "contradictions_of_queue",
]


class Contradiction(NamedTuple):
    """Name of an argument or setting, and what is wrong with it beside the others."""

    name: str
    problem: str


Stated: TypeAlias = Mapping[str, Any]  # valid values by the names of policies' settings
Name: TypeAlias = Callable[[str], str]  # what a setting is called where it is stated
# Returns what is wrong with a value, given all that is stated and what to call the others, or None.
Check: TypeAlias = Callable[[Any, Stated, Name], str | None]


# -- names in the wrong place

# Leveret's own arguments, by what takes them. Bindings are not there: their arguments belong to the
# type of the exchange, and a headers exchange compares any name.
OWN_ARGUMENTS: Final[dict[str, Collection[str]]] = {
    "queues": {
        *RETRY,
        *HOLDING,
        *FEATURES,
        "x-dead-letter-topic",
        VISIBILITY_TIMEOUT,
        GROUP_ORDERING,
    },
    "consumers": {*FILTER_CHECKS, *GROUP_MEMBERS, VISIBILITY_TIMEOUT},
    "exchanges": {DEDUP_WINDOW},
}


def misplaced(place: str, arguments: Arguments) -> Iterator[Contradiction]:
    """Yield the arguments of a queue, a consumer or an exchange that only others take."""
    for name in arguments:
        if name not in OWN_ARGUMENTS[place]:
            takers = [other for other, names in OWN_ARGUMENTS.items() if name in names]
            if takers:
                yield Contradiction(name, f"it is an argument of {' and '.join(takers)}")


# -- values beside others

# Settings that limit what a log keeps by other than time.
SIZE_LIMITS: Final = ("retention-bytes", "retention-messages", "max-length-bytes")
LIMITS: Final = ("retention", "max-age", *SIZE_LIMITS)
STREAM_AGE: Final = f"{STREAM_AGE_MS_MAX // 86_400_000}d"  # of a stream without limits


def _needs(*others: str) -> Check:
    def check(_value: Any, stated: Stated, name: Name) -> str | None:
        if any(other in stated for other in others):
            return None
        wanted = ", ".join(map(name, others))
        return f"it needs one of {wanted}" if len(others) > 1 else f"it needs {wanted}"

    return check


def _not_beside(other: str, why: str) -> Check:
    def check(_value: Any, stated: Stated, name: Name) -> str | None:
        return f"not together with {name(other)}: {why}" if other in stated else None

    return check


def _named_twice(value: Any, _stated: Stated, _name: Name) -> str | None:
    """Check that a list names nothing twice."""
    if isinstance(value, list):
        for position, each in enumerate(value):
            if each in value[:position]:
                return f"it names {each!r} twice"
    return None


def _waits_longer(value: Any, stated: Stated, name: Name) -> str | None:
    """Check that retention waits beyond the time for which it keeps messages anyway.

    Beside other limits a shorter time has an effect: they would delete earlier.
    """
    if not stated.keys().isdisjoint(SIZE_LIMITS) or stated.get("compact"):
        return None
    waits_ms = duration_ms(value) or 0
    for key, milliseconds in (("retention", duration_ms), ("max-age", interval_ms)):
        if key in stated and waits_ms <= (milliseconds(stated[key]) or 0):
            return (
                f"it must be longer than {name(key)}, {stated[key]}: messages are kept for that "
                "time anyway"
            )
    return None


def _above_delays(value: Any, stated: Stated, name: Name) -> str | None:
    """Check that the upper bound of delays is below none of those that are stated."""
    if "retry-delays" in stated:
        key, longest = "retry-delays", max(stated["retry-delays"])
    else:
        key, longest = "retry-delay", stated.get("retry-delay", 0)
    if value >= longest:
        return None
    return f"it is below {longest}, a delay of {name(key)}: raise it, or leave it out"


def _dead_letter_topic(value: Any, stated: Stated, name: Name) -> str | None:
    """Check that the dead-letter topic is there where it is asked for, and only there."""
    exchange = "dead-letter-exchange"
    if value and exchange in stated:
        return f"not together with {name(exchange)}, where dead letters go instead"
    if not value and exchange not in stated and not stated.keys().isdisjoint(RETRY_ARGUMENTS):
        return (
            "a queue with retries keeps what failed to the end: leave it out, or state "
            f"{name(exchange)}"
        )
    return None


# Ways to place messages; any other name is a header's.
PLACEMENTS: Final = (BY_KEY, *NOT_BY_KEY)
# A word with one wrong letter is above; names of headers such as `random-id` are not.
SIMILARITY: Final = 0.8


def _placement(value: Any, _stated: Stated, _name: Name) -> str | None:
    """Check that a header by which messages are placed is no slip of another way."""
    if value in PLACEMENTS:
        return None
    for placement in PLACEMENTS:
        if _is_slip(_letters(value), _letters(placement)):
            return (
                f"did you mean '{placement}'? '{value}' would be a header's name, which is too "
                "similar"
            )
    return None


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _is_slip(written: str, meant: str) -> bool:
    """Whether a word is meant for another: the same but for punctuation, or one letter is wrong.

    Short words are similar to many names of headers.
    """
    if written == meant:
        return True
    if len(meant) <= len(BY_KEY) or abs(len(written) - len(meant)) > 1:
        return False
    return SequenceMatcher(None, written, meant).ratio() >= SIMILARITY


# In the order of checks.
EITHER: Final[tuple[tuple[str, Check], ...]] = (
    ("retention-waits-for", _named_twice),
    ("retention-waits-max", _waits_longer),
    ("retention-settles", _named_twice),
    ("retry-delay", _not_beside("retry-delays", "only these count")),
    ("retry-multiplier", _not_beside("retry-delays", "only these count")),
    ("retry-max-delay", _above_delays),
    ("retry-on", _named_twice),
    ("dead-letter-topic", _dead_letter_topic),
)
OF_QUEUES: Final = (
    *EITHER,
    ("publish-burst", _needs("publish-rate")),
    ("consume-burst", _needs("consume-rate")),
    ("partition-by", _placement),
)
# Rates are not there: a burst of a policy is a limit of what queues state for themselves.
OF_POLICIES: Final = (*EITHER, ("retention-waits-max", _needs("retention-waits-for")))
NEEDING_RETENTION: Final = tuple(
    (name, _needs("retention", "retention-bytes", "retention-messages"))
    for name in ("retention-waits-for", "retention-settles")
)


def contradictions_of_queue(arguments: Arguments) -> Iterator[Contradiction]:
    """Yield what is wrong with the valid arguments of a queue beside each other."""
    yield from misplaced("queues", arguments)
    stated = {key[2:]: value for key, value in arguments.items() if key.startswith("x-")}
    if type_of(arguments) != "stream":
        stated.pop("max-length-bytes", None)  # is a limit of what is ready
    elif stated.keys().isdisjoint(LIMITS):
        stated["retention"] = STREAM_AGE
    yield from _found(OF_QUEUES, stated, "x-{}".format)


def contradictions_of_policy(policy: PolicyDefinition) -> Iterator[Contradiction]:
    """Yield what is wrong with the valid settings of a policy beside each other."""
    if policy.apply_to != "streams":  # which have a retention by default
        yield from _found(NEEDING_RETENTION, policy.definition, str)
    yield from _found(OF_POLICIES, policy.definition, str)


def _found(
    checks: tuple[tuple[str, Check], ...], stated: Stated, name: Name
) -> Iterator[Contradiction]:
    for key, check in checks:
        if key in stated:
            problem = check(stated[key], stated, name)
            if problem is not None:
                yield Contradiction(name(key), problem)


# -- checks of what is declared


def check_queue(definition: QueueDefinition, current: Arguments | None = None) -> None:
    """Raise 406 unless the valid arguments of a queue have an effect, and agree.

    What is wrong with its `current` arguments already may stay.
    """
    name = resource("queue", definition.name, definition.vhost)
    known = list(contradictions_of_queue(current or {}))
    found = contradictions_of_queue(definition.arguments)
    _refuse(name, (each for each in found if each not in known))


def check_exchange(definition: ExchangeDefinition) -> None:
    """Raise 406 for Leveret's arguments of queues and consumers in those of a new exchange."""
    name = resource("exchange", definition.name, definition.vhost)
    _refuse(name, misplaced("exchanges", definition.arguments))


def check_consumer(definition: QueueDefinition, arguments: Arguments, *, no_ack: bool) -> None:
    """Raise 406 unless the valid arguments of a consumer have an effect on its queue."""
    name = resource("queue", definition.name, definition.vhost)
    _refuse(name, misplaced("consumers", arguments))
    _refuse(name, _of_consumer(definition, arguments, no_ack=no_ack))


def _of_consumer(
    definition: QueueDefinition, arguments: Arguments, *, no_ack: bool
) -> Iterator[Contradiction]:
    if no_ack:
        for key in (VISIBILITY_TIMEOUT, GROUP_SESSION):
            if key in arguments:
                yield Contradiction(key, "without acknowledgements nothing is left unsettled")
    if type_of(definition.arguments) == "stream" and arguments.get(FILTER_UNMATCHED) == SKIP:
        yield Contradiction(FILTER_UNMATCHED, "nobody settles messages of a stream: leave it out")
    if GROUP_ASSIGN in arguments:
        wanted, present = arguments[GROUP_ASSIGN], layout_of(definition).present
        if len(set(wanted)) < len(wanted):
            yield Contradiction(GROUP_ASSIGN, "it names a partition twice")
        for number in set(wanted).difference(present):
            problem = f"there is no partition {number}, there are {numbers_text(present)}"
            yield Contradiction(GROUP_ASSIGN, problem)


def _refuse(name: str, found: Iterator[Contradiction]) -> None:
    for argument, problem in found:
        raise ChannelError(406, f"invalid arg '{argument}' for {name}: \"{problem}\"")
