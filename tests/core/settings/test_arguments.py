import re

import pytest

from leveret.core.settings.arguments import (
    TYPES,
    check_consumer_arguments,
    check_exchange_name,
    check_queue_arguments,
    check_server_named,
    known_arguments,
    with_default_type,
)
from leveret.core.settings.contradictions import OWN_ARGUMENTS
from leveret.errors import ChannelError
from leveret.ports.definitions import QueueDefinition

QUORUM = {"x-queue-type": "quorum"}


def refusal(arguments, **properties):
    with pytest.raises(ChannelError) as caught:
        check_queue_arguments(QueueDefinition("/", "q", arguments=arguments, **properties))
    assert caught.value.code == 406
    return caught.value.explanation


@pytest.mark.covers("B-217")
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", "1", '"expected integer, got longstr"'),
        ("x-expires", True, '"expected integer, got bool"'),
        ("x-expires", 315_360_000_001, "{value_too_large,315360000001}"),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", 10**12, "{value_too_large,1000000000000}"),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", None, '"expected integer, got void"'),
        ("x-max-length-bytes", -5, "{value_negative,-5}"),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-overflow", "foo", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-queue-type", "foo", "\"unsupported queue type 'foo'\""),
        ("x-queue-type", 5, "{unacceptable_type,signedint}"),
        ("x-dead-letter-exchange", 5, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", 1, "{unacceptable_type,signedint}"),
        ("x-queue-mode", "foo", "\"unsupported queue mode 'foo'\""),
        ("x-queue-version", 7, "\"unsupported queue version '7'\""),
        ("x-single-active-consumer", "x", "{unacceptable_type,longstr}"),
        ("x-queue-leader-locator", "foo", "invalid_queue_locator_arg"),
        ("x-queue-master-locator", "foo", "invalid_queue_locator_arg"),
    ],
)
def test_a_wrong_value_is_refused_on_a_classic_queue(key, value, problem):
    assert refusal({key: value}) == f"invalid arg '{key}' for queue 'q' in vhost '/': {problem}"


@pytest.mark.covers("B-217")
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("x-overflow", "reject-publish-dlx", "invalid_overflow"),
        ("x-dead-letter-strategy", "foo", "invalid_dlx_strategy"),
        ("x-delivery-limit", "a", '"expected integer, got longstr"'),
        ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
        ("x-quorum-initial-group-size", -1, "{value_negative,-1}"),
        ("x-consumer-timeout", -1, "{value_negative,-1}"),
        ("x-delayed-retry-type", "sometimes", "invalid_delayed_retry_type"),
    ],
)
def test_a_wrong_value_is_refused_on_a_quorum_queue(key, value, problem):
    text = refusal({**QUORUM, key: value})
    assert text == f"invalid arg '{key}' for queue 'q' in vhost '/': {problem}"


@pytest.mark.covers("B-218")
@pytest.mark.parametrize("key", ["x-max-age", "x-delayed-retry-type", "x-dead-letter-strategy"])
def test_an_argument_of_another_type_is_refused_whatever_its_value(key):
    assert refusal({key: object()}) == (
        f"invalid arg '{key}' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
    )


@pytest.mark.covers("B-218")
def test_quorum_queues_know_no_priorities():
    assert refusal({**QUORUM, "x-max-priority": 1}) == (
        "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
    )


def test_values_are_checked_before_keys_that_do_not_belong():
    text = refusal({"x-max-age": "1D", "x-expires": 0})
    assert text == "invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}"


@pytest.mark.covers("B-220")
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
        ({"exclusive": True, "durable": False}, "exclusive-owner"),
        ({"durable": False}, "non-durable"),
    ],
)
def test_quorum_queues_are_durable_and_shared(properties, named):
    assert refusal(QUORUM, **properties) == (
        f"invalid property '{named}' for queue 'q' in vhost '/'"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-unheard-of": object()},
        {
            "x-expires": 1,
            "x-message-ttl": 0,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "k",
            "x-max-length": 0,
            "x-max-length-bytes": 10**10,
            "x-max-priority": 255,
            "x-overflow": "reject-publish-dlx",
            "x-queue-mode": "lazy",
            "x-queue-version": 1,
            "x-single-active-consumer": True,
            "x-queue-type": "classic",
            "x-queue-master-locator": "min-masters",
            "x-queue-leader-locator": "client-local",
        },
        {
            **QUORUM,
            "x-expires": 315_360_000_000,
            "x-dead-letter-exchange": "d",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": -1,
            "x-single-active-consumer": False,
            "x-quorum-initial-group-size": 3,
            "x-queue-leader-locator": "balanced",
            "x-delayed-retry-type": "all",
            "x-delayed-retry-min": 1000,
            "x-delayed-retry-max": 60000,
        },
    ],
)
def test_right_values_pass(arguments):
    check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))


@pytest.mark.covers("B-221")
def test_a_server_named_queue_cannot_be_quorum():
    check_server_named({})
    check_server_named({"x-queue-type": "foo"})  # refused for its type later, with the better text
    with pytest.raises(ChannelError) as caught:
        check_server_named(QUORUM)
    assert caught.value.explanation == (
        "Cannot declare a server-named queue for type rabbit_quorum_queue"
    )


@pytest.mark.covers("B-219")
def test_arguments_that_name_exchanges_are_strings():
    check_exchange_name("alternate-exchange", "exchange 'x' in vhost '/'", {})
    with pytest.raises(ChannelError) as caught:
        check_exchange_name(
            "alternate-exchange", "exchange 'x' in vhost '/'", {"alternate-exchange": 1}
        )
    assert caught.value.explanation == (
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    )


@pytest.mark.covers("B-141")
def test_the_default_type_fills_in_only_where_it_can():
    assert with_default_type({}, "quorum", replicable=True) == QUORUM
    assert with_default_type({}, "quorum", replicable=False) == {}
    assert with_default_type({}, "classic", replicable=True) == {}
    classic = {"x-queue-type": "classic"}
    assert with_default_type(classic, "quorum", replicable=True) == classic


def test_each_type_knows_its_own_arguments():
    assert "x-delayed-retry-type" in known_arguments(QUORUM)
    assert "x-delayed-retry-type" not in known_arguments({})


def test_order_by_key_is_for_queues_without_order_by_group():
    keeps = {"x-retry-keep-order": "key"}
    assert refusal({**keeps, "x-group-ordering": True}) == (
        "invalid arg 'x-retry-keep-order' for queue 'q' in vhost '/': "
        '"not together with x-group-ordering"'
    )
    check_queue_arguments(QueueDefinition("/", "q", arguments=keeps))


@pytest.mark.covers("C-215")
def test_every_type_that_hands_messages_out_limits_their_deliveries():
    for queue_type in ({}, QUORUM):
        assert refusal({**queue_type, "x-delivery-limit": "a"}) == (
            "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/': "
            '"expected integer, got longstr"'
        )
        assert refusal({**queue_type, "x-dead-letter-topic": 1}).endswith(
            '"expected true or false"'
        )


STREAM = {"x-queue-type": "stream"}


@pytest.mark.covers("B-217", "B-225")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "x-max-age",
            "soon",
            "invalid arg 'x-max-age' for queue 'q' in vhost '/': invalid_max_age",
        ),
        (
            "x-max-age",
            5,
            "invalid arg 'x-max-age' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
        ),
        (
            "x-initial-cluster-size",
            0,
            "invalid arg 'x-initial-cluster-size' for queue 'q' in vhost '/': {value_zero,0}",
        ),
        (
            "x-message-ttl",
            5,
            (
                "invalid arg 'x-message-ttl' for queue 'q' in vhost '/' of queue type "
                "rabbit_stream_queue"
            ),
        ),
        (
            "x-stream-max-segment-size-bytes",
            3_000_000_001,
            "Exceeded max value for x-stream-max-segment-size-bytes",
        ),
        (
            "x-stream-filter-size-bytes",
            "32",
            "Invalid type for x-stream-filter-size-bytes",
        ),
        ("x-stream-filter-size-bytes", 15, "Invalid value for x-stream-filter-size-bytes"),
        ("x-stream-filter-size-bytes", 256, "Invalid value for x-stream-filter-size-bytes"),
    ],
)
def test_what_a_stream_cannot_be(key, value, text):
    assert refusal({**STREAM, key: value}) == text


@pytest.mark.covers("B-220")
@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
        ({"exclusive": True, "durable": False}, "exclusive-owner"),
        ({"durable": False}, "non-durable"),
    ],
)
def test_streams_are_durable_and_shared(properties, named):
    assert refusal(STREAM, **properties) == (
        f"invalid property '{named}' for queue 'q' in vhost '/'"
    )


def test_a_stream_may_say_all_this():
    arguments = {
        **STREAM,
        "x-max-length-bytes": 0,
        "x-max-age": "7D",
        "x-stream-max-segment-size-bytes": 3_000_000_000,
        "x-stream-filter-size-bytes": 255,
        "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "balanced",
    }
    check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))


@pytest.mark.covers("B-217", "B-218")
@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("classic", {"x-priority": "high"}, ': "expected integer, got longstr"'),
        ("classic", {"x-stream-offset": "soon"}, " of queue type rabbit_classic_queue"),
        ("classic", {"x-consumer-timeout": 5}, " of queue type rabbit_classic_queue"),
        ("quorum", {"x-consumer-timeout": -1}, ": {value_negative,-1}"),
        ("stream", {"x-priority": 5}, " of queue type rabbit_stream_queue"),
        (
            "stream",
            {"x-stream-offset": "soon"},
            ': {invalid_stream_offset_arg,{longstr,<<"soon">>}}',
        ),
        ("stream", {"x-stream-offset": -1}, ": {invalid_stream_offset_arg,{signedint,-1}}"),
        ("stream", {"x-stream-offset": True}, ": {invalid_stream_offset_arg,{bool,true}}"),
    ],
)
def test_what_a_consumer_cannot_ask_for(kind, arguments, text):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": kind})
    with pytest.raises(ChannelError) as caught:
        check_consumer_arguments(definition, arguments)
    (key,) = arguments
    assert caught.value.explanation == f"invalid arg '{key}' for queue 'q' in vhost '/'{text}"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("classic", {"x-priority": -5, "x-unheard-of": 5}),
        ("quorum", {"x-priority": 5, "x-consumer-timeout": 0}),
        ("stream", {"x-stream-offset": 5, "x-stream-filter": 5, "x-stream-match-unfiltered": 5}),
    ],
)
def test_what_a_consumer_can_ask_for(kind, arguments):
    check_consumer_arguments(QueueDefinition("/", "q", arguments={"x-queue-type": kind}), arguments)


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_consumers_of_every_type_may_filter(kind):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": kind})
    for unmatched in ("keep", "skip"):
        arguments = {"x-filter-tags": "a", "x-filter-sql": "b = 1", "x-filter-unmatched": unmatched}
        check_consumer_arguments(definition, arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-filter-tags": "a &&"}, "expected a tag, found the end at character 5, after 'a &&'"),
        ({"x-filter-tags": 5}, "expected text"),
        ({"x-filter-sql": "a ? b"}, "unexpected '?' at character 3, after 'a '"),
        ({"x-filter-sql": True}, "expected text"),
        ({"x-filter-sql": "a", "x-filter-unmatched": "drop"}, "expected 'keep' or 'skip'"),
        ({"x-filter-unmatched": "skip"}, "nothing is unmatched without a filter"),
        ({"x-filter-tags": "a", "x-filter-unmatched": 1}, "expected 'keep' or 'skip'"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(arguments, problem):
    with pytest.raises(ChannelError) as refused:
        check_consumer_arguments(QueueDefinition("/", "q"), arguments)
    key = next(reversed(arguments))
    assert refused.value.explanation == f"invalid arg '{key}' for queue 'q' in vhost '/': {problem}"


PLACEMENTS = '"expected key, round-robin, random or the name of a header, of 1 to 128 bytes"'
PARTITION_PROBLEMS = [
    *(
        ({"x-partitions": wrong}, '"expected an integer from 1 to 256"')
        for wrong in (0, -1, 257, "4", True, None)
    ),
    ({"x-partition-by": "key"}, '"only together with x-partitions"'),
    *(({"x-partitions": 4, "x-partition-by": wrong}, PLACEMENTS) for wrong in ("", "h" * 129, 7)),
    (
        {"x-dedup-window": 5, "x-partition-by": "random", "x-partitions": 4},
        '"not together with x-dedup-window where x-partition-by is random"',
    ),
]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize(("arguments", "problem"), PARTITION_PROBLEMS)
def test_partitions_that_cannot_be_are_refused(kind, arguments, problem):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": kind, **arguments})
    with pytest.raises(ChannelError) as refused:
        check_queue_arguments(definition)
    key = next(reversed(arguments))
    assert refused.value.explanation == f"invalid arg '{key}' for queue 'q' in vhost '/': {problem}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"x-group-ordering": True, "x-partitions": 4},
            '"together with x-group-ordering only where x-partition-by is x-message-group"',
        ),
        ({"x-celery-eta": True, "x-partitions": 4}, '"not together with x-celery-eta"'),
        (
            {
                "x-queue-type": "stream",
                "x-compact": True,
                "x-partition-by": "random",
                "x-partitions": 4,
            },
            '"not together with x-compact where x-partition-by is random"',
        ),
    ],
)
def test_partitions_are_refused_with_what_they_would_break(arguments, problem):
    with pytest.raises(ChannelError) as refused:
        check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))
    assert problem in refused.value.explanation


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize("by", ["key", "round-robin", "random", "customer"])
def test_partitions_of_every_type_are_accepted(kind, by):
    arguments = {"x-queue-type": kind, "x-partitions": 4, "x-partition-by": by}
    check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))


def test_ordered_groups_are_accepted_where_they_share_a_partition():
    arguments = {"x-partitions": 4, "x-partition-by": "x-message-group", "x-group-ordering": True}
    check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))


DURATION = (
    '"expected a time of at most 3650d: milliseconds, or a number with d, h, m or s, such as 14d"'
)
COUNT = '"expected an integer from 1 to 9223372036854775807"'
GROUPS = '"expected a list of 1 to 16 names of consumer groups"'
RETENTION_PROBLEMS = [
    *(
        ({"x-retention": wrong}, DURATION)
        for wrong in ("14", "1w", "1Y", "14 d", "", "11000d", 0, -1, True, None, 1.5)
    ),
    *(
        ({f"x-retention-{unit}": wrong}, COUNT)
        for unit in ("bytes", "messages")
        for wrong in (0, -1, 1 << 63, "5", True)
    ),
    *(
        ({"x-retention": 5, "x-retention-waits-for": wrong}, GROUPS)
        for wrong in ([], [7], [""], "g", ["g"] * 17)
    ),
    (
        {"x-retention": 5, "x-retention-waits-for": ["g"], "x-retention-waits-max": "1w"},
        DURATION,
    ),
    ({"x-retention": 5, "x-retention-waits-max": "1d"}, '"it needs x-retention-waits-for"'),
]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize(("arguments", "problem"), RETENTION_PROBLEMS)
def test_wrong_retention_is_refused_with_the_reason(kind, arguments, problem):
    key = next(reversed(arguments))
    with pytest.raises(ChannelError) as refused:
        check_queue_arguments(
            QueueDefinition("/", "q", arguments={"x-queue-type": kind} | arguments)
        )
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for queue 'q' in vhost '/': {problem}"
    assert refused.value.reply_text.startswith(text)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"x-retention": "1d", "x-max-age": "1D"}, "x-retention"),
        ({"x-retention-bytes": 5, "x-max-length-bytes": 7}, "x-retention-bytes"),
    ],
)
def test_a_stream_states_its_retention_once(arguments, key):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": "stream"} | arguments)
    with pytest.raises(ChannelError, match=f"{key}.*not together with"):
        check_queue_arguments(definition)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-retention": 5, "x-retention-settles": []}, "expected a list of 1 to 16 names"),
        ({"x-queue-type": "stream", "x-retention-settles": ["g"]}, "a stream deletes by its"),
    ],
)
def test_groups_that_settle_are_named_by_queues_that_are_no_streams(arguments, problem):
    with pytest.raises(ChannelError, match=f"x-retention-settles.*{problem}"):
        check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))


@pytest.mark.parametrize("key", ["x-retention-waits-for", "x-retention-settles"])
def test_groups_are_named_only_where_there_is_a_retention(key):
    definition = QueueDefinition("/", "q", arguments={key: ["g"]})
    with pytest.raises(ChannelError, match="it needs one of x-retention, x-retention-bytes"):
        check_queue_arguments(definition)


def test_a_transient_queue_cannot_keep_messages():
    definition = QueueDefinition("/", "q", durable=False, arguments={"x-retention": "1d"})
    with pytest.raises(ChannelError, match="only durable queues that are not exclusive keep"):
        check_queue_arguments(definition)


def stream_with(**arguments):
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return QueueDefinition("/", "s", arguments={"x-queue-type": "stream"} | named)


@pytest.mark.parametrize(
    "arguments",
    [
        {"compact": True},
        {"compact": False},
        {"compact": True, "compact_delete_retention": "36h"},
        {"compact": True, "compact_delete_retention": 1},
        {"compact": True, "retention": "7d", "retention_messages": 5},
        {"compact": True, "max_age": "7D", "dedup_window": True},
    ],
)
def test_streams_are_compacted(arguments):
    check_queue_arguments(stream_with(**arguments))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"compact": "yes"}, '"expected true or false"'),
        ({"compact": 1}, '"expected true or false"'),
        ({"compact": True, "compact_delete_retention": "1"}, DURATION),
        ({"compact": True, "compact_delete_retention": 0}, DURATION),
        ({"compact": True, "compact_delete_retention": True}, DURATION),
        ({"compact_delete_retention": "1d"}, '"it needs x-compact"'),
        ({"compact": False, "compact_delete_retention": "1d"}, '"it needs x-compact"'),
    ],
)
def test_wrong_compaction_is_refused_with_the_reason(arguments, problem):
    definition = stream_with(**arguments)
    key = next(reversed(definition.arguments))
    with pytest.raises(ChannelError) as refused:
        check_queue_arguments(definition)
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for queue 's' in vhost '/': {problem}"
    assert refused.value.reply_text == text


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("more", [{}, {"x-retention": "7d"}])
def test_only_streams_are_compacted(kind, more):
    arguments = {"x-queue-type": kind, "x-compact": True, **more}
    with pytest.raises(ChannelError, match="only streams are compacted: other queues delete"):
        check_queue_arguments(QueueDefinition("/", "q", arguments=arguments))
    check_queue_arguments(QueueDefinition("/", "q", arguments=arguments | {"x-compact": False}))


MEMBER_PROBLEMS = [
    ({"x-consumer-group": ""}, "x-consumer-group"),
    ({"x-consumer-group": 5}, "x-consumer-group"),
    ({"x-consumer-group": "g", "x-group-session": "13h"}, "x-group-session"),
    ({"x-group-session": "1m"}, "x-group-session"),
    ({"x-consumer-group": "g", "x-group-assign": []}, "x-group-assign"),
    ({"x-consumer-group": "g", "x-group-assign": [-1]}, "x-group-assign"),
    ({"x-group-assign": [1]}, "x-group-assign"),
    ({"x-consumer-group": "g", "x-stream-offset": "tomorrow"}, "x-stream-offset"),
    ({"x-consumer-group": "g", "x-priority": 1}, "x-priority"),
    ({"x-consumer-group": "g", "x-filter-tags": "a"}, "x-filter-tags"),
    ({"x-consumer-group": "g", "x-visibility-timeout": 1}, "x-visibility-timeout"),
]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
@pytest.mark.parametrize(("arguments", "key"), MEMBER_PROBLEMS)
def test_wrong_arguments_of_a_groups_member_are_refused(kind, arguments, key):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": kind})
    with pytest.raises(ChannelError) as refused:
        check_consumer_arguments(definition, arguments)
    assert refused.value.explanation.startswith(f"invalid arg '{key}' for queue 'q'")


@pytest.mark.parametrize("name", ["a\nb", "\x00", "é/ü%25 g", "g" * 255])
def test_names_of_groups_have_any_characters(name):
    check_consumer_arguments(QueueDefinition("/", "q"), {"x-consumer-group": name})


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_a_member_may_say_where_its_group_begins(kind):
    definition = QueueDefinition("/", "q", arguments={"x-queue-type": kind})
    check_consumer_arguments(
        definition,
        {
            "x-consumer-group": "g",
            "x-stream-offset": "first",
            "x-group-session": "1m",
            "x-group-assign": [0, 3],
        },
    )


ERLANG = re.compile(r"\{[a-z_]+,|_type\b|value_")
# Values that most arguments refuse.
STRANGE = ["", "1w", -1, 0, 1 << 63, 1.5, None, True, [], [-1], {}, b"\xff"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("key", sorted(OWN_ARGUMENTS["queues"]))
def test_reasons_for_leverets_arguments_are_sentences(kind, key):
    if key not in TYPES[kind]:
        return
    needed = {"x-compact-delete-retention": {"x-compact": True}}
    arguments = {"x-queue-type": kind, **needed.get(key, {})}
    problems = {check_of(kind, key, wrong, arguments) for wrong in STRANGE} - {None}
    assert problems
    assert [problem for problem in problems if ERLANG.search(problem)] == []


def check_of(kind, key, value, arguments):
    return TYPES[kind][key](value, {**arguments, key: value})
