from datetime import UTC, datetime
from decimal import Decimal

import pytest

from leveret.core.erlang_terms import atom, field_type, frozen, plain, term
from leveret.ports.fields import WireInteger

MOMENT = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.covers("B-207")
@pytest.mark.parametrize(
    ("value", "type_", "printed"),
    [
        ("x", "longstr", '<<"x">>'),
        ('a"\n', "longstr", '<<"a\\"\\n">>'),
        ("é", "longstr", '<<"é"/utf8>>'),
        ("\x00a", "longstr", "<<0,97>>"),
        (b"\xff\x01", "longstr", "<<255,1>>"),
        (bytearray(b"x"), "binary", '<<"x">>'),
        (True, "bool", "true"),
        (False, "bool", "false"),
        (1, "signedint", "1"),
        (2**31 - 1, "signedint", "2147483647"),
        (2**31, "long", "2147483648"),
        (-(2**31) - 1, "long", "-2147483649"),
        (WireInteger(5, "short"), "short", "5"),
        (1.5, "double", "1.5"),
        (Decimal("1.25"), "decimal", "{2,125}"),
        (MOMENT, "timestamp", "1577836800"),
        ([1, "a"], "array", '[{signedint,1},{longstr,<<"a">>}]'),
        ({"b": None}, "table", '[{<<"b">>,void,undefined}]'),
        (None, "void", "undefined"),
    ],
)
def test_values_are_named_and_printed_as_clients_know_them(value, type_, printed):
    assert field_type(value) == type_
    assert term(value) == printed


def test_plain_values_are_printed_bare_when_they_are_text():
    assert plain("é") == "é"
    assert plain(b"\xffx") == "\N{REPLACEMENT CHARACTER}x"
    assert plain(["a"]) == '[{longstr,<<"a">>}]'


def test_atoms_are_quoted_where_they_need_it():
    assert [atom(n) for n in ("direct", "x-random", "X")] == ["direct", "'x-random'", "'X'"]


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0, False), (1, "1"), ([1], [True]), ({"a": 1}, {"a": 1.0}), (None, "")],
)
def test_values_of_different_kinds_are_not_the_same(one, other):
    assert frozen(one) != frozen(other)


@pytest.mark.covers("B-207")
def test_integers_of_all_widths_are_the_same():
    assert frozen(WireInteger(5, "long")) == frozen(WireInteger(5, "byte")) == frozen(5)


def test_text_and_its_octets_are_the_same_and_everything_can_be_a_key():
    assert frozen("é") == frozen("é".encode())
    assert frozen({"a": [1, {"b": b"x"}]}) == frozen({"a": [1, {"b": "x"}]})
    assert {frozen(v) for v in (None, 1, 1.5, "x", [1], {"a": [1]}, MOMENT, Decimal(1))}
