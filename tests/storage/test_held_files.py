"""Files that are removed while they are held stay until they are released."""

from __future__ import annotations

import pytest

from leveret.storage.held_files import HeldFiles


@pytest.fixture
def files():
    return HeldFiles()


def test_removed_files_stay_while_they_are_held(files, tmp_path):
    file, tree = tmp_path / "file", tmp_path / "tree"
    file.write_text("kept")
    (tree / "deep").mkdir(parents=True)
    files.hold()
    files.unlink(file)
    files.remove_tree(tree)
    assert file.read_text() == "kept"
    assert (tree / "deep").exists()
    files.release()
    assert not file.exists()
    assert not tree.exists()


def test_nothing_is_kept_where_nobody_holds(files, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    files.unlink(file)
    assert not file.exists()


def test_file_is_made_anew_where_a_removed_one_is_kept(files, tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    files.hold()
    files.unlink(file)
    handle = files.open(file, create=True)
    files.pwrite(handle, b"new", 0)
    files.close(handle)
    files.release()
    assert file.read_text() == "new"


def test_moved_directory_is_found(files, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    files.hold()
    assert files.place(before) == before
    files.rename(before, after)
    assert files.place(before) == after
    files.release()
    assert files.place(before) == before
