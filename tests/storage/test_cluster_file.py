"""The file of a node's cluster: damaged in any way, and changed by several threads."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.errors import NewerFormatError, StorageError
from leveret.storage.cluster_file import NAME, ClusterFile, ClusterState
from leveret.storage.files import RealFileSystem
from tests.support.waiting import LIMIT_SECONDS

SOUND = {
    "format": 1,
    "directory": "01",
    "cluster": "23",
    "node": 2,
    "incarnation": 7,
    "epochs": {"0": 3},
    "founding": None,
}
VALUES = [None, False, True, 0, -1, 1.5, float("nan"), "", "1", [], [1], {}, {"1": "1"}]
NUMBERS, TEXTS = [0], ["", "1"]
ALLOWED = {
    "format": [1],
    "directory": TEXTS,
    "cluster": [None, *TEXTS],
    "node": [None, *NUMBERS],
    "incarnation": NUMBERS,
    "epochs": [{}],
    "founding": [None, *TEXTS],
}


def is_any_of(value, allowed):
    return any(type(value) is type(each) and value == each for each in allowed)


def damaged():
    """All contents that differ from a sound one in one place."""
    yield from VALUES
    for name, allowed in ALLOWED.items():
        wrong = [value for value in VALUES if not is_any_of(value, [*allowed, SOUND[name]])]
        if name == "epochs":
            wrong += [{"0": value} for value in VALUES if not is_any_of(value, NUMBERS)]
        for value in wrong:
            yield {**SOUND, name: value}
        if name != "founding":
            yield {each: value for each, value in SOUND.items() if each != name}


class TellingLock:
    """A lock that tells that it is waited for."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.asked.release()
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class SlowFiles(RealFileSystem):
    """Files whose directory is flushed once `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def sync_directory(self, path) -> None:
        assert self.goes_on.wait(LIMIT_SECONDS)
        super().sync_directory(path)


def test_an_epoch_is_not_set_back_by_an_older_one_that_waited(tmp_path):
    files = SlowFiles()
    file = ClusterFile(files, tmp_path)
    lock = file._lock = TellingLock()
    with ThreadPoolExecutor(3) as threads:
        kept = []
        for shard, epoch in ((0, 6), (0, 5), (1, 2)):
            kept.append(threads.submit(file.keep_epoch, shard, epoch))
            assert lock.asked.acquire(timeout=LIMIT_SECONDS)
        files.goes_on.set()
        for each in kept:
            each.result(LIMIT_SECONDS)
    again = ClusterFile(RealFileSystem(), tmp_path)
    assert (again.epoch(0), again.epoch(1)) == (6, 2)


@pytest.mark.parametrize("content", list(damaged()), ids=json.dumps)
def test_a_file_of_another_shape_is_damaged(tmp_path, content):
    (tmp_path / NAME).write_text(json.dumps(content))
    with pytest.raises(StorageError, match=r"cluster\.json is damaged \(.+\): .* --replace"):
        ClusterFile(RealFileSystem(), tmp_path)


@pytest.mark.parametrize("name", ALLOWED)
def test_a_file_may_have_what_a_node_has_written(tmp_path, name):
    for value in ALLOWED[name]:
        content = {**SOUND, name: value}
        (tmp_path / NAME).write_text(json.dumps(content))
        del content["format"]
        assert ClusterFile(RealFileSystem(), tmp_path).state == ClusterState(**content)


def test_a_file_of_a_newer_release_is_none_that_is_damaged(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"format": 2}))
    with pytest.raises(NewerFormatError):
        ClusterFile(RealFileSystem(), tmp_path)
