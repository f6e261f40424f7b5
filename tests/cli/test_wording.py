"""A node's refusals, as people read them."""

import pytest

from leveret.cli.wording import in_words
from leveret.core.erlang_terms import json_term
from leveret.core.settings import arguments
from leveret.core.settings.policies import InvalidPolicyError, check_policy
from leveret.ports.definitions import PolicyDefinition


def refusal_of(definition, *, operator=False, pattern="^x"):
    policy = PolicyDefinition("/", "p", pattern, definition, operator=operator)
    with pytest.raises(InvalidPolicyError) as refused:
        check_policy(policy)
    return in_words(f"Validation failed\n\n{refused.value}\n")


def test_unknown_policy_settings_are_named_with_what_was_meant():
    assert refusal_of({"max-lenght": 10}) == (
        "'max-lenght' is not a policy setting; did you mean 'max-length'?"
    )
    assert refusal_of({"zzzz": {"a": 1}, "yyyy": 1}) == (
        "'yyyy' is not a policy setting; 'zzzz' is not a policy setting"
    )
    assert refusal_of({"alternate-exchange": "x"}, operator=True) == (
        "'alternate-exchange' is not a setting for policies of the operator"
    )


def test_values_are_quoted_as_people_quote():
    assert refusal_of({"max-length": "ten"}) == "'ten' is not a valid maximum length"
    assert refusal_of({"max-length": ""}) == "'' is not a valid maximum length"
    assert refusal_of({"max-length": 'a"b\\'}) == "'a\"b\\' is not a valid maximum length"
    assert refusal_of({"max-length": "größer"}) == "'größer' is not a valid maximum length"


def test_a_bad_pattern_is_told_with_its_place():
    assert refusal_of({"max-length": 1}, pattern="[a").startswith(
        "the pattern is not a regular expression: "
    )
    assert refusal_of({"max-length": 1}, pattern="[a").endswith(")")


@pytest.mark.parametrize(
    ("check", "value", "told"),
    [
        (arguments.positive, 0, "it must be above 0"),
        (arguments.positive, -5, "-5 is below 0"),
        (arguments.positive, 1 << 64, f"{1 << 64} is too large"),
        (arguments.positive, "x", "expected a whole number, got text"),
        (arguments.boolean, "x", "it cannot be text"),
        (arguments.text, {"a": 1}, "it cannot be a table"),
        (arguments.max_age, "7X", "it is not a span such as 7D or 12h"),
        (arguments.dead_letter_routing_key, "k", "it needs x-dead-letter-exchange"),
        (arguments.dedup_window, -1, "expected true, or milliseconds from 1 to 86400000"),
        (arguments.queue_version, 7, "unsupported queue version '7'"),
    ],
)
def test_refused_arguments_of_queues(check, value, told):
    problem = check(value, {})
    start = "invalid arg 'x-some' for queue 'q' in vhost '/': "
    assert in_words(start + problem) == start + told


def test_an_argument_of_another_kind_of_queue():
    assert in_words(
        "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"
    ).endswith("in vhost '/': a quorum queue does not take it")


def test_unknown_limits():
    text = (
        f'Validation failed\n\nUnrecognised terms [{{<<"max-x">>,{json_term(1)}}}] in user-limits'
    )
    assert in_words(text) == "'max-x' is not a limit in user-limits"


@pytest.mark.parametrize("text", ["no queue 'q' in vhost '/'", "a << b >> c", "{1,2}", ""])
def test_sentences_stay(text):
    assert in_words(text) == text
