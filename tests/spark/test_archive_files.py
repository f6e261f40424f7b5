"""Files of an archive on local disks: written as a whole or not at all, named by place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leveret.spark.archive_files import (
    LocalFiles,
    local_path,
    manifest_numbers,
    read_manifest,
    read_manifests,
)
from leveret.spark.archive_manifest import ManifestError
from tests.spark.test_archive_manifest import FIRST, after

MANIFESTS = "topic=orders/_manifests"


@pytest.fixture
def files(tmp_path):
    return LocalFiles(tmp_path / "archive")


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/data/archive", "/data/archive"),
        ("file:/data/a b%41", "/data/a b%41"),
        ("file:///data", "/data"),
        ("hdfs://head/data", None),
        ("s3a://bucket/data", None),
    ],
)
def test_places_are_paths_or_uris(place, path):
    assert local_path(place) == (None if path is None else Path(path))


def test_a_place_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_path("archive") == tmp_path / "archive"


def test_nothing_is_there_before_it_is_written(files):
    assert files.names(MANIFESTS) == []
    assert files.size(f"{MANIFESTS}/x") is None
    assert manifest_numbers(files, "orders") == []
    files.delete(MANIFESTS)


def test_a_file_is_written_once(files):
    files.write("a/b/c", b"one")
    assert (files.read("a/b/c"), files.size("a/b/c"), files.names("a/b")) == (b"one", 3, ["c"])
    with pytest.raises(FileExistsError):
        files.write("a/b/c", b"two")
    files.sync(["a/b/c"])
    with files.open("a/b/c") as opened:
        assert opened.read() == b"one"
    files.delete("a")
    assert files.names("a") == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_is_ended_leaves_nothing_that_counts(files, monkeypatch, step):
    def die(*_):
        raise KeyboardInterrupt

    path = f"{MANIFESTS}/00000001.json"
    with monkeypatch.context() as patch:
        patch.setattr(*(("os.fsync", die) if step == "fsync" else (Path, "replace", die)))
        with pytest.raises(KeyboardInterrupt):
            files.write(path, FIRST.to_bytes())
    assert manifest_numbers(files, "orders") == []
    files.write(path, FIRST.to_bytes())
    assert read_manifests(files, "orders") == [FIRST]


def test_manifests_are_read_in_order(files):
    second = after(FIRST, 25, 9)
    for each in (second, FIRST):
        files.write(f"{MANIFESTS}/{each.batch:08}.json", each.to_bytes())
    files.write(f"{MANIFESTS}/notes.txt", b"hello")
    assert read_manifests(files, "orders") == [FIRST, second]
    assert read_manifests(files, "invoices") == []


def test_a_manifest_in_the_wrong_place_is_refused(files):
    files.write(f"{MANIFESTS}/00000002.json", FIRST.to_bytes())
    with pytest.raises(ManifestError, match="is of batch 1 of topic 'orders'"):
        read_manifest(files, "orders", 2)
    files.write(f"{MANIFESTS}/00000003.json", replace(FIRST, batch=3).to_bytes()[:-5])
    with pytest.raises(ManifestError, match=r"00000003\.json: no manifest"):
        read_manifest(files, "orders", 3)
