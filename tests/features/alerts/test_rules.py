"""Rules are read or refused with a reason; a watch fires in time, once, and tells the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.features.alerts.rules import (
    AlertCondition,
    AlertRule,
    AlertSeverity,
    InvalidRuleError,
    LastMinute,
    Watch,
)

BACKLOG = {"condition": "backlog", "above": 10}


def rule(**fields):
    return AlertRule.parse("/", "r", {**BACKLOG, **fields})


def test_a_rule_has_defaults():
    parsed = rule()
    assert (parsed.condition, parsed.threshold, parsed.from_below) == (
        AlertCondition.BACKLOG,
        10,
        False,
    )
    assert (parsed.hold_ms, parsed.severity, parsed.enabled) == (
        60_000,
        AlertSeverity.WARNING,
        True,
    )
    assert parsed.concerns("any queue")


def test_dead_letters_are_told_at_once_unless_said_otherwise():
    assert rule(condition="dead_letters").hold_ms == 0
    assert rule(condition="dead_letters", for_seconds=1.5).hold_ms == 1500


def test_patterns_are_searched_in_names():
    parsed = rule(queues="^orders[.]")
    assert [parsed.concerns(name) for name in ("orders.a", "my orders.a", "")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"condition": None}, "condition is one of"),
        ({"condition": ["backlog"]}, "condition is one of"),
        ({"above": None}, "needs either above or below"),
        ({"below": 1}, "needs either above or below"),
        ({"above": True}, "above is a number from 0"),
        ({"above": -1}, "above is a number from 0"),
        ({"above": float("inf")}, "above is a number from 0"),
        ({"above": "10"}, "above is a number from 0"),
        ({"for_seconds": 86_401}, "for_seconds is a number from 0 up to 86400"),
        ({"queues": "("}, "queues is no regular expression"),
        ({"queues": 1}, "queues is a regular expression"),
        ({"queues": "x" * 1025}, "at most 1024 characters"),
        ({"condition": "memory_bytes", "queues": "x"}, "memory_bytes is of the node"),
        ({"condition": "group_lag", "groups": "("}, "groups is no regular expression"),
        ({"condition": "group_lag", "groups": 1}, "groups is a regular expression"),
        ({"condition": "group_lag", "above": None}, "group_lag needs either above or below"),
        ({"groups": "x"}, "groups: backlog is not of consumer groups"),
        ({"condition": "no_consumers"}, "no_consumers has no threshold"),
        ({"severity": "loud"}, "severity is one of warning, critical"),
        ({"summary": 1}, "summary is text"),
        ({"summary": "x" * 1001}, "summary is text"),
        ({"webhook": "ftp://host/"}, "webhook is an address"),
        ({"webhook": "https://"}, "webhook is an address"),
        ({"webhook": "http://host:99999/"}, "webhook is an address"),
        ({"enabled": 1}, "enabled is true or false"),
        ({"nonsense": 1}, "unknown field 'nonsense'"),
    ],
)
def test_what_is_no_rule_says_why(fields, problem):
    with pytest.raises(InvalidRuleError, match=problem):
        rule(**fields)


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("169.254.169.254", "link-local"),
        ("169.254.0.1.", "link-local"),
        ("2852039166", "link-local"),
        ("0xa9fea9fe", "link-local"),
        ("0251.0376.43518", "link-local"),
        ("[fe80::1]", "link-local"),
        ("[FE80::1%25eth0]", "link-local"),
        ("[::ffff:169.254.169.254]", "link-local"),
        ("u:p@169.254.169.254", "link-local"),
        ("0.0.0.0", "no machine's address"),
        ("0", "no machine's address"),
        ("0x0.0", "no machine's address"),
        ("[::]", "no machine's address"),
        ("[::ffff:0.0.0.0]", "no machine's address"),
        ("guest:guest@localhost", "the node's own machine"),
        ("guest@LocalHost.", "the node's own machine"),
        ("@localhost", "the node's own machine"),
        ("u:p@a.localhost", "the node's own machine"),
        ("u:p@127.0.0.1", "the node's own machine"),
        ("u:p@127.255.0.9", "the node's own machine"),
        ("u:p@127.1", "the node's own machine"),
        ("u:p@2130706433", "the node's own machine"),
        ("u:p@[::1]", "the node's own machine"),
        ("u:p@[::ffff:127.0.0.1]", "the node's own machine"),
    ],
)
def test_nothing_is_posted_to_where_only_the_node_may_go(host, problem):
    for scheme, end in (("http", ""), ("HTTPS", ":8080/hook?token=hush")):
        with pytest.raises(InvalidRuleError, match=problem) as caught:
            rule(webhook=f"{scheme}://{host}{end}")
        assert "hush" not in str(caught.value)
        assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "u:p@hooks.example",
        "u:p@10.0.0.1",
        "[2001:db8::1]",
        "999.1.1.1",
        "1.2.3.4.5",
        "4294967296",
        "9" * 900,
        "169.254.169.254.example",
        "localhost.example",
        "09",
        "1..2",
    ],
)
def test_all_other_hosts_may_be_told(host):
    assert rule(webhook=f"http://{host}/").webhook == f"http://{host}/"


def test_a_rule_is_an_object():
    with pytest.raises(InvalidRuleError):
        AlertRule.parse("/", "r", [])


def test_no_consumers_is_exceeded_by_any_message():
    parsed = AlertRule.parse("/", "r", {"condition": "no_consumers"})
    assert (parsed.is_exceeded(0), parsed.is_exceeded(1)) == (False, True)


def test_a_watch_waits_fires_once_and_tells_the_end():
    watch = Watch(rule(for_seconds=10), "q")
    assert watch.observe(11, 0) is None
    assert watch.observe(12, 9_999) is None
    fired = watch.observe(13, 10_000)
    assert (fired.is_firing, fired.value, fired.since_ms, fired.subject) == (True, 13, 0, "q")
    assert watch.observe(14, 20_000) is None
    over = watch.observe(10, 30_000)
    assert (over.is_firing, over.value) == (False, 10)
    assert watch.observe(9, 40_000) is None
    assert watch.is_quiet


def test_a_dip_begins_the_waiting_anew():
    watch = Watch(rule(for_seconds=10), "q")
    watch.observe(11, 0)
    watch.observe(10, 5_000)
    assert watch.observe(11, 10_000) is None
    assert watch.observe(11, 20_000).is_firing


def test_from_below():
    watch = Watch(rule(condition="deliver_rate", above=None, below=5, for_seconds=0), "q")
    assert watch.observe(5, 0) is None
    assert watch.observe(4.9, 1).is_firing


def test_a_clock_set_back_only_delays():
    watch = Watch(rule(for_seconds=10), "q")
    watch.observe(11, 1_000_000)
    assert watch.observe(11, 0) is None
    assert watch.observe(11, 10_000).is_firing


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 5_000))), st.integers(0, 20))
def test_alerts_come_in_pairs_and_never_too_soon(steps, hold_seconds):
    watch, now, held_since, firing = Watch(rule(for_seconds=hold_seconds), "q"), 0, None, False
    for value, passed in steps:
        now += passed
        held_since = (now if held_since is None else held_since) if value > 10 else None
        alert = watch.observe(value, now)
        due = held_since is not None and now - held_since >= hold_seconds * 1000
        assert (alert is not None) == (due != firing)
        if alert is not None:
            firing = alert.is_firing
            assert firing == due
        assert watch.is_firing == firing


def test_a_count_is_compared_with_that_of_a_minute_ago():
    deaths = LastMinute(0, 5)
    assert deaths.grown(5_000, 5) == 0
    assert deaths.grown(10_000, 6) == 1
    assert deaths.grown(40_000, 8) == 3
    assert deaths.grown(69_999, 8) == 3
    assert deaths.grown(70_000, 8) == 2
    assert deaths.grown(100_000, 8) == 0
    assert deaths.grown(50_000, 9) == 1  # the clock was set back
    assert deaths.grown(50_000, 1) == 0  # it counts anew
