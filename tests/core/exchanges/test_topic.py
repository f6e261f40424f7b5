from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.exchanges.topic import TopicRouter
from leveret.core.routing.router import RoutingLimitError
from leveret.errors import ChannelError
from leveret.ports.definitions import BindingDefinition


class Bound:
    """As much of a binding as a router looks at."""

    def __init__(self, key):
        self.definition = BindingDefinition("/", "x", key, "queue", key)


def fits(pattern, words):
    """Tell the same in the plainest way."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return fits(pattern[1:], words) or (bool(words) and fits(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and fits(pattern[1:], words[1:])


def empty(router):
    """Tell whether no branch is left."""
    root = router.root
    return not (root.children or root.one or root.many or root.bindings)


def split(key):
    return key.split(".") if key else []


def routed(patterns, key):
    router = TopicRouter({})
    for pattern in patterns:
        router.add(Bound(pattern))
    return [binding.definition.routing_key for binding in router.match(key, None)]


WORDS = st.sampled_from(["a", "b", "c", "", "ä"])
KEYS = st.lists(WORDS, max_size=6).map(".".join)
PATTERNS = st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), max_size=6).map(".".join)


@pytest.mark.covers("B-171")
@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "c", True),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("*", "a.", False),
        ("a.*", "a.", True),
        ("#.a.#", "x.a.y", True),
        ("a*", "ab", False),
        ("*.#", "", False),
        ("#.*", "a", True),
    ],
)
def test_stars_are_one_word_and_hashes_any_number(pattern, key, expected):
    assert routed([pattern], key) == ([pattern] if expected else [])
    assert fits(split(pattern), split(key)) == expected


@given(st.lists(PATTERNS, unique=True, max_size=12), KEYS)
def test_a_key_reaches_each_pattern_it_fits_once(patterns, key):
    expected = [pattern for pattern in patterns if fits(split(pattern), split(key))]
    assert sorted(routed(patterns, key)) == sorted(expected)


@given(st.lists(PATTERNS, max_size=10), st.data())
def test_what_is_removed_is_gone_and_the_rest_stays(patterns, data):
    router = TopicRouter({})
    bound = [Bound(pattern) for pattern in patterns]
    for binding in bound:
        router.add(binding)
    kept = list(bound)
    for binding in data.draw(st.permutations(bound)):
        router.remove(binding)
        kept.remove(binding)
        key = data.draw(KEYS)
        expected = {b for b in kept if fits(split(b.definition.routing_key), split(key))}
        assert set(router.match(key, None)) == expected
    assert empty(router)


def test_removing_what_was_never_there_is_a_mistake():
    router = TopicRouter({})
    router.add(Bound("a.b"))
    for key in ("a.c", "a.b"):
        with pytest.raises(KeyError):
            router.remove(Bound(key))


@pytest.mark.covers("B-171", "B-227")
def test_hashes_are_limited():
    router = TopicRouter({})
    router.check(Bound("#.a.#"))
    with pytest.raises(ChannelError) as caught:
        router.check(Bound("#.#.a.#"))
    assert caught.value.reply_text == (
        "PRECONDITION_FAILED - Topic binding key '#.#.a.#' uses 3 '#' wildcards, "
        "at most 2 are allowed"
    )


def test_patterns_share_the_words_they_begin_with():
    router = TopicRouter({})
    bound = [Bound(f"orders.{number % 100}.{number}.*") for number in range(10_000)]
    for binding in bound:
        router.add(binding)
    assert list(router.root.children) == ["orders"]
    assert len(router.root.children["orders"].children) == 100
    assert router.match("orders.7.107.new", None) == [bound[107]]


def test_a_key_that_comes_by_too_many_patterns_ends_the_walk():
    router = TopicRouter({})
    for combination in product("*a", repeat=14):
        router.add(Bound(".".join(combination)))
    assert len(router.match(".".join("ab" * 7), None)) == 128
    with pytest.raises(RoutingLimitError):
        router.match(".".join("a" * 14), None)
