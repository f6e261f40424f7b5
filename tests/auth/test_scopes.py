"""Scopes in RabbitMQ's notation: who may do what where."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.auth.scopes import (
    SCOPES_MAX,
    ScopePattern,
    TooManyScopesError,
    collect_scopes,
    parse_scopes,
)


def scopes(*texts, prefix="broker."):
    return parse_scopes([prefix + text for text in texts], prefix)


@pytest.mark.covers("B-408")
@pytest.mark.parametrize(
    ("scope", "question", "allowed"),
    [
        ("read:*/*", ("/", "q", "read"), True),
        ("read:*/*", ("/", "q", "write"), False),
        ("write:%2F/orders*", ("/", "orders.eu", "write"), True),
        ("write:%2F/orders*", ("/", "returns", "write"), False),
        ("write:%2f/orders*", ("prod", "orders", "write"), False),
        ("configure:prod-*/*-queue", ("prod-eu", "a-queue", "configure"), True),
        ("configure:prod-*/*-queue", ("prod-eu", "a-queue-2", "configure"), False),
        ("read:v/%2A", ("v", "*", "read"), True),
        ("read:v/%2A", ("v", "x", "read"), False),
        ("read:v/a+b", ("v", "a b", "read"), True),
        ("read:v/q/key", ("v", "q", "read"), True),
        ("read:v", ("v", "q", "read"), False),
        ("read:v/q/k/x", ("v", "q", "read"), False),
        ("read:v/%zz", ("v", "%zz", "read"), False),
        ("delete:*/*", ("v", "q", "delete"), False),
        ("", ("v", "q", "read"), False),
    ],
)
def test_a_scope_is_a_permission_on_patterns(scope, question, allowed):
    assert scopes(scope).allow(*question) is allowed


def test_a_vhost_is_entered_by_any_permission_in_it():
    found = scopes("configure:prod/x", "tag:administrator")
    assert found.enters("prod")
    assert not found.enters("test")
    assert found.tags == ("administrator",)


def test_routing_keys():
    found = scopes("write:v/x/a.*", "write:v/y")
    assert found.restrict_keys
    assert found.allow_key("v", "x", "a.b", "write")
    assert not found.allow_key("v", "x", "b.a", "write")
    assert not found.allow_key("v", "x", "a.b", "read")
    assert found.allow_key("v", "y", "anything", "write")
    assert not scopes("write:v/y", "write:v/x/*").restrict_keys


def test_scopes_of_other_servers_do_not_count():
    found = parse_scopes(["other.read:*/*", "read:*/*", "broker.tag:monitoring"], "broker.")
    assert found.grants == ()
    assert found.tags == ("monitoring",)
    assert parse_scopes(["read:*/*"], "").allow("v", "q", "read")


def test_too_many_scopes_are_refused():
    with pytest.raises(TooManyScopesError):
        scopes(*(f"read:v/q{number}" for number in range(SCOPES_MAX + 1)))


# A pattern's letters and stars, and the same as a regular expression.
pieces = st.lists(st.one_of(st.just("*"), st.text("ab", max_size=3)), max_size=6)


@given(pieces, st.text("ab", max_size=12))
def test_patterns_match_as_regular_expressions_do(parts, subject):
    expression = "".join(".*" if part == "*" else re.escape(part) for part in parts)
    expected = re.fullmatch(expression, subject, re.S) is not None
    assert ScopePattern("".join(parts)).matches(subject) is expected


@given(st.text(), st.text())
def test_any_text_is_a_pattern_or_a_broken_escape(text, subject):
    with contextlib.suppress(ValueError):
        ScopePattern(text.encode("utf-8", "replace").decode()).matches(
            subject.encode("utf-8", "replace").decode()
        )


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ({}, []),
        ({"scope": "a b"}, ["a", "b"]),
        ({"scope": ["a", 5, "b"]}, ["a", "b"]),
        ({"scope": 5}, []),
        ({"extra": {"roles": "a"}}, ["a"]),
        ({"scope": "x", "extra": {"roles": ["a", "b"]}}, ["x", "a", "b"]),
        ({"extra": {"roles": {"broker": ["a"], "other": ["b"]}}}, ["broker.a"]),
        ({"extra": {"roles": {"broker": "a b"}}}, ["broker.a", "broker.b"]),
        ({"extra": [{"roles": "a"}, {"roles": "b"}, "c"]}, ["a", "b"]),
        ({"extra": "roles"}, []),
        ({"scope": "boss"}, ["boss", "broker.tag:administrator", "broker.read:*/*"]),
    ],
)
def test_scopes_are_collected_from_all_their_places(claims, found):
    aliases = {"boss": "broker.tag:administrator broker.read:*/*"}
    assert collect_scopes(claims, "broker", "extra.roles", aliases) == found
