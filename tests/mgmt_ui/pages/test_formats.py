"""Values as people read them."""

import pytest

from leveret.mgmt_ui.pages import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.NOTHING),
        (0, "0"),
        (999, "999"),
        (1234, "1\u202f234"),
        (-1234567, "-1\u202f234\u202f567"),
    ],
)
def test_count(value, text):
    assert formats.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.NOTHING),
        (0, "0/s"),
        (0.04, "0/s"),
        (0.25, "0.2/s"),
        (9.96, "10.0/s"),
        (12.6, "13/s"),
    ],
)
def test_rate(value, text):
    assert formats.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.NOTHING),
        (0, "0\u00a0B"),
        (999, "999\u00a0B"),
        (1536, "1.5\u00a0KiB"),
        (20 << 20, "20\u00a0MiB"),
        (5 << 70, "5242880\u00a0PiB"),
    ],
)
def test_size(value, text):
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, formats.NOTHING),
        (-1, "0\u00a0s"),
        (0, "0\u00a0s"),
        (0.00025, "0.25\u00a0ms"),
        (0.25, "250\u00a0ms"),
        (59, "59\u00a0s"),
        (60, "1\u00a0min"),
        (3601, "1\u00a0h"),
        (90_000, "1\u00a0d 1\u00a0h"),
    ],
)
def test_duration(value, text):
    assert formats.duration(value) == text


def test_times():
    assert formats.moment(None) == formats.NOTHING
    assert formats.moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert formats.moment(10**18) == "1000000000000000000\u00a0ms"  # as a client may claim
    assert formats.ago(1_000, 61_000) == "1\u00a0min"


def test_share():
    assert formats.share(0.256) == "26\u00a0%"


def test_paths_hold_whatever_name():
    assert formats.path("queues", "/", "a b?#<>") == "/queues/%2F/a%20b%3F%23%3C%3E"


def test_queries_leave_out_what_is_not_said():
    assert formats.with_query("/q", name="", page=None, x=False) == "/q"
    assert formats.with_query("/q", name="a&b", page=2) == "/q?name=a%26b&page=2"


def test_values_of_arguments():
    assert formats.compact_json("text") == "text"
    assert formats.compact_json({"a": [1, None]}) == '{"a": [1, null]}'
