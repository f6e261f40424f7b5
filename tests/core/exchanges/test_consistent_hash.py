from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.exchanges.consistent_hash import WEIGHT_MAX, ConsistentHashRouter
from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from tests.core.exchanges.bound import to_exchange, to_queue

KEYS = [f"order.{number}" for number in range(4000)]


def routed(router, keys=KEYS):
    """Return the destination of each key."""
    found = {}
    for key in keys:
        [binding] = router.match(key, None)
        found[key] = binding.definition.destination
    return found


def router_of(weights, **arguments):
    router = ConsistentHashRouter({key.replace("_", "-"): v for key, v in arguments.items()})
    bindings = {name: to_queue(name, str(weight)) for name, weight in weights.items()}
    for binding in bindings.values():
        router.add(binding)
    return router, bindings


@pytest.mark.covers("B-173")
def test_shares_follow_the_weights():
    weights = {"a": 1, "b": 1, "c": 2, "d": 6}
    router, _ = router_of(weights)
    counts = Counter(routed(router).values())
    for name, weight in weights.items():
        assert counts[name] == pytest.approx(len(KEYS) * weight / 10, rel=0.15)


@given(st.dictionaries(st.text(max_size=5), st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_coming_and_going_moves_only_ones_own_share(weights, data):
    keys = KEYS[:200]
    router, bindings = router_of(weights)
    before = routed(router, keys)
    gone = data.draw(st.sampled_from(sorted(weights)))
    router.remove(bindings[gone])
    if len(weights) > 1:
        without = routed(router, keys)
        assert {key for key in keys if without[key] != before[key]} == {
            key for key in keys if before[key] == gone
        }
    router.add(bindings[gone])
    assert routed(router, keys) == before  # whatever the order in which they came


def test_a_larger_weight_only_takes():
    router, bindings = router_of({"a": 1, "b": 1, "c": 1})
    before = routed(router)
    router.remove(bindings["a"])
    router.add(to_queue("a", "2"))
    after = routed(router)
    assert {after[key] for key in KEYS if after[key] != before[key]} == {"a"}


def test_the_share_of_a_key_is_the_same_in_every_run():
    router, _ = router_of({"a": 1, "b": 1, "c": 1})
    assert "".join(routed(router, KEYS[:12]).values()) == "bcbbbcbabbbb"


def test_of_two_bindings_to_one_queue_the_first_counts():
    router, bindings = router_of({"a": 1, "b": 1})
    before = routed(router)
    second = to_queue("a", "1000")
    router.add(second)
    assert routed(router) == before
    router.remove(bindings["a"])
    assert Counter(routed(router).values())["a"] > len(KEYS) * 0.99
    router.remove(second)
    assert set(routed(router).values()) == {"b"}


def test_a_queue_and_an_exchange_of_one_name_are_two():
    router = ConsistentHashRouter({})
    router.add(to_queue("a", "1"))
    router.add(to_exchange("a", "1"))
    kinds = Counter(router.match(key, None)[0].definition.destination_type for key in KEYS)
    assert kinds["queue"] == pytest.approx(len(KEYS) / 2, rel=0.15)


def test_without_bindings_nothing_matches():
    assert list(ConsistentHashRouter({}).match("k", None)) == []


@pytest.mark.covers("B-173")
def test_a_header_may_decide():
    router, _ = router_of({"a": 1, "b": 1, "c": 1}, hash_header="customer")
    assert not router.key_decides
    found = set()
    for value in [*range(50), "1", "x", True, {"deep": [1]}, None]:
        message = MadeMessage(b"x", b"k", {"customer": value})
        [one] = router.match("this", message)
        [other] = router.match("that", message)
        assert one is other
        found.add(one.definition.destination)
    assert found == {"a", "b", "c"}
    without = {router.match(key, MadeMessage(b"x", b"", {}))[0] for key in KEYS}
    assert len(without) == 1


class WithProperties(MadeMessage):
    def property(self, name):
        return self.headers[name]


@pytest.mark.covers("B-173")
@pytest.mark.parametrize("name", ["message_id", "correlation_id", "timestamp"])
def test_a_property_may_decide(name):
    router, _ = router_of({"a": 1, "b": 1, "c": 1}, hash_property=name)
    assert not router.key_decides
    values = {
        router.match("k", WithProperties(b"", b"", {name: value}))[0].definition.destination
        for value in range(50)
    }
    assert values == {"a", "b", "c"}


@pytest.mark.covers("B-228")
@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        (
            {"hash-property": "message_id", "hash-header": "h"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-header": 5}, "invalid type 'signedint' for arg 'hash-header'"),
    ],
)
def test_arguments_that_are_refused(arguments, explanation):
    with pytest.raises(ChannelError) as caught:
        ConsistentHashRouter(arguments)
    assert caught.value.reply_text == f"PRECONDITION_FAILED - {explanation}"


@pytest.mark.covers("B-228")
@pytest.mark.parametrize(
    ("key", "explanation"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
        ("+0", "The binding key must be greater than 0"),
        (str(WEIGHT_MAX + 1), f"The binding key must not exceed {WEIGHT_MAX}"),
        ("9" * 250, f"The binding key must not exceed {WEIGHT_MAX}"),
        ("abc", 'The binding key must be an integer: <<"abc">>'),
        ("", "The binding key must be an integer: <<>>"),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("٣", 'The binding key must be an integer: <<"٣"/utf8>>'),
    ],
)
def test_keys_that_are_no_weights(key, explanation):
    with pytest.raises(ChannelError) as caught:
        ConsistentHashRouter({}).check(to_queue("q", key))
    assert caught.value.reply_text == f"PRECONDITION_FAILED - {explanation}"


@pytest.mark.parametrize("key", ["1", "+7", "0012", str(WEIGHT_MAX)])
def test_keys_that_are_weights(key):
    router = ConsistentHashRouter({})
    router.check(to_queue("q", key))
    router.add(to_queue("q", key))
    assert len(list(router.match("k", None))) == 1
