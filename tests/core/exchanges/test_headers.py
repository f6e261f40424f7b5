from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.exchanges import headers
from leveret.core.exchanges.headers import HeadersRouter, comparable
from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from leveret.ports.definitions import BindingDefinition


class Bound:
    """As much of a binding as a router looks at."""

    def __init__(self, arguments):
        self.definition = BindingDefinition("/", "x", "q", "queue", "", arguments)


def matches(arguments, headers):
    router = HeadersRouter({})
    binding = Bound(arguments)
    router.add(binding)
    found = router.match("ignored", MadeMessage(b"", b"", headers or {}))
    router.remove(binding)
    assert router.match("ignored", MadeMessage(b"", b"", headers or {})) == []
    return found == [binding]


@pytest.mark.covers("B-172")
@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1}, {"a": 2}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({}, {}, True),
        ({}, None, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "any-with-x"}, {}, False),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": None}, False),
        ({"x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2, "x-a": 1}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "all-with-x"}, {}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "é"}, {"a": "é".encode()}, True),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "c"}]}, True),
        ({"a": datetime(2020, 1, 1, tzinfo=UTC)}, {"a": datetime(2020, 1, 1, tzinfo=UTC)}, True),
    ],
)
def test_arguments_are_conditions_on_headers(arguments, headers, expected):
    assert matches(arguments, headers) == expected


VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["", "a"]))
TABLES = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), VALUES)


@given(TABLES, TABLES)
def test_any_and_all_are_each_other_s_complement(conditions, headers):
    """All hold, unless one of them taken alone does not; any holds, if one taken alone does."""
    each = [matches({"x-match": "all-with-x", key: conditions[key]}, headers) for key in conditions]
    assert matches({**conditions, "x-match": "all-with-x"}, headers) == all(each)
    assert matches({**conditions, "x-match": "any-with-x"}, headers) == any(each)
    plain = {key: value for key, value in conditions.items() if not key.startswith("x-")}
    for mode in ("all", "any"):
        expected = matches({**plain, "x-match": f"{mode}-with-x"}, headers)
        assert matches({**conditions, "x-match": mode}, headers) == expected


@pytest.mark.covers("B-226")
@pytest.mark.parametrize(
    ("mode", "explanation"),
    [
        ("foo", 'value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        (1, "type signedint (value 1); expected longstr"),
        ([1, "a"], 'type array (value [{signedint,1},{longstr,<<"a">>}]); expected longstr'),
    ],
)
def test_an_unknown_way_to_match_is_refused(mode, explanation):
    with pytest.raises(ChannelError) as caught:
        HeadersRouter({}).check(Bound({"x-match": mode}))
    assert caught.value.reply_text == f"PRECONDITION_FAILED - Invalid x-match field {explanation}"


@pytest.mark.parametrize("arguments", [{}, *({"x-match": m} for m in ("all", "any-with-x"))])
def test_a_known_way_to_match_is_fine(arguments):
    HeadersRouter({}).check(Bound(arguments))


def plainly(arguments, headers):
    """Whether a message fits, by comparing everything."""
    mode = arguments.get("x-match", "all")
    facts = [
        name in headers if value is None else comparable(headers.get(name)) == comparable(value)
        for name, value in arguments.items()
        if name != "x-match" and (mode.endswith("with-x") or not name.startswith("x-"))
    ]
    return any(facts) if mode.startswith("any") else all(facts)


MANY = st.builds(
    lambda table, mode: table if mode is None else {**table, "x-match": mode},
    TABLES,
    st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]),
)


@given(st.lists(st.tuples(MANY, st.booleans()), max_size=20), st.lists(TABLES, max_size=5))
def test_many_bindings_are_each_matched_as_if_alone(tables, messages):
    router = HeadersRouter({})
    bound = [Bound(arguments) for arguments, _ in tables]
    for binding in bound:
        router.add(binding)
    for binding, (_, goes) in zip(bound, tables, strict=True):
        if goes:
            router.remove(binding)
    left = [binding for binding, (_, goes) in zip(bound, tables, strict=True) if not goes]
    for table in messages:
        found = router.match("", MadeMessage(b"", b"", table))
        expected = [one for one in left if plainly(one.definition.arguments, table)]
        assert sorted(map(id, found)) == sorted(map(id, expected))
    for binding in left:
        router.remove(binding)
    kept = [router.bindings, router._all, router._any, router._names, router._place]
    assert not any(kept)


class Counted(frozenset):
    compared = 0

    def __le__(self, other):
        Counted.compared += 1
        return super().__le__(other)


def test_a_message_is_compared_with_what_shares_an_item_with_it_only(monkeypatch):
    read = headers.condition_of
    monkeypatch.setattr(
        headers,
        "condition_of",
        lambda arguments: (made := read(arguments))._replace(items=Counted(made.items)),
    )
    router = HeadersRouter({})
    everybody = [Bound({"kind": "order", "number": number}) for number in range(2000)]
    for binding in everybody:
        router.add(binding)
    sent = MadeMessage(b"", b"", {"kind": "order", "number": 77})
    assert router.match("", sent) == [everybody[77]]
    assert Counted.compared < 5
