"""When memory is given back: once after much was freed, never while more is."""

import pytest

from leveret.node.allocator import FREED_BYTES_MIN, RESTING_BYTES_MAX, Ebb, find_trim

MUCH = 2 * FREED_BYTES_MIN


@pytest.mark.parametrize(
    ("freed", "answers"),
    [
        pytest.param([0, 0, 0], [0, 0, 0], id="nothing"),
        pytest.param([MUCH, MUCH, MUCH], [0, 1, 0], id="all at once"),
        pytest.param([MUCH, 2 * MUCH, 3 * MUCH, 3 * MUCH], [0, 0, 0, 1], id="for a while"),
        pytest.param([MUCH, MUCH, 2 * MUCH, 2 * MUCH], [0, 1, 0, 1], id="each time"),
        pytest.param([FREED_BYTES_MIN - 1] * 3, [0, 0, 0], id="little"),
        pytest.param([MUCH, MUCH + RESTING_BYTES_MAX], [0, 1], id="with some traffic"),
    ],
)
def test_pages_are_returned_when_much_was_freed_and_no_more_is(freed, answers):
    ebb = Ebb()
    assert [ebb.has_come(freed_bytes) for freed_bytes in freed] == [bool(each) for each in answers]


def test_the_library_can_be_asked_to_return_pages():
    trim = find_trim()
    if trim is None:
        pytest.skip("only glibc can")
    assert trim() in {0, 1}  # whether there was anything to return


def test_another_library_is_not_asked(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert find_trim() is None
