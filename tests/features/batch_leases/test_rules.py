"""Requests about leases: what they may say, and what is refused."""

import pytest

from leveret.features.batch_leases.rules import (
    IDLE_MS_DEFAULT,
    MESSAGES_DEFAULT,
    RANGES_MAX,
    LeaseRefusedError,
    LeaseWish,
    check_holder,
    parse_idle,
    parse_lease_number,
    parse_ranges,
    parse_wish,
    ranges_row,
)
from leveret.ports.ranges import RangeSet


def refusal(work, *arguments):
    with pytest.raises(LeaseRefusedError) as caught:
        work(*arguments)
    assert caught.value.code == "invalid"
    return str(caught.value)


def test_a_wish_has_defaults_and_bounds():
    wish = parse_wish({})
    assert wish == LeaseWish()
    assert (wish.messages_max, wish.idle_ms) == (MESSAGES_DEFAULT, IDLE_MS_DEFAULT)
    asked = {"messages": 5, "bytes": 6, "wait_ms": 7, "idle_ms": 8000}
    assert parse_wish(asked) == LeaseWish(5, 6, 7, 8000)
    for name, value in [
        ("messages", 0),
        ("messages", "5"),
        ("messages", True),
        ("bytes", 1.5),
        ("wait_ms", -1),
        ("wait_ms", 20_001),
        ("idle_ms", 999),
        ("idle_ms", None),
    ]:
        assert refusal(parse_wish, {name: value}).startswith(f"{name} is a whole number from")
    assert parse_idle({"idle_ms": 1000}) == 1000


def test_names_and_numbers_have_bounds():
    check_holder("x" * 255)
    refusal(check_holder, "")
    refusal(check_holder, "ä" * 128)
    assert parse_lease_number("9223372036854775807") == (1 << 63) - 1
    for text in ("", "-1", "9223372036854775808", "1.0", "٣"):
        refusal(parse_lease_number, text)


def test_ranges_are_read_as_they_are_written():
    parts = {2: RangeSet([(5, 9)]), 0: RangeSet([(0, 1), (4, 6)]), 1: RangeSet()}
    row = ranges_row(parts)
    assert row == {"0": [[0, 1], [4, 6]], "2": [[5, 9]]}
    assert list(row) == ["0", "2"]
    assert {at: list(each) for at, each in parse_ranges(row).items()} == {
        0: [(0, 1), (4, 6)],
        2: [(5, 9)],
    }
    assert parse_ranges({}) == {}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"x": [[0, 1]]},
        {"-1": [[0, 1]]},
        {"99999999": [[0, 1]]},
        {"0": [0, 1]},
        {"0": {"0": 1}},
        {"0": [[1, 1]]},
        {"0": [[2, 1]]},
        {"0": [[-1, 1]]},
        {"0": [[0, 1 << 63]]},
        {"0": [[0, True]]},
        {"0": [[0, 1, 2]]},
        {"0": [["0", "1"]]},
    ],
)
def test_what_is_no_range_is_refused(told):
    assert "ranges are like" in refusal(parse_ranges, told)


def test_ranges_are_not_too_many():
    most = [[2 * n, 2 * n + 1] for n in range(RANGES_MAX)]
    assert len(parse_ranges({"0": most})[0]) == RANGES_MAX
    assert str(RANGES_MAX) in refusal(parse_ranges, {"0": most, "1": [[0, 1]]})
