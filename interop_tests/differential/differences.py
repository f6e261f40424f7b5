"""Differences from RabbitMQ 3.10 that are meant, and why.

Each entry replaces lines of RabbitMQ's transcript by the lines that Leveret must say instead. An
entry whose lines RabbitMQ does not say (any more) fails its test: the list cannot go stale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """In `conversation`, RabbitMQ 3.10 says `rabbitmq` and Leveret says `leveret`, for `reason`."""

    conversation: str
    rabbitmq: str
    leveret: str
    reason: str


# B-235: Leveret names the permission that is missing, as RabbitMQ does since 4.0.
REFUSED_ACCESS = re.compile(r"(?:read|write|configure) (access to (?:queue|exchange|topic) )")

# B-153: these headers came with RabbitMQ 3.13; what they say is shown by tests of Leveret's own.
LAST_DEATH = re.compile(r", 'x-last-death-(?:exchange|queue|reason)': '[^']*'")

LAST_DEATH_HEADER = re.compile(r", 'x-last-death-\w+': '[^']*'")

# B-129: this header came with RabbitMQ 4.3; it stands before the count that RabbitMQ 3.10 tells.
ACQUIRED_COUNT = re.compile(r"'x-acquired-count': \d+, ")

TOLD = "B-005, B-308, B-309: Leveret says why; RabbitMQ closes the socket after 3 s without a word"
DECODED = "B-310: what cannot be decoded is a frame error; RabbitMQ's connection process crashes"
STRANGERS = "B-406: passive declares need some permission since RabbitMQ 4.3"
VOLATILE = "B-233: RabbitMQ 4 knows that the name stands for no queue"
STREAM_TEXT = "B-225, B-314: the texts of RabbitMQ 4"
POISON = "C-215: messages that come back too often are given up by queues of every type"
ATOMIC = "a transaction that one queue refuses takes effect in none (docs/decisions/0020)"
STREAM_CREDIT = "B-129: whatever settles a stream's message gives credit since RabbitMQ 3.13"

ANSWERED = (
    "A1 < Basic.Deliver consumer_tag='replies' delivery_tag=1 redelivered=False exchange='' "
    "routing_key='amq.rabbitmq.reply-to.NUMBER1' | no properties | b'answer'"
)


def _close(code: int, text: str, class_id: int, method_id: int) -> str:
    return (
        f"A0 < Connection.Close reply_code={code} reply_text={text!r} "
        f"class_id={class_id} method_id={method_id}\nA < closed"
    )


def _untold(conversation: str, closing: str) -> Difference:
    """RabbitMQ only closes the socket at the end; Leveret sends `closing` first."""
    return Difference(conversation, "\nA < closed", f"\n{closing}", TOLD)


def _tune(conversation: str, explanation: str) -> Difference:
    return _untold(conversation, _close(530, f"NOT_ALLOWED - negotiated {explanation}", 10, 31))


def _login(conversation: str, mechanism: str) -> Difference:
    text = f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}."
    return _untold(conversation, _close(403, f"{text} For details see the broker logfile.", 0, 0))


def _state(conversation: str, state: str, class_id: int, method_id: int) -> Difference:
    text = f"CHANNEL_ERROR - unexpected method in connection state {state}"
    return _untold(conversation, _close(504, text, class_id, method_id))


def _stranger(
    conversation: str, where: str, kind: str, rabbitmq: str, ids: tuple[int, int]
) -> Difference:
    refused = (
        f'{where} < Channel.Close reply_code=403 reply_text="ACCESS_REFUSED - access to {kind} '
        f"'other' in vhost '/' refused for user 'limited'\" class_id={ids[0]} method_id={ids[1]}"
    )
    return Difference(conversation, rabbitmq, refused, STRANGERS)


def _volatile(channel: int, method_id: int) -> str:
    text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
    return (
        f"A{channel} < Channel.Close reply_code=403 reply_text={text!r} "
        f"class_id=50 method_id={method_id}"
    )


def _deaths(queues: str) -> str:
    """The end of an x-death of single deaths."""
    entries = (
        f"{{'count': 1, 'exchange': '', 'queue': '{queue}', 'reason': 'rejected', "
        f"'routing-keys': ['{queue}'], 'time': TIME}}"
        for queue in queues
    )
    return f"{', '.join(entries)}]"


def _no_credit(conversation: str, channel: int) -> Difference:
    refused = f'A{channel} < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - '
    return Difference(
        conversation,
        f"{refused}consumer prefetch count is not set for 'queue 's' in vhost '/''\"",
        f"{refused}consumer prefetch count is not set for stream queue 's' in vhost '/'\"",
        STREAM_TEXT,
    )


def _credit(conversation: str, method_id: int) -> Difference:
    text = (
        "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues "
        "queue 's' in vhost '/'"
    )
    return Difference(
        conversation,
        _close(540, text, 60, method_id),
        "A3 < Basic.Deliver consumer_tag='c' delivery_tag=2 redelivered=False exchange='' "
        "routing_key='s' | headers={'x-stream-offset': 1} message_id='m2' | b'2'",
        STREAM_CREDIT,
    )


DIFFERENCES: list[Difference] = [
    Difference(
        "a_transaction_that_a_full_queue_refuses",
        "A2 < Queue.DeclareOk queue='q' message_count=1 consumer_count=0",
        "A2 < Queue.DeclareOk queue='q' message_count=0 consumer_count=0",
        ATOMIC,
    ),
    Difference(
        "arguments_of_another_queue_type",
        'A2 < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - invalid arg '
        "'x-delivery-limit' for queue 'q2' in vhost '/' of queue type rabbit_classic_queue\" "
        "class_id=50 method_id=10",
        "A2 < Queue.DeclareOk queue='q2' message_count=0 consumer_count=0",
        POISON,
    ),
    Difference(
        "quorum_queue_counts_returns",
        "headers={'own': True, 'x-delivery-count': 0}",
        "headers={'own': True}",
        "B-129: a message has the header once it came back; so it is in RabbitMQ 4",
    ),
    Difference(
        "channels_of_a_user_are_limited",
        "maximum allowed user limit of (2)",
        "maximum allowed user limit of 2",
        "B-306: the text of RabbitMQ 4",
    ),
    Difference(
        "unknown_exchange_type",
        _close(503, "COMMAND_INVALID - unknown exchange type 'no-such-type'", 40, 10),
        'A1 < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - unknown exchange type '
        "'no-such-type'\" class_id=40 method_id=10",
        "B-208: RabbitMQ 4 closes the channel, 3 closed the connection",
    ),
    Difference(
        "made_up_name_declared_again",
        'A1 < Channel.Close reply_code=403 reply_text="ACCESS_REFUSED - queue name '
        "'amq.gen-NUMBER1' contains reserved prefix 'amq.*'\" class_id=50 method_id=10",
        "A1 < Queue.DeclareOk queue='amq.gen-NUMBER1' message_count=0 consumer_count=0",
        "B-231: the prefix matters where a queue is made, not where it is declared again",
    ),
    Difference(
        "made_up_name_declared_again",
        'A2 < Channel.Close reply_code=403 reply_text="ACCESS_REFUSED - queue name '
        "'amq.gen-NUMBER1' contains reserved prefix 'amq.*'\" class_id=50 method_id=10",
        'A2 < Channel.Close reply_code=405 reply_text="RESOURCE_LOCKED - cannot obtain exclusive '
        "access to locked queue 'amq.gen-NUMBER1' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original "
        'declaration." class_id=50 method_id=10',
        "B-231, and so the queue itself is compared",
    ),
    _stranger(
        "passive_declares_need_little",
        "B4",
        "queue",
        "B4 < Queue.DeclareOk queue='other' message_count=0 consumer_count=0",
        (50, 10),
    ),
    _stranger(
        "passive_declares_need_little", "C4", "exchange", "C4 < Exchange.DeclareOk", (40, 10)
    ),
    Difference(
        "stream_of_wrong_age",
        _close(541, "INTERNAL_ERROR", 0, 0),
        'A1 < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - invalid arg '
        "'x-max-age' for queue 'q' in vhost '/': invalid_max_age\" class_id=50 method_id=10",
        "B-217: RabbitMQ 3.10 crashes on an age it cannot read",
    ),
    _no_credit("stream_consumers_need_a_limit_and_acks", 2),
    Difference(
        "stream_consumers_need_a_limit_and_acks",
        "acknowledgement not supported by stream queues queue",
        "acknowledgement not supported by stream queue",
        STREAM_TEXT,
    ),
    _no_credit("stream_refuses_no_credit_before_no_acks", 2),
    _no_credit("stream_refuses_no_credit_before_no_acks", 3),
    Difference(
        "stream_deleted_if_unused",
        "A2 < Queue.DeleteOk message_count=0",
        'A2 < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - '
        "queue 's' in vhost '/' in use\" class_id=50 method_id=40",
        "B-210: a condition that was asked for is kept; RabbitMQ deletes streams whatever it is",
    ),
    Difference(
        "stream_offset_that_is_none",
        _close(541, "INTERNAL_ERROR", 0, 0),
        "A2 < Channel.Close reply_code=406 reply_text='PRECONDITION_FAILED - invalid arg "
        "\\'x-stream-offset\\' for queue \\'s\\' in vhost \\'/\\': "
        '{invalid_stream_offset_arg,{longstr,<<"soon">>}}\' class_id=60 method_id=20',
        "B-217: RabbitMQ 3.10 crashes on an offset it cannot read",
    ),
    _credit("stream_nack_gives_credit", 120),
    _credit("stream_reject_gives_credit", 90),
    Difference(
        "quorum_queue_properties",
        "A4 < Queue.DeclareOk queue='q4' message_count=0 consumer_count=0",
        'A4 < Channel.Close reply_code=406 reply_text="PRECONDITION_FAILED - invalid arg '
        "'x-overflow' for queue 'q4' in vhost '/': invalid_overflow\" class_id=50 method_id=10",
        "quorum queues know no reject-publish-dlx; RabbitMQ 3.10 accepts the word and ignores it",
    ),
    Difference(
        "recent_history_of_a_length",
        "exchange='x' routing_key='k.3' message_count=1 | no properties | b'm3'",
        "exchange='x' routing_key='k.2' message_count=1 | no properties | b'm2'",
        "B-175: to an exchange, too, the history goes oldest first; RabbitMQ turns it round there",
    ),
    _tune(
        "tune_frame_max_too_high",
        "frame_max = 131073 is higher than the maximum allowed value (131072)",
    ),
    _tune(
        "tune_frame_max_too_low", "frame_max = 4095 is lower than the minimum allowed value (4096)"
    ),
    _tune(
        "tune_frame_max_without_limit",
        "frame_max = 0 is higher than the maximum allowed value (131072)",
    ),
    _tune(
        "tune_channel_max_too_high",
        "channel_max = 2048 is higher than the maximum allowed value (2047)",
    ),
    _tune(
        "tune_channel_max_without_limit",
        "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
    ),
    _untold(
        "unknown_mechanism",
        _close(503, "COMMAND_INVALID - unknown authentication mechanism 'SCRAM-NOT-HERE'", 10, 11),
    ),
    _login("amqplain_without_password", "AMQPLAIN"),
    _login("plain_with_a_broken_response", "PLAIN"),
    _state("method_out_of_turn_before_tune", "starting", 10, 40),
    _state("channel_before_the_connection_is_open", "tuning", 20, 10),
    _untold("unknown_method", _close(503, "COMMAND_INVALID - unimplemented method", 60, 999)),
    _untold("unknown_class", _close(503, "COMMAND_INVALID - unimplemented method", 9999, 1)),
    Difference(
        "table_with_an_unknown_type",
        "\nA < closed",
        "\n" + _close(501, "FRAME_ERROR - cannot decode <<0,0,1,113,0,0,0,0,4,1,97,90,1>>", 50, 10),
        DECODED,
    ),
    Difference(
        "header_with_properties_cut_short",
        _close(541, "INTERNAL_ERROR", 0, 0),
        _close(501, "FRAME_ERROR - cannot decode <<0,60,0,0,0,0,0,0,0,0,0,0,128,0,255>>", 0, 0),
        DECODED,
    ),
    Difference(
        "body_longer_than_announced",
        "A < nothing",
        _close(501, "FRAME_ERROR - content body frame exceeds remaining content size", 60, 40),
        "B-310: RabbitMQ 3.10 takes the longer body",
    ),
    Difference(
        "oversized_message",
        "A < nothing",
        "A1 < Channel.Close reply_code=406 reply_text='PRECONDITION_FAILED - message size "
        "1099511627776 is larger than max size 16777216' class_id=60 method_id=40",
        "B-018: refused when it is announced, before a byte of it is kept",
    ),
    Difference(
        "cancel_ok_from_a_client",
        _close(503, "COMMAND_INVALID - unimplemented method", 60, 31),
        'A1 < Channel.Close reply_code=404 reply_text="NOT_FOUND - no queue '
        "'amq.none' in vhost '/'\" class_id=50 method_id=10",
        "a client that answers basic.cancel with cancel-ok is not cut off for it",
    ),
    *(
        Difference(
            "dead_letters_die_again_elsewhere",
            _deaths(rabbitmq),
            _deaths(leveret),
            "B-151: RabbitMQ 3.10 turns the older deaths round",
        )
        for rabbitmq, leveret in (("cab", "cba"), ("bc", "cb"))
    ),
    *(
        Difference(
            conversation,
            "headers={'x-delivery-count': 0} ",
            "",
            "B-129: RabbitMQ 4 counts deliveries from the first return on",
        )
        for conversation in (
            "dead_letters_arrive_at_least_once",
            "too_many_deliveries_end_in_a_dead_letter",
        )
    ),
    Difference(
        "dead_letters_with_a_history_of_a_clients_own",
        "headers={'kept': 1, 'x-death': [{'count': 8, 'exchange': '', 'queue': 'q', "
        "'reason': 'rejected'}], 'x-first-death-reason': 'made up'}",
        "headers={'kept': 1, 'x-death': [{'count': 1, 'exchange': '', 'queue': 'q', 'reason': "
        "'rejected', 'routing-keys': ['q'], 'time': TIME}], 'x-first-death-exchange': '', "
        "'x-first-death-queue': 'q', 'x-first-death-reason': 'rejected'}",
        "B-157: RabbitMQ 4 knows the deaths that it has seen itself, 3 counted on",
    ),
    Difference(
        "direct_reply_to",
        "delivery_tag=1 redelivered=False exchange='' "
        "routing_key='amq.rabbitmq.reply-to.NUMBER1' | no properties | b'another answer'",
        "delivery_tag=2 redelivered=False exchange='' "
        "routing_key='amq.rabbitmq.reply-to.NUMBER1' | no properties | b'another answer'",
        "an answer is a delivery like others; in RabbitMQ 3.10 it uses up no tag",
    ),
    Difference(
        "direct_reply_to_is_mandatory",
        "B1 < Basic.Return reply_code=312 reply_text='NO_ROUTE' exchange='' "
        "routing_key='amq.rabbitmq.reply-to.NUMBER1' | no properties | b'answer'",
        "B < nothing",
        "B-110: RabbitMQ 4 counts an answer as routed",
    ),
    Difference(
        "direct_reply_to_in_a_transaction",
        f"{ANSWERED}\nB1 > Tx.Commit\nB1 < Tx.CommitOk\nA < nothing",
        f"A < nothing\nB1 > Tx.Commit\nB1 < Tx.CommitOk\n{ANSWERED}",
        "B-112: in RabbitMQ 3.10 an answer does not wait for the commit",
    ),
    *(
        Difference(
            "direct_reply_to_misused",
            f'A{number} < Channel.Close reply_code=404 reply_text="NOT_FOUND - no queue '
            f"'{name}' in vhost '/'\" class_id=50 method_id=20",
            _volatile(number, 20),
            VOLATILE,
        )
        for number, name in ((4, "amq.rabbitmq.reply-to"), (7, "amq.rabbitmq.reply-to.NUMBER1"))
    ),
    Difference("direct_reply_to_misused", "A5 < Queue.UnbindOk", _volatile(5, 50), VOLATILE),
    Difference(
        "get_from_direct_reply_to",
        'A1 < Channel.Close reply_code=404 reply_text="NOT_FOUND - no queue '
        "'amq.rabbitmq.reply-to' in vhost '/'\" class_id=60 method_id=70",
        _close(
            540,
            "NOT_IMPLEMENTED - basic.get not supported by volatile queue "
            "'amq.rabbitmq.reply-to' in vhost '/'",
            60,
            70,
        ),
        "B-314: RabbitMQ 4 knows that the name stands for no queue",
    ),
]


def comparable(leveret: list[str]) -> list[str]:
    """Leveret's transcript without the words that RabbitMQ 3.10 has not learned to say yet."""
    return [
        ACQUIRED_COUNT.sub("", LAST_DEATH.sub("", REFUSED_ACCESS.sub(r"\1", line)))
        for line in leveret
    ]


def without_last_death(leveret: list[str]) -> list[str]:
    """Return the lines without headers x-last-death-*, which have tests of their own (B-153)."""
    return [LAST_DEATH_HEADER.sub("", line) for line in leveret]


def expected(conversation: str, rabbitmq: list[str]) -> list[str]:
    """RabbitMQ's transcript as Leveret must say it. AssertionError names a stale entry."""
    text = "\n".join(rabbitmq)
    for difference in DIFFERENCES:
        if difference.conversation == conversation:
            assert difference.rabbitmq in text, f"RabbitMQ does not say: {difference.rabbitmq}"
            text = text.replace(difference.rabbitmq, difference.leveret)
    return text.split("\n")
