"""Patterns are found where Python's engine finds them, in time that no pattern can stretch."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.patterns import PATTERN_CHARACTERS_MAX, Pattern, PatternError

NAMES = [
    "",
    *("a", "b", "aaa", "ab", "ba", "a.retry", "amq.gen-x", "amq.", "amqp"),
    *("orders", "orders.dlq", "x.orders", "orders.eu", "ORDERS"),
    *("prod-test", "prod-live", "test", "my test"),
]


@pytest.mark.parametrize(
    "source",
    [
        "",
        ".*",
        "^orders",
        "orders$",
        r"^orders\.(eu|us)$",
        "(?i)^ORD",
        "[a-z]",
        r"^(?!amq\.).*",
        r"^(?!amq\.)",
        r"^(?!amq\.|orders)(?!test).+$",
        r"(?i)^(?!AMQ\.).*$",
        r"^(?=.*test).*$",
        r"^prod-(?!test).*",
        r"^(?!.*\.dlq$).*$",
        r"^.*(?<!\.dlq)$",
        r".*(?<!dlq)(?<!retry)$",
        r"(?<=test)$",
        r"^((?!test).)*$",
        r"^(?:(?!test|dlq).)+$",
        r"^prod-((?!te).)*$",
        r"^((?!amq\.).*|amq\.gen.*)$",
        r"^(orders|(?!amq|test)[a-z]+)$",
        r"^(?!amq)|^amq\.gen",
        r"^[^(?!)](?!x)",
        r"^\((?!x)|^(?!a)\w{3,}?$",
        r"^(?:(?:(?!a)))b",
    ],
)
def test_patterns_are_found_where_pythons_are(source):
    pattern = Pattern(source)
    assert [name for name in NAMES if pattern.is_in(name)] == [
        name for name in NAMES if re.search(source, name)
    ]


def test_what_pcre_has_and_python_has_not_is_understood():
    assert Pattern(r"^[[:alpha:]]+\z").is_in("abc")
    assert not Pattern(r"^\Qa.b\E(?!c)").is_in("axb")
    assert Pattern(r"^\Qa.b\E(?!c)").is_in("a.bd")


atoms = st.sampled_from(
    ["a", "b", ".", "[ab]", "\\w", "a*", "b+", "a?", "(a|b)", "(?:ab)*", "a{2}"]
)
looks = st.sampled_from(["(?!a)", "(?!ab|b$)", "(?=.*b)", "(?!.*ba)", "(?!)", "(?=a)"])
behinds = st.sampled_from(["(?<!a)", "(?<=b)", "(?<!ab)", "(?<!bb)"])


@given(
    st.lists(st.sampled_from(["a", "b", ".", "[ab]"]), max_size=2),
    st.lists(looks, max_size=2),
    st.lists(atoms, max_size=4),
    st.lists(behinds, max_size=2),
    st.lists(st.sampled_from(["a", ".", "[^b]"]), max_size=2),
    st.sampled_from(["%s", "(%s)", "(?:%s|b$)", "x|%s"]),
    st.lists(st.text("ab", max_size=7), min_size=1, max_size=20),
)
def test_look_arounds_mean_what_they_mean_to_python(before, look, body, behind, after, form, names):
    source = form % "".join(["^", *before, *look, *body, *behind, *after, "$"])
    pattern, expected = Pattern(source), re.compile(source)
    for name in names:
        assert pattern.is_in(name) == (expected.search(name) is not None), (source, name)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(", "missing \\)"),
        ("^(?!(", "missing \\)"),
        ("a**", "bad repetition operator"),
        ("a" * (PATTERN_CHARACTERS_MAX + 1), "longer than 1024 characters"),
        ("(?!a)b", "might hold in several places"),
        ("^a*(?!b)", "might hold in several places"),
        ("(?<!a)b*$", "might hold in several places"),
        ("^(a)(?!b)", "might hold in several places"),
        ("^(?!a(?!b))", "invalid perl operator"),
        ("^((?!a)x)*$", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a++b", "bad repetition operator"),
        ("(a{0,30}){30}" * 60, "pattern too large"),
        ("^((?!a)|b)" * 20, "too many alternatives"),
        ("^" + "((?!a))" * 100, "too many"),
        ("^" + "(" * 400 + "(?!a)" + ")" * 400, "too many groups"),
        ("^((?!amq\\.).|amq\\.topic)*$", "invalid perl operator"),
        ("^(?!(?!x).)*$", "invalid perl operator"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_is_no_pattern_says_why(source, reason):
    with pytest.raises(PatternError, match=reason):
        Pattern(source)


def test_half_of_a_character_is_no_mistake_of_a_pattern():
    assert not Pattern("a").is_in("\ud800")


@given(st.text("ab.()[]|^$*+?!<=\\{}1,:-iE", max_size=40))
def test_whatever_people_write_is_a_pattern_or_none(source):
    with suppress(PatternError):
        assert Pattern(source).is_in("abab") in {True, False}


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+b",
        "(a|a)*b",
        "^(?!(a+)+b)(a*)*c",
        "(.*)(.*)(.*)(.*)(.*)(.*)b",
        "(a?){300}(a){300}$",
        "^((?!(a+)+a).)*$",
    ],
)
@pytest.mark.timeout(120)  # an engine that backtracks takes for ever
def test_no_pattern_takes_long(source):
    assert not Pattern(source).is_in("a" * 255)
