"""Bindings with filters: for each exchange type, and which routes are remembered beside them."""

import pytest

from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from tests.core.vhost_fakes import declare, exchange, make_vhost, names

KEYS = {"x-consistent-hash": "1", "x-local-random": ""}
TYPES = [
    "direct",
    "fanout",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-local-random",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
]


def message(**headers):
    return MadeMessage(b"e", b"k", {key.replace("_", "-"): value for key, value in headers.items()})


@pytest.fixture
def vhost():
    made = make_vhost()
    for name in "pqr":
        declare(made, name)
    return made


def routed(vhost, sent, name="e"):
    return names(vhost.route(vhost.exchanges[name], ["k"], sent))


@pytest.mark.parametrize("type_", TYPES)
def test_a_filter_is_asked_when_the_type_has_chosen(vhost, type_):
    exchange(vhost, "e", type_)
    arguments = {"x-filter-tags": "a && !b", "x-filter-sql": "n > 1"}
    vhost.bind_queue("q", "e", KEYS.get(type_, "k"), arguments, None)
    assert routed(vhost, message(x_tags=["a"], n=2)) == ["q"]
    assert routed(vhost, message(x_tags=["a"], n=1)) == []
    assert routed(vhost, message(x_tags=["a", "b"], n=2)) == []
    assert routed(vhost, message(n=2)) == []
    assert not vhost.cache("e").cacheable
    vhost.unbind_queue("q", "e", KEYS.get(type_, "k"), arguments, None)
    declare(vhost, "q2")
    assert vhost.cache("e").cacheable == vhost.exchanges["e"].router.key_decides


def test_a_message_that_no_filter_lets_through_takes_the_alternate(vhost):
    exchange(vhost, "rest", "fanout")
    exchange(vhost, "e", "fanout", arguments={"alternate-exchange": "rest"})
    vhost.bind_queue("p", "e", "", {"x-filter-tags": "a"}, None)
    vhost.bind_queue("q", "rest", "", {}, None)
    assert routed(vhost, message(x_tags="a")) == ["p"]
    assert routed(vhost, message(x_tags="b")) == ["q"]


def test_arguments_are_part_of_what_a_binding_is(vhost):
    exchange(vhost, "e")
    for tags in ("a", "b"):
        vhost.bind_queue("q", "e", "k", {"x-filter-tags": tags}, None)
    vhost.bind_queue("p", "e", "k", {}, None)
    assert routed(vhost, message(x_tags="b")) == ["q", "p"]
    vhost.unbind_queue("q", "e", "k", {"x-filter-tags": "b"}, None)
    assert routed(vhost, message(x_tags="b")) == ["p"]
    assert not vhost.cache("e").cacheable
    vhost.unbind_queue("q", "e", "k", {"x-filter-tags": "a"}, None)
    assert vhost.cache("e").cacheable


def test_who_leads_to_a_filter_remembers_nothing(vhost):
    for name in ("first", "second"):
        exchange(vhost, name, "fanout")
    vhost.bind_exchange("second", "first", "", {})
    vhost.bind_queue("p", "second", "", {}, None)
    assert vhost.cache("first").lookup(b"k").builders
    vhost.bind_queue("q", "second", "", {"x-filter-tags": "a"}, None)
    assert not vhost.cache("first").cacheable
    assert routed(vhost, message(x_tags="a"), "first") == ["p", "q"]
    vhost.remove_queue(vhost.queues["q"])
    assert vhost.cache("first").cacheable


def test_exchanges_are_bound_with_filters_too(vhost):
    for name in ("first", "second"):
        exchange(vhost, name, "fanout")
    vhost.bind_queue("p", "second", "", {}, None)
    vhost.bind_exchange("second", "first", "", {"x-filter-sql": "a = 1"})
    assert routed(vhost, message(a=1), "first") == ["p"]
    assert routed(vhost, message(a=2), "first") == []
    vhost.unbind_exchange("second", "first", "", {"x-filter-sql": "a = 1"})
    assert vhost.cache("first").cacheable


def test_a_headers_exchange_does_not_compare_them(vhost):
    exchange(vhost, "e", "headers")
    arguments = {"x-match": "all-with-x", "h": 1, "x-filter-tags": "a"}
    vhost.bind_queue("q", "e", "", arguments, None)
    assert routed(vhost, message(h=1, x_tags="a")) == ["q"]
    assert routed(vhost, message(h=2, x_tags="a")) == []


def test_history_passes_the_filter(vhost):
    exchange(vhost, "e", "x-recent-history")
    for tag in "ab":
        routed(vhost, message(x_tags=tag))
    vhost.bind_queue("q", "e", "", {"x-filter-tags": "b"}, None)
    assert [sent.headers for sent in vhost.queues["q"].taken] == [{"x-tags": "b"}]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-filter-tags": "a &"}, "invalid arg 'x-filter-tags' for exchange 'e' in vhost '/': "),
        ({"x-filter-tags": 1}, "expected text"),
        ({"x-filter-sql": "a ="}, "expected a value, found the end at character 4, after 'a ='"),
    ],
)
def test_what_cannot_be_read_is_refused(vhost, arguments, text):
    exchange(vhost, "e")
    exchange(vhost, "f")
    for bind in (
        lambda: vhost.bind_queue("q", "e", "k", arguments, None),
        lambda: vhost.bind_exchange("f", "e", "k", arguments),
    ):
        with pytest.raises(ChannelError) as refused:
            bind()
        assert refused.value.code == 406
        assert text in refused.value.explanation
    assert not vhost.exchanges["e"].outgoing
