"""SQL conditions against a naive evaluation of the tree that they were written from.

The oracle computes with the tree itself; the condition is its text, read again.
"""

import re
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.filters.expressions import ExpressionError
from leveret.features.filters.sql import parse_sql

NAMES = ["a", "b", "c.d", "x-y", "not"]
VALUES = [0, 1, -7, 2.5, "", "eu", "it's", True, False, None, [1], {}, Decimal("2.5"), b"eu"]
UNKNOWN = None


def known(value):
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, (str, int, float)) else UNKNOWN


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def kind(value):
    return "number" if is_number(value) else type(value).__name__


def compare(sign, one, other):
    if one is UNKNOWN or other is UNKNOWN or kind(one) != kind(other):
        return UNKNOWN
    if kind(one) == "bool" and sign not in {"=", "<>"}:
        return UNKNOWN
    order = (one > other) - (one < other)
    return {"=": order == 0, "<>": order != 0, "<": order < 0, ">=": order >= 0}[sign]


def arithmetic(sign, one, other):
    if not (is_number(one) and is_number(other)):
        return UNKNOWN
    if sign in "+-*":
        return {"+": one + other, "-": one - other, "*": one * other}[sign]
    if other == 0:
        return UNKNOWN
    quotient = one / other
    whole = isinstance(one, int) and isinstance(other, int)
    if sign == "/":
        return int(quotient) if whole else quotient
    rest = abs(one) % abs(other)
    return rest if one >= 0 else -rest


def truth(value):
    return value if isinstance(value, bool) else UNKNOWN


def both(one, other):
    one, other = truth(one), truth(other)
    if one is False or other is False:
        return False
    return UNKNOWN if one is UNKNOWN or other is UNKNOWN else True


def negation(value):
    return UNKNOWN if truth(value) is UNKNOWN else not value


def either(one, other):
    return negation(both(negation(one), negation(other)))


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


@st.composite
def sums(draw, depth=2):
    """(text, oracle) of a value."""
    choice = draw(st.sampled_from(["name", "constant", "sum"] if depth else ["name", "constant"]))
    if choice == "name":
        name = draw(st.sampled_from(NAMES))
        bare = re.fullmatch(r"[a-z.]+", name) and name != "not" and draw(st.booleans())
        return name if bare else f'"{name}"', lambda headers: known(headers.get(name))
    if choice == "constant":
        value = draw(st.sampled_from([0, 2, 3.5, "eu", "it's", True]))
        return quoted(value) if isinstance(value, str) else str(value), lambda _: value
    left, first = draw(sums(depth=depth - 1))
    right, second = draw(sums(depth=depth - 1))
    sign = draw(st.sampled_from(["+", "-", "*", "/", "%"]))
    return f"({left} {sign} {right})", lambda h: arithmetic(sign, first(h), second(h))


@st.composite
def conditions(draw, depth=3):
    joins = ["not", "and", "or"] * 2 if depth else []
    choice = draw(st.sampled_from(["compare", "null", "between", "in", "like", *joins]))
    if choice == "not":
        text, inner = draw(conditions(depth=depth - 1))
        return f"not ({text})", lambda h: negation(inner(h))
    if choice in {"and", "or"}:
        left, first = draw(conditions(depth=depth - 1))
        right, second = draw(conditions(depth=depth - 1))
        joined = both if choice == "and" else either
        return f"({left} {choice.upper()} {right})", lambda h: joined(first(h), second(h))
    text, value = draw(sums())
    if choice == "null":
        return f"{text} IS NULL", lambda h: value(h) is UNKNOWN
    if choice == "compare":
        right, second = draw(sums())
        sign = draw(st.sampled_from(["=", "<>", "<", ">="]))
        return f"{text} {sign} {right}", lambda h: compare(sign, value(h), second(h))
    negated = draw(st.booleans())
    word = "NOT " if negated else ""
    if choice == "between":
        low, first = draw(sums())
        high, last = draw(sums())

        def found(h):
            return both(
                compare(">=", value(h), first(h)), negation(compare("<", last(h), value(h)))
            )

        text = f"{text} {word}BETWEEN {low} AND {high}"
    elif choice == "in":

        def found(h):
            return either(compare("=", value(h), "eu"), compare("=", value(h), -7))

        text = f"{text} {word}IN ('eu', -7)"
    else:

        def found(h):
            return value(h).startswith("e") if isinstance(value(h), str) else UNKNOWN

        text = f"{text} {word}LIKE 'e%'"
    return text, (lambda h: negation(found(h))) if negated else found


HEADERS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


@pytest.mark.covers("C-209")
@given(conditions(), HEADERS)
def test_a_condition_means_what_it_says(made, headers):
    text, oracle = made
    condition = parse_sql(text)
    wanted = oracle(headers)
    assert condition.holds(headers, {}) is (wanted is True)
    if wanted is True:
        assert all(headers.get(name) is not None for name in condition.needed)
        assert all(headers[name] == value for name, value in condition.texts)


@pytest.mark.parametrize(
    ("text", "needed", "texts"),
    [
        ("a = 'x' AND b > 1", {"a", "b"}, {("a", "x")}),
        ("a = 'x' OR a = 'y'", {"a"}, set()),
        ("a = 'x' OR b = 1", set(), set()),
        ("NOT (a = 'x')", {"a"}, set()),
        ("NOT (a = 1 OR b = 1)", {"a", "b"}, set()),
        ("a IS NULL", set(), set()),
        ("a IS NOT NULL", {"a"}, set()),
        ("NOT a BETWEEN b AND c", {"a"}, set()),
        ("a IN ('x', 'y') AND p.priority > 3", {"a"}, set()),
        ("'x' = a", {"a"}, {("a", "x")}),
        ("flag", {"flag"}, set()),
    ],
)
def test_what_a_message_needs_is_known_before(text, needed, texts):
    condition = parse_sql(text)
    assert (condition.needed, condition.texts) == (needed, texts)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("priority = 1", False),
        ("properties.priority = 5 and p.type = 'order'", True),
        ("\"p.type\" = 'header'", True),
        ("p.message_id IS NULL", True),
        ("p.timestamp > 1700000000", True),
        ("7 / 2 = 3 and -7 / 2 = -3 and -7 % 2 = -1 and 7.0 / 2 = 3.5", True),
        ("1 / 0 = 1 or 1 / 0 <> 1", False),
        ("1e300 * 1e300 > 1", True),
        ("2 + 3 * 4 = 14 and (2 + 3) * 4 = 20 and 2 - - 3 = 5", True),
        ("TRUE and not false", True),
        ("Straße LIKE 'm_in%'", True),
        ("discount LIKE '10!%' ESCAPE '!'", True),
        ("discount NOT LIKE '10!_' ESCAPE '!'", True),
        ("flag", True),
        ("flag > false", False),
        ("'a' < 'b'", True),
        ("discount = 10", False),
        ("not (discount = 10)", False),  # unknown: they cannot be compared
    ],
)
def test_examples(text, matches):
    headers = {"p.type": "header", "Straße": "main street", "discount": "10%", "flag": True}
    properties = {"priority": 5, "type": "order", "timestamp": 1_800_000_000}
    assert parse_sql(text).holds(headers, properties) is matches


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a value, found the end at character 1, at the beginning"),
        ("a =", "expected a value, found the end at character 4, after 'a ='"),
        ("a = b = c", "expected the end, found '=' at character 7, after 'a = b '"),
        ("p.colour = 1", "unknown property 'colour' at character 1"),
        ("a in (b)", "expected a constant, found 'b' at character 7, after 'a in ('"),
        ("a in ()", "expected a constant, found ')'"),
        ("a like b", "expected a pattern in single quotes, found 'b'"),
        ("a like 'b' escape 'xy'", "ESCAPE takes one character at character 19"),
        ("a like 'b!' escape '!'", "what is escaped must be"),
        ("a not 3", "expected BETWEEN, IN or LIKE, found '3' at character 7"),
        ("a is 3", "expected NULL, found '3'"),
        ("a ; b", "unexpected ';' at character 3, after 'a '"),
        ("a = 'b", "unexpected ''' at character 5"),
        ("a = " + "9" * 41, "a number of more than 40 digits"),
        ("a = 1" + " or a = 1" * 300, "more than 256 parts"),
        ("(" * 40 + "a" + ")" * 40, "nested deeper than 32"),
        ("not " * 40 + "a", "nested deeper than 32"),
        ("- " * 40 + "1 = 1", "nested deeper than 32"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text, problem):
    with pytest.raises(ExpressionError, match=re.escape(problem)):
        parse_sql(text)


@given(st.text(alphabet="ab'\"1.e-+*/%()=<> ANDORNTISULLIKE", max_size=30))
def test_any_text_is_read_or_refused(text):
    with suppress(ExpressionError):
        assert parse_sql(text).holds({"a": 1}, {}) in {True, False, None}
