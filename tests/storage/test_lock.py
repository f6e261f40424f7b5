import errno
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from leveret.errors import NodeRunningError, StorageError
from leveret.storage.lock import DirectoryLock


def test_second_holder_is_told_who_has_it(tmp_path):
    with (
        DirectoryLock(tmp_path),
        pytest.raises(NodeRunningError, match=f"in use by process {os.getpid()}$"),
    ):
        DirectoryLock(tmp_path)


def test_released_lock_can_be_taken_again(tmp_path):
    lock = DirectoryLock(tmp_path)
    lock.release()
    lock.release()
    with DirectoryLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.usefixtures("processes")
def test_lock_dies_with_its_process(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from leveret.storage.lock import DirectoryLock;"
        "DirectoryLock(Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == 9
    with DirectoryLock(tmp_path):
        pass


def test_missing_directory_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot lock"):
        DirectoryLock(tmp_path / "none")


def test_who_looks_writes_nothing_and_keeps_nodes_away(tmp_path):
    with DirectoryLock(tmp_path, looking=True):
        assert not any(tmp_path.iterdir())
    (tmp_path / "lock").write_text("1\n")
    with DirectoryLock(tmp_path, looking=True), DirectoryLock(tmp_path, looking=True):
        with pytest.raises(NodeRunningError):
            DirectoryLock(tmp_path)
        assert (tmp_path / "lock").read_text() == "1\n"
    with DirectoryLock(tmp_path), pytest.raises(NodeRunningError):
        DirectoryLock(tmp_path, looking=True)


def test_a_full_disk_has_no_room_for_the_number(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with DirectoryLock(tmp_path), pytest.raises(NodeRunningError, match="unknown"):
        DirectoryLock(tmp_path)
