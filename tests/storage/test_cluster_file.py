"""The file of a node's cluster, changed by several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from leveret.storage.cluster_file import ClusterFile
from leveret.storage.files import RealFileSystem
from tests.support.waiting import LIMIT_SECONDS


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
