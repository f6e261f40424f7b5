"""A manifest names files of its own backup, and is refused otherwise."""

from __future__ import annotations

import json

import pytest

from leveret.errors import StorageError
from leveret.storage.manifest import BackedUpFile, Manifest, read_manifest


def written(path, **changes):
    manifest = Manifest("0.1.0", "leveret@host", "2026-11-23T01:02:03Z", [])
    fields = json.loads(manifest.to_json()) | changes
    (path / "manifest.json").write_text(json.dumps(fields))
    return path


def entry(name):
    return {"path": name, "bytes": 1, "crc32c": 2, "mtime_ns": 3}


def test_manifest_is_read_as_it_was_written(tmp_path):
    files = [BackedUpFile("topics/%2F/q~~x/0/00.log", 1, 2, 3)]
    manifest = Manifest("0.1.0", "leveret@host", "2026-11-23T01:02:03Z", files)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    assert read_manifest(tmp_path) == manifest
    assert manifest.bytes == 1


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/./b", "a\0b", 7, None, "a\\b"]
)
def test_file_outside_of_the_backup_is_refused(tmp_path, name):
    with pytest.raises(StorageError, match="names a file that no backup has"):
        read_manifest(written(tmp_path, files=[entry(name)]))


@pytest.mark.parametrize("field", ["bytes", "crc32c", "mtime_ns"])
@pytest.mark.parametrize("value", [-1, "1", None, 1.5])
def test_number_that_is_none_is_refused(tmp_path, field, value):
    with pytest.raises(StorageError, match="no backup has"):
        read_manifest(written(tmp_path, files=[entry("a") | {field: value}]))


def test_newer_format_is_refused(tmp_path):
    with pytest.raises(StorageError, match="newer release"):
        read_manifest(written(tmp_path, format=2))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, '{"format": 1}'])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StorageError):
        read_manifest(tmp_path)


def test_directory_without_a_manifest_is_no_backup(tmp_path):
    with pytest.raises(StorageError, match="no backup, or one that was cut off"):
        read_manifest(tmp_path)
