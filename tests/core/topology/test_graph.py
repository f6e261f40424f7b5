"""Routing over random graphs against the plainest routing, and remembered against fresh routes."""

import fnmatch
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leveret.core.settings.policies import Policies
from leveret.core.topology.graph import KEYS_MAX
from leveret.core.topology.walk import VAIN_STEPS_MAX
from leveret.errors import ChannelError
from leveret.features.filters.rules import CHARACTERS_A_STEP, JUDGEMENT_STEPS_MIN
from leveret.ports.definitions import PolicyDefinition
from tests.core.vhost_fakes import (
    declare,
    exchange,
    follow_policies,
    make_vhost,
    names,
    with_headers,
)
from tests.support.examples import examples

EXCHANGES = ["a", "b", "c", "d", "e"]
QUEUES = ["p", "q", "r"]
KEYS = ["k", "l", "k.l", ""]
PATTERNS = ["k", "l", "k.l", "*", "#", "k.#"]
TYPES = ["direct", "fanout", "topic", "headers"]
# Of the types that follow no pattern, those that leave nothing to chance.
OTHER_TYPES = ["x-modulus-hash", "x-recent-history"]
MESSAGE_TYPES = {"headers", "x-recent-history"}  # must see every message
HEADERS = [None, {"h": 1}, {"h": 2}]
CONDITIONS = [{}, {"h": 1}]


def fits(type_, binding, key, headers):
    """Tell whether a binding takes a message, for the few patterns used here."""
    pattern, arguments = binding.routing_key, binding.arguments
    if type_ == "direct":
        return pattern == key
    if type_ == "topic":
        return {
            "*": key != "" and "." not in key,
            "#": True,
            "k.#": fnmatch.fnmatchcase(key + ".", "k.*"),
        }.get(pattern, pattern == key)
    return type_ == "fanout" or all((headers or {}).get(k) == v for k, v in arguments.items())


def expected(vhost, start, key, headers):
    """Search breadth first over definitions alone."""
    found, seen, level = set(), set(), [start]
    while level:
        seen.update(level)
        ahead = []
        for name in level:
            source = vhost.exchanges[name].definition
            taken = [
                binding.definition
                for binding in vhost.exchanges[name].outgoing.values()
                if fits(source.type, binding.definition, key, headers)
            ]
            found.update(b.destination for b in taken if b.destination_type == "queue")
            ahead += [b.destination for b in taken if b.destination_type == "exchange"]
            if not taken and source.arguments.get("alternate-exchange") in vhost.exchanges:
                ahead.append(source.arguments["alternate-exchange"])
        level = [name for name in dict.fromkeys(ahead) if name not in seen]
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from([*EXCHANGES, None])),
        min_size=len(EXCHANGES),
        max_size=len(EXCHANGES),
    ),
    st.lists(
        st.tuples(
            st.sampled_from(EXCHANGES),
            st.sampled_from([*EXCHANGES, *QUEUES]),
            st.sampled_from(PATTERNS),
            st.sampled_from(CONDITIONS),
        ),
        max_size=15,
    ),
)
def test_every_message_finds_the_queues_a_plain_search_finds(kinds, edges):
    vhost = make_vhost()
    for name, (type_, alternate) in zip(EXCHANGES, kinds, strict=True):
        exchange(vhost, name, type_, arguments={"alternate-exchange": alternate or "gone"})
    for name in QUEUES:
        declare(vhost, name)
    for source, destination, key, conditions in edges:
        if destination in QUEUES:
            vhost.bind_queue(destination, source, key, conditions, None)
        else:
            vhost.bind_exchange(destination, source, key, conditions)
    for start in EXCHANGES:
        for key in KEYS:
            for headers in HEADERS:
                found = names(vhost.route(vhost.exchanges[start], [key], with_headers(headers)))
                assert len(found) == len(set(found))
                assert set(found) == expected(vhost, start, key, headers)


class RememberedRoutes(RuleBasedStateMachine):
    """A cached route equals the one routing gives now, whatever is declared, bound and deleted."""

    def __init__(self):
        super().__init__()
        self.policies = Policies()
        self.vhost = make_vhost(policies=self.policies)
        self.held = {}
        self.generation = self.vhost.topology.generation

    @rule(
        name=st.sampled_from(EXCHANGES),
        type_=st.sampled_from(TYPES + OTHER_TYPES),
        auto_delete=st.booleans(),
        alternate=st.sampled_from([None, "", *EXCHANGES]),
    )
    def declare_exchange(self, name, type_, auto_delete, alternate):
        if name not in self.vhost.exchanges:
            arguments = {} if alternate is None else {"alternate-exchange": alternate}
            exchange(self.vhost, name, type_, auto_delete=auto_delete, arguments=arguments)

    @rule(pattern=st.sampled_from(["a", "[bc]", ".", ""]), alternate=st.sampled_from(EXCHANGES))
    def set_policy(self, pattern, alternate):
        definition = {"alternate-exchange": alternate}
        self.policies.put(PolicyDefinition("/", "p", pattern, definition))
        follow_policies(self.vhost)

    @rule()
    def clear_policy(self):
        self.policies.remove("/", "p", operator=False)
        follow_policies(self.vhost)

    @rule(name=st.sampled_from(EXCHANGES), if_unused=st.booleans())
    def delete_exchange(self, name, if_unused):
        existing = self.vhost.exchanges.get(name)
        if if_unused and existing is not None and existing.outgoing:
            with pytest.raises(ChannelError):
                self.vhost.delete_exchange(name, if_unused=True)
        else:
            self.vhost.delete_exchange(name, if_unused=if_unused)
            assert name not in self.vhost.exchanges

    @rule(name=st.sampled_from(QUEUES))
    def declare_queue(self, name):
        declare(self.vhost, name)

    @rule(name=st.sampled_from(QUEUES))
    def remove_queue(self, name):
        if name in self.vhost.queues:
            self.vhost.remove_queue(self.vhost.queues[name])

    @rule(
        source=st.sampled_from(EXCHANGES),
        destination=st.sampled_from([*EXCHANGES, *QUEUES]),
        key=st.sampled_from(PATTERNS),
        conditions=st.sampled_from(CONDITIONS),
    )
    def bind(self, source, destination, key, conditions):
        known = {*self.vhost.exchanges, *self.vhost.queues}
        if {source, destination} <= known:
            if destination in QUEUES:
                self.vhost.bind_queue(destination, source, key, conditions, None)
            else:
                self.vhost.bind_exchange(destination, source, key, conditions)

    @rule(data=st.data())
    def unbind(self, data):
        bindings = [b for x in self.vhost.exchanges.values() if x.name for b in x.outgoing.values()]
        if bindings:
            gone = data.draw(st.sampled_from(bindings)).definition
            if gone.destination_type == "queue":
                self.vhost.unbind_queue(
                    gone.destination, gone.source, gone.routing_key, gone.arguments, None
                )
            else:
                self.vhost.unbind_exchange(
                    gone.destination, gone.source, gone.routing_key, gone.arguments
                )

    @invariant()
    def remembered_routes_are_fresh(self):
        if self.vhost.topology.generation != self.generation:  # as connections do
            self.held = {}
            self.generation = self.vhost.topology.generation
        for name in ("", *EXCHANGES):
            if name not in self.vhost.exchanges:
                continue
            cache = self.held.setdefault(name, self.vhost.cache(name))
            assert cache is self.vhost.cache(name)
            assert cache.cacheable == (not self.meets_headers(name))
            for key in (*KEYS, *QUEUES):
                route = cache.lookup(key.encode())
                fresh = self.vhost.route(self.vhost.exchanges[name], [key], None)
                assert [b.owner for b in route.builders] == fresh
                assert cache.routes.get(key.encode(), route) is route

    def meets_headers(self, start):
        seen, waiting = set(), [start]
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.vhost.exchanges:
                continue
            seen.add(name)
            source = self.vhost.exchanges[name]
            waiting.append(source.alternate)
            waiting += [
                b.definition.destination
                for b in source.outgoing.values()
                if b.definition.destination_type == "exchange"
            ]
        return any(self.vhost.exchanges[n].definition.type in MESSAGE_TYPES for n in seen)


TestRememberedRoutes = RememberedRoutes.TestCase
TestRememberedRoutes.settings = settings(max_examples=examples(100), stateful_step_count=40)


def test_a_walk_that_leads_nowhere_new_for_too_long_is_refused():
    vhost = make_vhost()
    declare(vhost, "q")
    for name in "abcdef":
        exchange(vhost, name, "topic")
    for source, destination in pairwise("abcdef"):
        vhost.bind_exchange(destination, source, "#", {})
    vhost.bind_queue("q", "f", "#", {}, None)
    start, message = vhost.exchanges["a"], with_headers(None)
    keys = [str(number) for number in range(KEYS_MAX)]
    assert names(vhost.route(start, keys[:300], message)) == ["q"]
    assert names(vhost.reach(start, keys[:300], message)) == ["q"]
    with pytest.raises(ChannelError, match="same places"):
        vhost.route(start, keys, message)
    assert names(vhost.reach(start, keys, message)) == []


def filtered(vhost, count, **arguments):
    """`count` bindings from exchange x to queue q, with one filter each."""
    declare(vhost, "q")
    exchange(vhost, "x", "fanout")
    for number in range(count):
        vhost.bind_queue("q", "x", str(number), dict(arguments), None)
    return vhost.exchanges["x"]


def test_filters_are_counted_as_the_time_that_they_take():
    vhost = make_vhost()
    few = VAIN_STEPS_MAX // (JUDGEMENT_STEPS_MIN + 1)
    start = filtered(vhost, few - 1, **{"x-filter-sql": "a LIKE '%b'"})
    assert names(vhost.route(start, ["k"], with_headers({"a": "b"}))) == ["q"]
    vhost.bind_queue("q", "x", "one more", {"x-filter-sql": "a LIKE '%b'"}, None)
    vhost.bind_queue("q", "x", "and another", {"x-filter-sql": "a LIKE '%b'"}, None)
    with pytest.raises(ChannelError, match="or of the filters"):
        vhost.route(start, ["k"], with_headers({"a": "b"}))
    with pytest.raises(ChannelError, match="or of the filters"):
        vhost.route(start, ["k"], with_headers({"a": "c"}))  # that none of them wants
    assert names(vhost.route(start, ["k"], with_headers({"b": "b"}))) == []  # nothing is judged


def test_long_conditions_and_long_headers_are_counted_as_more():
    condition = "a LIKE '%b' OR " * 59 + "a LIKE '%b'"
    vhost = make_vhost()
    few = VAIN_STEPS_MAX // (len(condition) // CHARACTERS_A_STEP + 1)
    start = filtered(vhost, few, **{"x-filter-sql": condition})
    assert names(vhost.route(start, ["k"], with_headers({"a": "b"}))) == ["q"]
    for headers in ({"a": "b" * 10_000}, {"a": "b", "other": "c" * 10_000}):
        with pytest.raises(ChannelError, match="or of the filters"):
            vhost.route(start, ["k"], with_headers(headers))


def test_filters_by_tags_are_counted_by_the_headers_they_look_through():
    vhost = make_vhost()
    start = filtered(vhost, 2_000, **{"x-filter-tags": "b"})
    assert names(vhost.route(start, ["k"], with_headers({"x-tags": "b"}))) == ["q"]
    with pytest.raises(ChannelError, match="or of the filters"):
        vhost.route(start, ["k"], with_headers({"x-tags": "b", "other": "c" * 10_000}))


def test_each_queue_makes_up_for_the_steps_that_lead_to_it():
    vhost = make_vhost()
    exchange(vhost, "x", "fanout")
    count = VAIN_STEPS_MAX + 10
    for number in range(count):
        declare(vhost, f"q{number}")
        vhost.bind_queue(f"q{number}", "x", "", {}, None)
    assert len(vhost.route(vhost.exchanges["x"], ["k"], None)) == count


def test_a_message_has_a_bounded_number_of_keys():
    vhost = make_vhost()
    exchange(vhost, "x", "direct")
    keys = [str(number) for number in range(KEYS_MAX + 1)]
    assert vhost.route(vhost.exchanges["x"], keys[:-1], None) == []
    with pytest.raises(ChannelError, match="at most 1000 routing keys"):
        vhost.route(vhost.exchanges["x"], keys, None)
