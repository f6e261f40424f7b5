"""When memory is given back: once after much was freed, never while more is."""

import pytest

from leveret.node.allocator import Ebb, find_trim

LEAST, RESTING = 1000, 10
MUCH = 2 * LEAST


@pytest.mark.parametrize(
    ("freed", "answers"),
    [
        pytest.param([0, 0, 0], [0, 0, 0], id="nothing"),
        pytest.param([MUCH, MUCH, MUCH], [0, 1, 0], id="all at once"),
        pytest.param([MUCH, 2 * MUCH, 3 * MUCH, 3 * MUCH], [0, 0, 0, 1], id="for a while"),
        pytest.param([MUCH, MUCH, 2 * MUCH, 2 * MUCH], [0, 1, 0, 1], id="each time"),
        pytest.param([LEAST - 1] * 3, [0, 0, 0], id="little"),
        pytest.param([MUCH, MUCH + RESTING], [0, 1], id="with some traffic"),
    ],
)
def test_pages_are_returned_when_much_was_freed_and_no_more_is(freed, answers):
    ebb = Ebb(LEAST, RESTING)
    assert [ebb.has_come(so_far) for so_far in freed] == [bool(each) for each in answers]


def test_the_library_can_be_asked_to_return_pages():
    trim = find_trim()
    if trim is None:
        pytest.skip("only glibc can")
    assert trim() in {0, 1}  # whether there was anything to return


def test_another_library_is_not_asked(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert find_trim() is None
