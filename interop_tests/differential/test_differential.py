"""Every conversation, held with RabbitMQ and with the broker under test, must read the same."""

from __future__ import annotations

import difflib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from interop_tests.brokers import not_yet
from interop_tests.differential.conversations import all_conversations
from interop_tests.differential.differences import (
    DIFFERENCES,
    comparable,
    expected,
    without_last_death,
)
from interop_tests.differential.not_yet import NOT_YET
from interop_tests.differential.talk import hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.brokers import Broker
    from interop_tests.differential.talk import Talk

CONVERSATIONS = all_conversations()


def _marks(name: str) -> list[pytest.MarkDecorator | pytest.Mark]:
    """The marks of the conversation itself, and what is expected of it."""
    own = getattr(CONVERSATIONS[name], "pytestmark", [])
    return [*own, not_yet(NOT_YET[name])] if name in NOT_YET else own


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in CONVERSATIONS])
def test_conversation(name: str, rabbitmq: Broker, broker: Broker) -> None:
    """With INTEROP_BROKER=rabbitmq two RabbitMQ processes are compared, which proves that
    the conversation always reads the same."""
    compare(CONVERSATIONS[name], rabbitmq, broker)


def compare(conversation: Callable[[Talk], None], rabbitmq: Broker, broker: Broker) -> None:
    """Hold a conversation with both and assert that the transcripts are as they should be."""
    with ThreadPoolExecutor(2) as both:
        reference = both.submit(hold, conversation, rabbitmq.address, 1)
        candidate = both.submit(hold, conversation, broker.address, 1)
    try:
        wanted = expected(conversation.__name__, reference.result())
    except AssertionError:
        # Not what it is known to say: on a busy machine its streams are late. Else that is stale.
        wanted = expected(conversation.__name__, hold(conversation, rabbitmq.address, 2))
    if broker.name == "rabbitmq":
        wanted = reference.result()
    found = comparable(candidate.result())
    if conversation.__name__ not in CONVERSATIONS:  # nobody could write down where it differs
        found = without_last_death(found)
    assert found == wanted, "\n".join(
        ["", *difflib.unified_diff(wanted, found, "expected", broker.name, n=2, lineterm="")]
    )


def test_every_exception_names_a_conversation() -> None:
    assert {difference.conversation for difference in DIFFERENCES} <= set(CONVERSATIONS)
    assert NOT_YET.keys() <= CONVERSATIONS.keys()
