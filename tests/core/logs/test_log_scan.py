"""Scans of a log: what is read, what is passed over, and what is done about damage."""

from __future__ import annotations

import pytest

from leveret.core.logs.log_scan import LogScan
from leveret.errors import StorageError
from leveret.ports import LogFile
from leveret.ports.ranges import RangeSet
from tests.support.memory_log import MemoryTopicLog


class Log(MemoryTopicLog):
    """Log with one record in each batch."""

    def __init__(self, count):
        super().__init__()
        for number in range(count):
            self.builder.add(1, 0, b"", b"q", b"", b"%d" % number)
            self.append()
        self.reported = []

    def lose(self, lost):
        """Do as an owner that keeps nothing of it."""
        self.settle(list(lost))
        return lost

    def scan(self, lose=None, **options):
        return LogScan(self, self.reported.append, lose or self.lose, slice_bytes=1, **options)


def done(work):
    """Run a coroutine to its end; it waits for nothing but the next pass."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


def read_all(scan):
    found = []
    while batches := done(scan.read()):
        found += [batch.base_offset for batch in batches]
    assert scan.is_over
    return found


def test_settled_records_are_passed_over():
    log = Log(6)
    log.settle([(0, 2), (4, 5)])
    assert read_all(log.scan()) == [2, 3, 5]
    assert read_all(log.scan(first=3, stop=5)) == [3]


def test_settled_records_are_read_where_all_are_wanted():
    log = Log(6)
    log.settle([(0, 2), (3, 6)])
    assert read_all(log.scan(all_from=4)) == [2, 4, 5]


def test_removed_files_are_passed_over():
    log = Log(6)
    log.settle([(0, 6)])
    log.list_files = lambda: [LogFile(1, 2, 0, None, True), LogFile(4, 6, 0, None, False)]
    assert read_all(log.scan(all_from=0)) == [1, 4, 5]


@pytest.mark.parametrize("all_from", [None, 0])
def test_damage_is_quarantined_once_and_the_scan_goes_on_behind(all_from):
    log = Log(6)
    log.settle([(3, 4)])
    log.damaged = {1, 3, 5}
    assert read_all(log.scan(all_from=all_from)) == [0, 2, 4]
    assert list(log.settled) == [(1, 2), (3, 4), (5, 6)]
    (error,) = log.reported
    assert str(error).startswith("messages lost: 2 (at offset 1, 5); ")


def test_damage_that_another_reader_has_met_is_reported_once():
    log = Log(6)
    log.damaged = {2, 4}
    scan, other = log.scan(), log.scan()
    assert read_all(scan) == [0, 1, 3, 5]
    assert read_all(other) == [0, 1, 3, 5]
    (told,) = log.reported
    assert "messages lost: 2 (at offset 2, 4)" in str(told)
    assert list(log.settled) == [(2, 3), (4, 5)]


def test_records_that_their_owner_keeps_are_not_settled():
    log = Log(3)
    log.damaged = {1}
    assert read_all(log.scan(lambda lost: RangeSet())) == [0, 2]
    assert not log.settled


def test_another_error_ends_the_scan_which_can_go_on_later():
    log = Log(3)
    scan = log.scan()
    done(scan.read())
    log.fetch_error = StorageError("no key")
    with pytest.raises(StorageError, match="no key"):
        done(scan.read())
    assert not scan.is_over
    log.fetch_error = None
    assert read_all(scan) == [1, 2]


def test_the_loop_runs_between_two_reads():
    scan = Log(2).scan()
    done(scan.read())
    work = scan.read()
    work.send(None)
    with pytest.raises(StopIteration):
        work.send(None)
