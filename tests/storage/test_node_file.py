import json

import pytest

from leveret.errors import NewerFormatError, StorageError
from leveret.storage.node_file import NodeFile, check_alone, read_boot_id


def change(data, **values):
    path = data / "node.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_the_directory_keeps_its_id(tmp_path):
    first = NodeFile(tmp_path, 3, "boot")
    assert len(first.directory) == 32
    assert NodeFile(tmp_path, 3, "boot").directory == first.directory
    (tmp_path / "other").mkdir()
    assert NodeFile(tmp_path / "other", 3, "boot").directory != first.directory


def test_a_start_of_the_machine_counts_once(tmp_path):
    boots = ("a", "a", "b", "b", "a")
    assert [NodeFile(tmp_path, 3, boot).incarnation for boot in boots] == [0, 0, 1, 1, 2]


def test_without_a_boot_id_every_start_counts(tmp_path):
    assert [NodeFile(tmp_path, 3, "").incarnation for _ in range(3)] == [0, 1, 2]


def test_the_cluster_is_kept(tmp_path):
    NodeFile(tmp_path, 3, "boot").join("ab12")
    again = NodeFile(tmp_path, 3, "later")
    again.join("ab12")
    with pytest.raises(StorageError, match="has the data of cluster ab12, and ZooKeeper has"):
        again.join("cd34")


def test_another_node_is_refused(tmp_path):
    NodeFile(tmp_path, 3, "boot")
    with pytest.raises(StorageError, match="of node 3, and this is node 4: correct 'node_id'"):
        NodeFile(tmp_path, 4, "boot")


@pytest.mark.parametrize(
    "wrong",
    [{"node": "3"}, {"node": True}, {"incarnation": -1}, {"directory": ""}, {"cluster": None}],
)
def test_a_damaged_file_is_not_made_anew(tmp_path, wrong):
    NodeFile(tmp_path, 3, "boot")
    change(tmp_path, **wrong)
    with pytest.raises(StorageError, match=r"node\.json is damaged: give this node another id"):
        NodeFile(tmp_path, 3, "boot")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_no_content_is_believed(tmp_path, content):
    (tmp_path / "node.json").write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        NodeFile(tmp_path, 3, "boot")
    assert (tmp_path / "node.json").read_bytes() == content


def test_a_file_of_a_newer_release_is_left_alone(tmp_path):
    NodeFile(tmp_path, 3, "boot")
    change(tmp_path, version=2, node={"id": 3})
    with pytest.raises(NewerFormatError):
        NodeFile(tmp_path, 3, "boot")


def test_a_directory_that_cannot_be_written_to(tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*node\.json"):
        NodeFile(tmp_path / "none", 3, "boot")


def test_this_machine_says_when_it_was_started():
    assert read_boot_id() == read_boot_id() != ""


def test_a_directory_of_a_cluster_is_not_that_of_a_node_by_itself(tmp_path):
    check_alone(tmp_path)
    NodeFile(tmp_path, 1, "boot")
    with pytest.raises(StorageError, match="start it with --cluster"):
        check_alone(tmp_path)
