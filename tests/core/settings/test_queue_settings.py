"""Settings of a queue, from its arguments and its policy together."""

import pytest

from leveret.core.settings.arguments import EXPIRY_MS_MAX
from leveret.core.settings.queue_settings import (
    DeadLetterStrategy,
    Overflow,
    QueueSettings,
    RetryDelay,
    resolve_settings,
)
from leveret.ports import Compaction, Retention
from leveret.ports.definitions import QueueDefinition


def resolved(arguments=None, policy=None):
    definition = QueueDefinition("/", "q", arguments=arguments or {})
    return resolve_settings(definition, policy or {})


def quorum(arguments=None, policy=None):
    return resolved({"x-queue-type": "quorum", **(arguments or {})}, policy)


def test_nothing_stated_is_nothing_special():
    assert resolved() == QueueSettings()


@pytest.mark.covers("B-400", "B-402")
@pytest.mark.parametrize("key", ["message-ttl", "expires", "max-length", "max-length-bytes"])
@pytest.mark.parametrize(("own", "given", "counts"), [(5, 3, 3), (3, 5, 3), (0, 9, 0), (7, 7, 7)])
def test_of_times_and_lengths_the_smaller_counts(key, own, given, counts):
    field = {"message-ttl": "message_ttl_ms", "expires": "expires_ms"}.get(
        key, key.replace("-", "_")
    )
    assert getattr(resolved({f"x-{key}": own}, {key: given}), field) == counts
    assert getattr(resolved({f"x-{key}": own}), field) == own
    assert getattr(resolved(policy={key: given}), field) == given


@pytest.mark.covers("B-400")
def test_of_other_settings_the_queues_own_wins():
    policy = {
        "overflow": "reject-publish",
        "dead-letter-exchange": "theirs",
        "dead-letter-routing-key": "their key",
        "consumer-timeout": 1,
    }
    settings = resolved({"x-overflow": "drop-head", "x-dead-letter-exchange": ""}, policy)
    assert settings.overflow is Overflow.DROP_HEAD
    assert settings.dead_letter_exchange == ""
    assert settings.dead_letter_routing_key == "their key"
    assert settings.consumer_timeout_ms == 1


def test_a_queue_is_limited_by_either_length():
    assert not resolved({"x-overflow": "reject-publish"}).rejects
    assert resolved({"x-overflow": "reject-publish", "x-max-length-bytes": 0}).rejects
    assert not resolved({"x-max-length": 1}).rejects
    assert resolved({"x-max-length": 1}).is_limited


@pytest.mark.covers("B-142", "B-402")
@pytest.mark.parametrize(
    ("own", "given", "limit"),
    [
        (None, None, 20),
        (3, None, 3),
        (None, 4, 4),
        (3, 4, 3),
        (-1, None, None),
        (-1, 4, 4),
        (5, -1, 5),
        (-1, -1, None),
    ],
)
def test_the_delivery_limit_of_a_quorum_queue(own, given, limit):
    arguments = {} if own is None else {"x-delivery-limit": own}
    policy = {} if given is None else {"delivery-limit": given}
    assert quorum(arguments, policy).delivery_limit == limit


@pytest.mark.covers("C-215")
def test_classic_queues_have_a_delivery_limit_when_they_state_one():
    assert (resolved().delivery_limit, resolved().counts_deliveries) == (None, False)
    limited = resolved({"x-delivery-limit": 3})
    assert (limited.delivery_limit, limited.counts_deliveries) == (3, True)
    assert resolved(policy={"delivery-limit": 3}).delivery_limit == 3
    assert resolved({"x-delivery-limit": -1}).delivery_limit is None


def topic_of(arguments):
    return sorted(resolved(arguments).dead_letter_topic)


def test_which_dead_letters_a_queue_without_an_exchange_keeps():
    assert topic_of({}) == topic_of({"x-queue-type": "quorum"}) == []
    assert topic_of({"x-delivery-limit": 3}) == ["delivery_limit"]
    assert topic_of({"x-queue-type": "quorum", "x-delivery-limit": 3}) == []
    asked = {"x-dead-letter-topic": True}
    assert topic_of(asked) == ["delivery_limit", "expired", "maxlen", "rejected"]
    assert resolved(asked).dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
    assert topic_of({**asked, "x-dead-letter-exchange": "dlx"}) == []
    assert topic_of({"x-dead-letter-topic": False}) == []


@pytest.mark.covers("B-143")
@pytest.mark.parametrize(
    ("kind", "failed", "returned"),
    [("all", True, True), ("failed", True, False), ("returned", False, True)],
)
def test_which_returns_are_delayed(kind, failed, returned):
    arguments = {"x-delayed-retry-type": kind, "x-delayed-retry-min": 100}
    assert quorum(arguments).retry_delay == RetryDelay(failed, returned, 100)
    policy = {name.removeprefix("x-"): value for name, value in arguments.items()}
    assert quorum(policy=policy).retry_delay == RetryDelay(failed, returned, 100)
    assert resolved(policy=policy).retry_delay is None


@pytest.mark.covers("B-143", "B-402")
def test_of_two_delays_the_shorter_one_counts():
    policy = {"delayed-retry-type": "all", "delayed-retry-min": 200, "delayed-retry-max": 300}
    delay = quorum({"x-delayed-retry-min": 100, "x-delayed-retry-max": 1000}, policy).retry_delay
    assert delay == RetryDelay(True, True, 100, 300)
    assert [delay.after(count) for count in range(5)] == [100, 100, 200, 300, 300]


@pytest.mark.covers("B-143")
@pytest.mark.parametrize(
    "policy",
    [
        {"delayed-retry-min": 100},
        {"delayed-retry-type": "disabled", "delayed-retry-min": 100},
        {"delayed-retry-type": "all"},
        {"delayed-retry-type": "all", "delayed-retry-min": 0},
        {"delayed-retry-type": "all", "delayed-retry-min": 100, "delayed-retry-max": 0},
    ],
)
def test_no_delay_without_a_kind_and_a_length(policy):
    assert quorum(policy=policy).retry_delay is None


def test_no_delay_is_longer_than_any_lifetime():
    policy = {"delayed-retry-type": "all", "delayed-retry-min": 10**30, "delayed-retry-max": 10**30}
    assert quorum(policy=policy).retry_delay.after(10**30) == EXPIRY_MS_MAX


@pytest.mark.covers("B-140", "B-146")
def test_priorities():
    assert resolved({"x-max-priority": 7}).max_priority == 7
    assert resolved({"x-max-priority": 0}).max_priority is None
    assert (quorum().max_priority, quorum().default_priority) == (31, 4)
    assert quorum().returns_first


@pytest.mark.covers("B-123")
def test_a_single_active_consumer_is_chosen_by_priority_in_quorum_queues():
    asked = {"x-single-active-consumer": True}
    assert resolved(asked).single_active
    assert not resolved(asked).single_active_by_priority
    assert quorum(asked).single_active_by_priority
    assert not quorum().single_active_by_priority


@pytest.mark.covers("B-159")
def test_dead_letters_are_sure_to_arrive_only_where_that_can_be():
    asked = {
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "dlx",
        "x-overflow": "reject-publish",
    }
    assert quorum(asked).dead_letter_strategy is DeadLetterStrategy.AT_LEAST_ONCE
    for key in ("x-dead-letter-exchange", "x-overflow"):
        without = {name: value for name, value in asked.items() if name != key}
        assert quorum(without).dead_letter_strategy is DeadLetterStrategy.AT_MOST_ONCE


def test_a_quorum_queue_drops_where_a_policy_asks_for_what_it_cannot_do():
    assert quorum(policy={"overflow": "reject-publish-dlx"}).overflow is Overflow.DROP_HEAD


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("arguments", "policy", "retention"),
    [
        ({}, {}, Retention(age_ms_max=14 * DAY_MS)),
        ({"x-max-age": "1D"}, {}, Retention(age_ms_max=DAY_MS)),
        ({"x-max-length-bytes": 5}, {}, Retention(bytes_max=5)),
        ({"x-max-age": "1D"}, {"max-age": "2D"}, Retention(age_ms_max=2 * DAY_MS)),
        ({"x-max-length-bytes": 5}, {"max-length-bytes": 7}, Retention(bytes_max=7)),
        (
            {"x-stream-max-segment-size-bytes": 9},
            {"max-length-bytes": 7, "message-ttl": 5},
            Retention(bytes_max=7, segment_bytes_max=9),
        ),
        ({"x-retention": "12h"}, {}, Retention(age_ms_max=DAY_MS // 2)),
        ({"x-retention": 1000}, {"retention": "2d"}, Retention(age_ms_max=2 * DAY_MS)),
        ({"x-retention-messages": 9}, {}, Retention(records_max=9)),
        (
            {"x-retention-bytes": 9, "x-retention-waits-max": "3d"},
            {},
            Retention(bytes_max=9, waits_ms_max=3 * DAY_MS),
        ),
    ],
)
def test_a_stream_keeps_what_its_policy_or_its_arguments_say(arguments, policy, retention):
    settings = resolved({"x-queue-type": "stream", **arguments}, policy)
    assert settings == QueueSettings(is_stream=True, retention=retention)


@pytest.mark.parametrize(
    ("arguments", "policy", "limits"),
    [
        ({"x-compact": True}, {}, {}),
        ({}, {"compact": True}, {}),
        ({"x-compact": True}, {"compact": False}, {}),
        ({"x-compact": True, "x-retention": "7d"}, {}, {"age_ms_max": 7 * DAY_MS}),
        ({"x-compact": True}, {"max-length-bytes": 9}, {"bytes_max": 9}),
        ({"x-compact": True, "x-retention-messages": 9}, {}, {"records_max": 9}),
    ],
)
def test_a_compacted_stream_has_no_retention_but_what_is_stated(arguments, policy, limits):
    settings = resolved({"x-queue-type": "stream", **arguments}, policy)
    assert settings.retention == Retention(compaction=Compaction(DAY_MS), **limits)


@pytest.mark.parametrize("by", ["random", "round-robin", "customer"])
@pytest.mark.parametrize(
    ("kind", "policy", "field", "without"),
    [
        ("stream", {"compact": True}, "retention", Retention(age_ms_max=14 * DAY_MS)),
        ("classic", {"group-ordering": True}, "group_ordering", False),
        ("classic", {"celery-eta": True}, "celery_eta", False),
    ],
)
def test_a_policy_has_no_effect_that_partitions_would_break(by, kind, policy, field, without):
    placed = {"x-queue-type": kind, "x-partitions": 2, "x-partition-by": by}
    assert getattr(resolved(placed, policy), field) == without
    assert getattr(resolved({"x-queue-type": kind}, policy), field) != without


@pytest.mark.parametrize(("by", "window_ms"), [("key", 5000), ("random", None)])
def test_a_window_of_a_policy_holds_where_duplicates_share_a_partition(by, window_ms):
    settings = resolved({"x-partitions": 2, "x-partition-by": by}, {"dedup-window": 5000})
    assert settings.dedup_window_ms == window_ms


def test_a_stream_can_refuse_the_compaction_of_its_policy():
    settings = resolved({"x-queue-type": "stream", "x-compact": False}, {"compact": True})
    assert settings.retention == Retention(age_ms_max=14 * DAY_MS)


@pytest.mark.parametrize(
    ("arguments", "policy", "time_ms"),
    [
        ({"x-compact": True, "x-compact-delete-retention": "2d"}, {}, 2 * DAY_MS),
        ({}, {"compact": True, "compact-delete-retention": 5000}, 5000),
        ({"x-compact": True}, {"compact-delete-retention": "12h"}, DAY_MS // 2),
    ],
)
def test_tombstones_are_kept_as_long_as_is_stated(arguments, policy, time_ms):
    settings = resolved({"x-queue-type": "stream", **arguments}, policy)
    assert settings.retention == Retention(compaction=Compaction(time_ms))


def test_no_other_queue_keeps_what_was_consumed():
    assert resolved({"x-max-length-bytes": 5}).retention is None


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("arguments", "policy", "limits"),
    [
        ({"x-retention": "14d"}, {}, {"age_ms_max": 14 * DAY_MS}),
        ({}, {"retention": 5000}, {"age_ms_max": 5000}),
        ({"x-retention": "1D"}, {"retention": 5000}, {"age_ms_max": DAY_MS}),
        ({"x-retention-bytes": 7}, {"retention-messages": 3}, {"bytes_max": 7, "records_max": 3}),
    ],
)
def test_a_queue_keeps_consumed_messages_where_it_is_asked_to(kind, arguments, policy, limits):
    settings = resolved({"x-queue-type": kind, **arguments}, policy)
    assert settings.retention == Retention(keeps_settled=True, **limits)
    assert not settings.is_stream


def test_a_queue_that_is_not_durable_keeps_nothing_whatever_a_policy_says():
    definition = QueueDefinition("/", "q", durable=False)
    assert resolve_settings(definition, {"retention": "1d"}).retention is None


def test_retention_waits_for_the_groups_that_are_named():
    settings = resolved({"x-retention": "1d", "x-retention-waits-for": ["archive"]})
    assert settings.retention_waits_for == ("archive",)


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {}, (None, None)),
        ({"x-delivery-limit": 5}, {}, (5, 5)),
        ({"x-group-delivery-limit": 3}, {}, (None, 3)),
        ({"x-delivery-limit": 5, "x-group-delivery-limit": -1}, {}, (5, None)),
        ({}, {"group-delivery-limit": 7}, (None, 7)),
        ({"x-queue-type": "quorum"}, {}, (20, 20)),
        ({"x-queue-type": "quorum", "x-group-delivery-limit": 3}, {}, (20, 3)),
        ({"x-queue-type": "stream", "x-group-delivery-limit": 3}, {}, (None, 3)),
    ],
)
def test_groups_have_the_delivery_limit_of_the_queue_or_their_own(arguments, policy, expected):
    settings = resolved(arguments, policy)
    assert (settings.delivery_limit, settings.group_delivery_limit) == expected


@pytest.mark.parametrize(
    ("arguments", "policy", "expected"),
    [
        ({}, {}, 1),
        ({"x-min-isr": 3}, {}, 3),
        ({"x-queue-type": "quorum"}, {}, 2),
        ({"x-queue-type": "quorum", "x-min-isr": 1}, {}, 1),
        ({"x-queue-type": "quorum"}, {"min-isr": 3}, 3),
        ({"x-queue-type": "quorum", "x-min-isr": 1}, {"min-isr": 2}, 2),
        ({"x-queue-type": "stream", "x-min-isr": 2}, {}, 2),
    ],
)
def test_how_many_nodes_must_be_in_sync(arguments, policy, expected):
    assert resolved(arguments, policy).copies_min == expected
    transient = QueueDefinition("/", "q", durable=False, arguments=arguments)
    assert resolve_settings(transient, policy).copies_min == 1


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}])
def test_whether_a_confirm_waits_for_copies(arguments):
    assert resolved(arguments).waits_for_copies
    assert resolved({**arguments, "x-acks": "all"}, {"acks": "leader"}).waits_for_copies
    assert not resolved({**arguments, "x-acks": "leader"}).waits_for_copies
    assert not resolved(arguments, {"acks": "leader"}).waits_for_copies


def test_groups_settle_that_are_named_and_never_for_a_stream():
    settings = resolved({"x-retention": "1d"}, {"retention-settles": ["billing"]})
    assert settings.retention_settles == ("billing",)
    stream = resolved({"x-queue-type": "stream"}, {"retention-settles": ["billing"]})
    assert stream.retention_settles == ()
