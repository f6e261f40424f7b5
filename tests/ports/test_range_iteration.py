"""A range set that changes while somebody walks it ends the walk; it never reads what is gone."""

from leveret.ports.ranges import RangeSet


def separate(count: int) -> RangeSet:
    return RangeSet((2 * number, 2 * number + 1) for number in range(count))


def test_clearing_the_set_ends_the_walk():
    ranges, seen = separate(100), []
    for item in ranges:
        seen.append(item)
        ranges.clear()
    assert seen == [(0, 1)]


def test_removing_what_was_seen_never_reads_behind_the_end():
    ranges, seen = separate(100), []
    for first, stop in ranges:
        seen.append((first, stop))
        ranges.remove(first, stop)
    assert seen == [(4 * number, 4 * number + 1) for number in range(50)]
    assert len(ranges) == 50


def test_adding_moves_the_walk_along():
    ranges, seen = separate(1), []
    for first, _ in ranges:
        seen.append(first)
        if len(seen) < 1000:
            ranges.add(first + 2, first + 3)
    assert seen == list(range(0, 2000, 2))
