"""The trash, which removes each deleted log once, whoever removes it."""

from pathlib import Path

from leveret.storage.trash import Trash
from tests.storage.faulty_files import FaultyFileSystem

TOPICS = Path("/data/topics")
DIRECTORY = TOPICS / "%2F/orders~~i1/0"
KEY = b"%2F/orders~~i1/0"


def test_a_log_that_an_earlier_store_removes_is_removed_once():
    files = FaultyFileSystem()
    files.make_directory(DIRECTORY)
    removal = Trash(files, TOPICS).take(KEY, DIRECTORY)
    (left,) = Trash(files, TOPICS).take_left(Path("/data/transient"))
    left()
    removed = []
    files.remove_tree = removed.append
    removal()
    assert removed == []
    assert not files.exists(DIRECTORY.parent)


def test_a_removal_that_fails_is_logged(caplog):
    Trash(FaultyFileSystem(), TOPICS).removed(OSError(5, "an error of the device"))
    assert "cannot remove files in /data/topics/.deleted" in caplog.text
    assert "the next start tries again" in caplog.text
