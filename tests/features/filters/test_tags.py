"""Tag expressions against Python's own `and`, `or` and `not`, and the errors with their place."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.filters.expressions import (
    DEPTH_MAX,
    EXPRESSION_CHARACTERS_MAX,
    ExpressionError,
)
from leveret.features.filters.tags import EXPRESSION_TAGS_MAX, TagOperation, parse_tags

TAGS = ["a", "b-c", "ä", "it's", "x y", "", "a.b:c/d"]


@st.composite
def expressions(draw, depth=3):
    """(text, oracle): the oracle says whether a set of tags matches."""
    kind = draw(st.sampled_from(["tag", "any", "not", "and", "or"] if depth else ["tag", "any"]))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    if kind == "tag":
        tag = draw(st.sampled_from(TAGS))
        plain = re.fullmatch(r"[\w.:/-]+", tag) and draw(st.booleans())
        return tag if plain else "'" + tag.replace("'", "''") + "'", lambda tags: tag in tags
    if kind == "any":
        return "*", bool
    text, inner = draw(expressions(depth=depth - 1))
    if kind == "not":
        return f"!{space}({text})", lambda tags: not inner(tags)
    second_text, second = draw(expressions(depth=depth - 1))
    if kind == "and":
        return (
            f"({text}){space}&&{space}({second_text})",
            lambda tags: inner(tags) and second(tags),
        )
    return f"({text}{space}||{space}{second_text})", lambda tags: inner(tags) or second(tags)


def evaluate(expression, tags):
    stack = []
    for step in expression.program:
        if step == TagOperation.ANY:
            stack.append(bool(tags))
        elif step == TagOperation.NOT:
            stack.append(not stack.pop())
        elif step in {TagOperation.AND, TagOperation.OR}:
            second, first = stack.pop(), stack.pop()
            stack.append(first and second if step == TagOperation.AND else first or second)
        else:
            stack.append(expression.tags[step].decode() in tags)
    (answer,) = stack
    return answer


@pytest.mark.covers("C-209")
@given(expressions(), st.sets(st.sampled_from(TAGS)))
def test_an_expression_means_what_it_says(made, tags):
    text, oracle = made
    assert evaluate(parse_tags(text), tags) == oracle(tags)


@pytest.mark.parametrize(
    ("text", "tags", "matches"),
    [
        ("a || b && c", {"a"}, True),  # && binds more
        ("(a || b) && c", {"a"}, False),
        ("!a && b", {"b"}, True),  # ! binds most
        ("!!a", {"a"}, True),
    ],
)
def test_signs_bind_as_everywhere(text, tags, matches):
    assert evaluate(parse_tags(text), tags) == matches


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a tag, found the end at character 1, at the beginning"),
        ("vip && ", "expected a tag, found the end at character 8, after 'vip && '"),
        ("a | b", "unexpected '|' at character 3, after 'a '"),
        ("a b", "expected the end, found 'b' at character 3, after 'a '"),
        ("(a", "expected ), found the end at character 3, after '(a'"),
        ("a)", "expected the end, found ')' at character 2, after 'a'"),
        ("'a", "unexpected ''' at character 1, at the beginning"),
        ('"a"', "unexpected '\"' at character 1, at the beginning"),
        ("a && " + "b" * 129, "a tag is at most 128 bytes long at character 6, after 'a && '"),
        ("a || " * 10 + "?? || &&", "after '…|| a || a || a || ?? || '"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text, problem):
    with pytest.raises(ExpressionError, match=re.escape(problem)):
        parse_tags(text)


def test_everything_has_a_limit():
    parse_tags("(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1))
    parse_tags("||".join(f"t{i}" for i in range(EXPRESSION_TAGS_MAX)))
    for text, problem in [
        ("a" * (EXPRESSION_CHARACTERS_MAX + 1), "longer than 4096 characters"),
        ("(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX, "nested deeper than 32"),
        ("!" * 100 + "a", "nested deeper than 32"),
        ("||".join(f"t{i}" for i in range(EXPRESSION_TAGS_MAX + 1)), "more than 64 tags"),
        ("||".join(["a"] * 300), "more than 512 steps"),
    ]:
        with pytest.raises(ExpressionError, match=problem):
            parse_tags(text)


@given(st.text(alphabet="ab |&!()*'\" ", max_size=20))
def test_any_text_is_read_or_refused(text):
    with suppress(ExpressionError):
        parse_tags(text)
