"""Conversations about what Leveret does not have yet, and what that is.

They are held all the same and must fail: one that reads right says that its entry is to go.
"""

from __future__ import annotations

SINGLE_ACTIVE = "x-single-active-consumer"
STREAMS = "stream queues"
TTL = "the time messages may stay (expiration, x-message-ttl)"
LENGTH = "x-max-length and x-overflow"
PRIORITIES = "x-max-priority"
DEAD_LETTERS = "x-dead-letter-exchange"

NOT_YET: dict[str, str] = {
    "single_active_consumer": SINGLE_ACTIVE,
    "stream_properties": STREAMS,
    "stream_of_wrong_age": STREAMS,
    "expired_messages_are_gone": TTL,
    "length_limit_drops_the_oldest": LENGTH,
    "length_limit_rejects_publishes": LENGTH,
    "priorities_come_first": PRIORITIES,
    "rejected_goes_to_the_dead_letter_exchange": DEAD_LETTERS,
    "death_is_counted": DEAD_LETTERS,
    "expired_and_too_many_go_to_the_dead_letter_exchange": DEAD_LETTERS,
}
