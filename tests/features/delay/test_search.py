"""Searching what waits: all of it, some of it, and never for long."""

from types import SimpleNamespace

import pytest

from leveret.features.delay.reader import PendingMessage
from leveret.features.delay.search import (
    PAGE_RECORDS,
    DelayedMessageFilter,
    DelayedMessageSearch,
)

EMPTY_HEADER = b"\0\x3c\0\0\0\0\0\0\0\0\0\0\0\0"  # of class basic, without properties


class Room:
    """A hundred thousand records, of which each is due a millisecond after the one before."""

    def __init__(self, count):
        self.count = count
        self.deleted = False
        self.log = SimpleNamespace(end=count)
        self.largest_read = 0

    def scan(self, after, before_ms, count_max):
        first = 0 if after is None else after[0] + 1
        stop = min(self.count if before_ms is None else before_ms, self.count, first + count_max)
        return [(at, at) for at in range(first, stop)]

    async def read(self, offsets):
        self.largest_read = max(self.largest_read, len(offsets))
        key = b"rare" if self.count - 1 in offsets else b"k"
        return [PendingMessage(at, at, 0, b"x", key, EMPTY_HEADER, b"") for at in offsets]


def drive(search):
    """(what is found, turns of the loop that it took)."""
    found, turns = [], 0

    async def work():
        async for some in search.found():
            found.extend(message.offset for message in some)

    running = work()
    while True:
        try:
            running.send(None)
        except StopIteration:
            return found, turns
        turns += 1


def searched(store, selection, after=None, scanned_max=None):
    return DelayedMessageSearch(store, selection, after, lambda _: True, scanned_max)


def test_a_hundred_thousand_are_searched_in_short_turns():
    store = Room(100_000)
    search = searched(store, DelayedMessageFilter(routing_key="rare"))
    found, turns = drive(search)
    assert found == list(range(100_000 - PAGE_RECORDS, 100_000))
    assert turns == 100_000 // PAGE_RECORDS
    assert store.largest_read == PAGE_RECORDS
    assert search.is_over


def test_a_search_with_a_budget_says_where_another_goes_on():
    store, selection, after, requests = (
        Room(2_500),
        DelayedMessageFilter(routing_key="rare"),
        None,
        0,
    )
    while True:
        search = searched(store, selection, after, scanned_max=1_000)
        found, _ = drive(search)
        requests += 1
        if search.is_over:
            break
        assert (found, search.scanned) == ([], 1_000)
        after = search.after
    assert requests == 3
    assert found[-1] == 2_499


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"due_from_ms": 8}, [8, 9]),
        ({"due_before_ms": 2}, [0, 1]),
        ({"due_from_ms": 4, "due_before_ms": 5}, [4]),
        ({"message_id": "m"}, []),
        ({"headers": {"a": "b"}}, []),
        ({"exchange": "x"}, list(range(10))),
    ],
)
def test_what_is_stated_must_fit(stated, expected):
    selection = DelayedMessageFilter(**stated)
    found, _ = drive(searched(Room(10), selection))
    assert found == expected
    held = [PendingMessage(at, at, 0, b"x", b"k", EMPTY_HEADER, b"") for at in range(10)]
    assert [one.offset for one in held if selection.has(one)] == expected


def test_a_room_that_goes_ends_a_search():
    class Going(Room):
        async def read(self, offsets):
            self.deleted = True
            return await super().read(offsets)

    search = searched(Going(1_000), DelayedMessageFilter())
    found, _ = drive(search)
    assert len(found) == PAGE_RECORDS
    assert search.is_over
