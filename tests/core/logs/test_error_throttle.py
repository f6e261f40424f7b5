from __future__ import annotations

from types import SimpleNamespace

import pytest

from leveret.core.logs.error_throttle import ErrorThrottle
from leveret.errors import StorageError


@pytest.fixture
def queue():
    return SimpleNamespace(deleted=False)


def test_the_same_trouble_is_reported_once_until_reading_works_again(queue):
    told = []
    throttle = ErrorThrottle(queue, lambda subject, error: told.append((subject, str(error))))
    for text in ("disk gone", "disk gone", "disk slow", "disk gone"):
        throttle.report(StorageError(text))
    assert told == [(queue, "disk gone"), (queue, "disk slow"), (queue, "disk gone")]
    throttle.end()
    throttle.report(StorageError("disk gone"))
    assert len(told) == 4


def test_a_deleted_queue_has_nothing_to_complain_of(queue):
    told = []
    throttle = ErrorThrottle(queue, lambda subject, error: told.append((subject, error)))
    queue.deleted = True
    throttle.report(StorageError("no such file"))
    assert told == []
