"""Where Leveret is meant to differ from RabbitMQ 3.10, and why.

Each entry replaces lines of RabbitMQ's transcript by the lines that Leveret must say instead. An
entry whose lines RabbitMQ does not say (any more) fails its test: the list cannot go stale.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """In `conversation`, RabbitMQ 3.10 says `rabbitmq` and Leveret says `leveret`, for `reason`."""

    conversation: str
    rabbitmq: str
    leveret: str
    reason: str


DIFFERENCES: list[Difference] = []


def expected(conversation: str, rabbitmq: list[str]) -> list[str]:
    """RabbitMQ's transcript as Leveret must say it. AssertionError names a stale entry."""
    text = "\n".join(rabbitmq)
    for difference in DIFFERENCES:
        if difference.conversation == conversation:
            assert difference.rabbitmq in text, f"RabbitMQ does not say: {difference.rabbitmq}"
            text = text.replace(difference.rabbitmq, difference.leveret)
    return text.split("\n")
