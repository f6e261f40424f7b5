"""Shovels are checked with RabbitMQ's texts: a transcript of what is refused, and defaults."""

import pytest

from leveret.features.shovels.parameters import (
    AckMode,
    InvalidShovelError,
    ShovelDefinition,
    UnspokenProtocolError,
    direct_vhosts,
    kept_passwords,
    problems,
    without_passwords,
)

BOTH = {"src-uri": "amqp://", "dest-uri": "amqp://"}
QUEUES = {**BOTH, "src-queue": "a", "dest-queue": "b"}


def parsed(**changes):
    return ShovelDefinition.parse("v", "s", {**QUEUES, **changes})


def test_defaults_are_those_of_rabbitmq():
    shovel = parsed()
    assert shovel.source.uris == shovel.destination.uris == ("amqp://",)
    assert shovel.source.facts == {"queue": "a"}
    assert (shovel.ack_mode, shovel.prefetch) == (AckMode.ON_CONFIRM, 1000)
    assert (shovel.delete_after, shovel.reconnect_seconds) == (None, 5)
    assert not shovel.adds_forward_headers
    assert not shovel.adds_timestamp_header


def test_keys_of_old_releases():
    shovel = parsed(
        **{
            "prefetch-count": 7,
            "delete-after": "queue-length",
            "add-forward-headers": True,
            "add-timestamp-header": True,
            "publish-properties": {"delivery_mode": 2},
        }
    )
    assert (shovel.prefetch, shovel.delete_after) == (7, "queue-length")
    assert (shovel.adds_forward_headers, shovel.adds_timestamp_header) == (True, True)
    assert shovel.properties == {"delivery_mode": 2}
    assert parsed(**{"prefetch-count": 7, "src-prefetch-count": 9}).prefetch == 9


def test_exchanges_at_both_ends():
    value = {**BOTH, "src-exchange": "e", "dest-exchange": "f", "dest-exchange-key": "k"}
    shovel = ShovelDefinition.parse("v", "s", value)
    assert shovel.source.facts == {"exchange": "e", "exchange_key": ""}
    assert shovel.destination.facts == {"exchange": "f", "exchange_key": "k"}


def test_local_ends_need_no_uri():
    value = {"src-protocol": "local", "src-queue": "a", "dest-protocol": "local"}
    assert ShovelDefinition.parse("v", "s", value).source.uris == ()


TRANSCRIPT = [
    (
        {},
        [
            "Must specify 'src-exchange' or 'src-queue'",
            'Key "dest-uri" not found in s',
            'Key "src-uri" not found in s',
        ],
    ),
    (5, ["s not a list 5"]),
    (
        {**QUEUES, "src-exchange": "e", "dest-exchange": "f"},
        [
            "Cannot specify 'src-exchange' and 'src-queue'",
            "Cannot specify 'dest-exchange' and 'dest-queue'",
        ],
    ),
    (
        {**QUEUES, "ack-mode": "no-ack", "src-delete-after": 5},
        ["Cannot specify 'no-ack' and numerical 'delete-after'"],
    ),
    (
        {**QUEUES, "nonsense": {"a": [1, None]}},
        ['Unrecognised terms [{<<"nonsense">>,#{<<"a">> => [1,null]}}] in s'],
    ),
    (
        {**QUEUES, "ack-mode": "often"},
        [
            (
                'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], '
                'actually was <<"often">>'
            )
        ],
    ),
    ({**QUEUES, "ack-mode": 1}, ["ack-mode should be binary, actually was 1"]),
    (
        {**QUEUES, "reconnect-delay": "soon"},
        ['reconnect-delay should be a number, actually was <<"soon">>'],
    ),
    (
        {**QUEUES, "src-delete-after": -1},
        [
            (
                'src-delete-after should be a number greater than or equal to 0, "never" or '
                '"queue-length", actually was -1'
            )
        ],
    ),
    (
        {**QUEUES, "src-uri": ["amqp://", "http://u:hush@h"]},
        ['"http://h" not a valid URI: {{unexpected_uri_scheme,"http"},"http://h"}'],
    ),
    ({**QUEUES, "src-uri": 1}, ["src-uri should be list, actually was 1"]),
    ({**QUEUES, "src-queue": 1}, ["src-queue should be binary, actually was 1"]),
    (
        {**QUEUES, "dest-queue": "q" * 256},
        ["dest-queue should be less than 255 bytes, actually was 256"],
    ),
    (
        {**QUEUES, "src-predeclared": "yes"},
        ['src-predeclared should be boolean, actually was <<"yes">>'],
    ),
    (
        {**QUEUES, "dest-queue-args": {"x-nonsense": 1}},
        ['Unrecognised terms [{<<"x-nonsense">>,1}] in dest-queue-args'],
    ),
    (
        {**QUEUES, "dest-publish-properties": {"headers": {}, "priority": "high"}},
        [
            (
                'Unrecognised terms [{<<"headers">>,#{}}] in dest-publish-properties\n'
                'priority should be a number, actually was <<"high">>'
            )
        ],
    ),
    (
        {"src-protocol": "amqp10", **BOTH},
        ['Key "src-address" not found in s'],
    ),
]


@pytest.mark.parametrize(("value", "told"), TRANSCRIPT)
def test_what_is_refused(value, told):
    assert problems("s", value) == told
    with pytest.raises(InvalidShovelError):
        ShovelDefinition.parse("v", "s", value)


def test_amqp_1_0_is_refused_in_plain_words():
    value = {**BOTH, "src-queue": "a", "dest-protocol": "amqp10", "dest-address": "b"}
    with pytest.raises(UnspokenProtocolError, match="dest-protocol amqp10 is not supported"):
        ShovelDefinition.parse("v", "s", value)


def test_passwords_are_hidden_and_kept():
    held = {**QUEUES, "dest-uri": ["amqp://u:hush@a", "amqp://b"]}
    shown = without_passwords(held)
    assert shown["dest-uri"] == ["amqp://u:…@a", "amqp://b"]
    assert kept_passwords({**shown, "src-queue": "c"}, held) == {**held, "src-queue": "c"}
    strange = kept_passwords(shown, None)
    assert problems("s", strange) == [
        '"amqp://a" has a hidden password, which no present URI of dest-uri explains'
    ]
    assert without_passwords([1]) == [1]


def test_virtual_hosts_that_are_entered_without_a_login():
    value = {"src-uri": ["amqp:///a", "amqp://h/b", "nonsense"], "dest-uri": "amqp://"}
    assert direct_vhosts(value) == {"a", "/"}
    assert direct_vhosts(None) == set()
