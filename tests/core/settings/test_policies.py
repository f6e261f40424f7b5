import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.settings.arguments import EXPIRY_MS_MAX
from leveret.core.settings.policies import NO_POLICY, InvalidPolicyError, Policies, check_policy
from leveret.core.settings.policy_settings import SETTINGS, merged
from leveret.core.settings.queue_settings import resolve_settings
from leveret.ports.definitions import PolicyDefinition, QueueDefinition
from tests.support.queue_bench import Bench

LENGTH = {"max-length": 5}


def policy(name="p", pattern="", definition=None, **options):
    return PolicyDefinition(
        "/", name, pattern, LENGTH if definition is None else definition, **options
    )


def refused(**fields):
    with pytest.raises(InvalidPolicyError) as raised:
        check_policy(policy(**fields))
    return str(raised.value)


@pytest.mark.covers("B-403")
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("message-ttl", -1, "-1 is not a valid message TTL"),
        ("message-ttl", "x", '<<"x">> is not a valid message TTL'),
        ("message-ttl", True, "true is not a valid message TTL"),
        ("expires", 0, "0 is not a valid queue expiry"),
        ("max-length", 1.5, "1.5 is not a valid maximum length"),
        ("max-length-bytes", None, "null is not a valid maximum length in bytes"),
        ("delivery-limit", "x", '<<"x">> is not a valid delivery limit'),
        ("overflow", "drop", '<<"drop">> is not a valid overflow value'),
        ("dead-letter-exchange", 1, "1 is not a valid dead letter exchange name"),
        ("dead-letter-routing-key", [1, "a"], '[1,<<"a">>] is not a valid dead letter routing key'),
        ("dead-letter-strategy", "no", '<<"no">> is not a valid dead letter strategy'),
        ("alternate-exchange", {"a": 1}, '#{<<"a">> => 1} is not a valid alternate exchange name'),
        ("max-age", "1W", '<<"1W">> is not a valid max age'),
        (
            "compact",
            "yes",
            '<<"yes">> is not a valid compaction switch: expected true or false',
        ),
        ("compact", 1, "1 is not a valid compaction switch: expected true or false"),
        (
            "publish-rate",
            0,
            "0 is not a valid publish rate: expected an integer from 1 to 1000000000",
        ),
        (
            "compact-delete-retention",
            "1w",
            (
                '<<"1w">> is not a valid time for which compaction keeps tombstones: expected a '
                "time of at most 3650d: milliseconds, or a number with d, h, m or s, such as 14d"
            ),
        ),
        ("queue-leader-locator", "x", '<<"x">> is not a valid queue leader locator value'),
        ("stream-max-segment-size-bytes", -1, "-1 is not a valid segment size"),
        (
            "stream-filter-size-bytes",
            15,
            "15 is not a valid filter size. Valid range is 16-255",
        ),
        ("queue-version", True, "true is not a valid queue-version value"),
    ],
)
def test_bad_value_is_named_as_rabbitmq_names_it(key, value, text):
    assert refused(definition={key: value}) == text


@pytest.mark.covers("B-403")
def test_what_else_can_be_wrong_with_a_policy():
    assert refused(definition={"foo": "bar", "max-length": 1, "a": 2}) == (
        '[{<<"a">>,2},{<<"foo">>,<<"bar">>}] are not recognised policy settings'
    )
    assert refused(definition={}) == "no policy provided"
    assert refused(apply_to="topics") == (
        "apply-to 'topics' unrecognised; should be one of: 'queues', 'classic_queues',  "
        "'quorum_queues', 'streams', 'exchanges', or 'all'"
    )
    text = refused(pattern="a(")
    assert re.match(
        r'pattern should be regular expression but is invalid: \{"missing \).*",0}$', text
    )
    assert refused(pattern="a" * 1025) == "pattern is longer than 1024 characters"


@pytest.mark.covers("B-402")
def test_operator_policies_bound_and_do_not_configure():
    check_policy(policy(operator=True))
    assert refused(operator=True, definition={"dead-letter-exchange": "x"}) == (
        '[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings'
    )


@pytest.mark.covers("B-400")
def test_only_the_highest_priority_applies_and_of_equals_the_first_by_name():
    policies = Policies()
    policies.put(policy("b", definition={"max-length": 1}, priority=1))
    policies.put(policy("a", definition={"expires": 2}, priority=1))
    policies.put(policy("c", definition={"message-ttl": 3}))
    found = policies.for_queue("/", "q", "classic")
    assert (found.policy, found.definition) == ("a", {"expires": 2})
    policies.remove("/", "a", operator=False)
    assert policies.for_queue("/", "q", "classic").policy == "b"
    assert policies.for_queue("other", "q", "classic") is NO_POLICY


@pytest.mark.covers("B-400")
@pytest.mark.parametrize(
    ("apply_to", "applies"),
    [
        ("all", "classic quorum stream exchange"),
        ("queues", "classic quorum stream"),
        ("classic_queues", "classic"),
        ("quorum_queues", "quorum"),
        ("streams", "stream"),
        ("exchanges", "exchange"),
    ],
)
def test_apply_to(apply_to, applies):
    policies = Policies()
    policies.put(policy(apply_to=apply_to, definition={"max-length-bytes": 5}))
    found = {
        kind
        for kind in ("classic", "quorum", "stream")
        if policies.for_queue("/", "q", kind).policy
    }
    if policies.for_exchange("/", "x").policy:
        found.add("exchange")
    assert found == set(applies.split())


def test_policy_with_a_setting_foreign_to_the_type_gives_way_to_the_next():
    policies = Policies()
    policies.put(policy("limit", definition={"delivery-limit": 3, "max-length": 1}, priority=1))
    policies.put(policy("plain", definition={"expires": 5}))
    assert policies.for_queue("/", "q", "quorum").policy == "limit"
    assert policies.for_queue("/", "q", "classic").policy == "plain"
    assert policies.for_queue("/", "q", "stream") is NO_POLICY


def test_a_policy_that_compacts_applies_to_streams_only():
    policies = Policies()
    policies.put(policy("latest", definition={"compact": True, "dedup-window": 5}))
    assert policies.for_queue("/", "q", "stream").policy == "latest"
    assert policies.for_queue("/", "q", "classic") is NO_POLICY
    assert policies.for_queue("/", "q", "quorum") is NO_POLICY


def test_pattern_is_searched():
    policies = Policies()
    policies.put(policy(pattern=r"^(?!amq\.)\w+-orders"))
    assert policies.for_queue("/", "new-orders-1", "classic").policy == "p"
    assert policies.for_queue("/", "amq.new-orders", "classic") is NO_POLICY


def test_put_replaces_and_remove_returns():
    policies = Policies()
    policies.put(policy(definition={"max-length": 1}))
    policies.put(policy(definition={"max-length": 2}))
    policies.put(policy(operator=True))
    assert [held.definition for held in policies.select(operator=False)] == [{"max-length": 2}]
    assert policies.remove("/", "none", operator=False) is None
    assert len(policies.remove_vhost("/")) == 2
    assert policies.select("/", operator=True) == []


@pytest.mark.covers("B-402")
@pytest.mark.parametrize(
    ("key", "own", "operator", "together"),
    [
        ("max-length", 5, 7, 5),
        ("max-length", 7, 5, 5),
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        ("queue-version", 2, 1, 1),
        ("delivery-limit", 5, 7, 5),
        ("delivery-limit", -1, 7, 7),
        ("delivery-limit", 5, -1, 5),
        ("delivery-limit", -2, -1, -1),
        ("delayed-retry-type", "all", "failed", "failed"),
    ],
)
def test_merge(key, own, operator, together):
    assert merged({key: own, "max-age": "1D"}, {key: operator, "expires": 3}) == {
        key: together,
        "max-age": "1D",
        "expires": 3,
    }


NUMBERS = ["max-length", "message-ttl", "delivery-limit", "expires", "max-length-bytes"]
DEFINITIONS = st.dictionaries(st.sampled_from(NUMBERS), st.integers(1, 9), min_size=1)
POLICIES = st.lists(
    st.builds(
        PolicyDefinition,
        vhost=st.sampled_from(["/", "v"]),
        name=st.sampled_from("abc"),
        pattern=st.sampled_from(["", "^a", "b$", "^ab$", "c"]),
        definition=DEFINITIONS,
        priority=st.integers(-1, 2),
        apply_to=st.sampled_from(["all", "queues", "classic_queues", "exchanges"]),
        operator=st.booleans(),
    ),
    max_size=12,
)


def naive(held, vhost, name, *, queue):
    """Return the value by RabbitMQ's documentation, word by word."""
    together = {}
    for operator in (False, True):
        fitting = [
            one
            for one in held
            if one.vhost == vhost
            and one.operator is operator
            and re.search(one.pattern, name)
            and one.apply_to
            in (["all", "queues", "classic_queues"] if queue else ["all", "exchanges"])
            and not (
                queue and "delivery-limit" in one.definition and one.apply_to != "classic_queues"
            )
        ]
        if not fitting:
            continue
        best = min(fitting, key=lambda one: (-one.priority, one.name))
        for key, value in best.definition.items():
            together[key] = min(value, together[key]) if key in together else value
    return together


@pytest.mark.covers("B-400", "B-402")
@given(put=POLICIES, vhost=st.sampled_from(["/", "v"]), name=st.sampled_from(["", "a", "ab", "cb"]))
def test_effective_policy_equals_the_naive_one(put, vhost, name):
    policies, held = Policies(), {}
    for one in put:
        policies.put(one)
        held[one.vhost, one.operator, one.name] = one
    assert policies.for_queue(vhost, name, "classic").definition == naive(
        held.values(), vhost, name, queue=True
    )
    assert policies.for_exchange(vhost, name).definition == naive(
        held.values(), vhost, name, queue=False
    )


KEYS = """alternate-exchange consumer-disconnected-timeout consumer-timeout dead-letter-exchange
dead-letter-routing-key dead-letter-strategy message-ttl expires max-length max-length-bytes
max-in-memory-length max-in-memory-bytes queue-mode queue-version overflow delivery-limit max-age
stream-max-segment-size-bytes stream-filter-size-bytes queue-leader-locator initial-cluster-size
target-group-size member-placement-tag delayed-retry-type delayed-retry-min delayed-retry-max
federation-upstream federation-upstream-set federation-upstream-pattern shards-per-node
routing-key"""
OPERATOR_KEYS = """expires message-ttl max-length max-length-bytes max-in-memory-length
max-in-memory-bytes delivery-limit queue-version overflow target-group-size delayed-retry-type
delayed-retry-min delayed-retry-max"""
OWN_OPERATOR_KEYS = {
    "publish-rate",
    "publish-burst",
    "consume-rate",
    "consume-burst",
    "group-delivery-limit",
    "min-isr",
    "retention",
    "retention-bytes",
    "retention-messages",
}


@pytest.mark.covers("B-401", "B-402")
def test_every_key_of_rabbitmq_is_known():
    assert set(KEYS.split()) <= set(SETTINGS)
    operator_keys = {key for key, one in SETTINGS.items() if one.operator and key[:3] != "ha-"}
    assert operator_keys == set(OPERATOR_KEYS.split()) | OWN_OPERATOR_KEYS


def test_what_is_no_policy_any_more_is_kept_and_applies_to_nothing():
    policies, kept = Policies(), policy(pattern="(?!a)b")
    policies.restore([kept])
    assert policies.select(operator=False) == [kept]
    assert policies.for_queue("/", "b", "classic") is NO_POLICY


def test_names_are_excluded_as_rabbitmqs_guides_do_it():
    policies = Policies()
    policies.put(policy(pattern=r"^(?!amq\.).*"))
    found = [policies.for_queue("/", name, "classic").policy for name in ("orders", "amq.gen-1")]
    assert found == ["p", None]


@pytest.mark.timeout(30)  # an engine that backtracks takes for ever
def test_no_pattern_takes_long():
    policies = Policies()
    policies.put(policy(pattern="(a+)+b"))
    assert policies.for_queue("/", "a" * 255, "classic") is NO_POLICY


EXTREME = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 10**300]),
    st.integers(),
)
NUMBERS = [key for key, setting in SETTINGS.items() if setting.maximum is not None]


def test_no_setting_takes_a_number_that_is_larger_than_any_field_of_a_table():
    for key, setting in SETTINGS.items():
        if setting.description == key:
            continue  # means nothing here, and is not looked into
        assert not setting.accepts(10**30), key


@given(definition=st.dictionaries(st.sampled_from(NUMBERS), EXTREME, min_size=1))
def test_a_stored_policy_with_extreme_numbers_leaves_queues_at_work(definition):
    policies = Policies()
    policies.restore([policy(definition=definition), policy(definition=definition, operator=True)])
    for kind in ("classic", "quorum", "stream"):
        effective = policies.for_queue("/", "q", kind).definition
        settings = resolve_settings(
            QueueDefinition("/", "q", arguments={"x-queue-type": kind}), effective
        )
        if kind == "stream":
            continue
        bench = Bench(settings=settings)
        bench.publish(3)
        bench.run()
        bench.consume()
        bench.run()
        bench.advance(1000)
        assert bench.reported == []


def test_a_stored_number_that_is_too_large_counts_as_the_largest():
    policies = Policies()
    policies.restore([policy(definition={"message-ttl": 10**30, "max-length": 10**30})])
    assert policies.for_queue("/", "q", "classic").definition == {
        "message-ttl": EXPIRY_MS_MAX,
        "max-length": 2**63 - 1,
    }
