"""Manifests of an archive: written and read, refused where damaged, checked as a sequence."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.spark.archive_manifest import (
    ArchivedFile,
    ArchivedRange,
    BatchManifest,
    ManifestError,
    batch_directory,
    check_sequence,
    manifest_name,
    manifest_number,
    parse_manifest,
    topic_directory,
)

PATH = "date=2026-01-05/batch=00000001/part-00000-4f2e.c000.zstd.parquet"
FILE = ArchivedFile(PATH, 4096, 0, 10, 19, 8, 200, 1767605400000, 1767605400001, "00ff00ff00ff00ff")
FIRST = BatchManifest(
    topic="orders",
    vhost="/",
    log="ea503252eabd3663",
    batch=1,
    created="2026-01-05T09:30:00Z",
    next={0: 20, 1: 7},
    ranges=(ArchivedRange(0, 10, 20), ArchivedRange(1, 0, 7, 7)),
    files=(FILE,),
)


def after(manifest, *ends):
    """Return a manifest that continues another one up to these offsets."""
    places = dict(enumerate(ends))
    return replace(
        manifest,
        batch=manifest.batch + 1,
        next=places,
        files=(),
        ranges=tuple(
            ArchivedRange(number, manifest.next.get(number, 0), end)
            for number, end in places.items()
            if manifest.next.get(number, 0) < end
        ),
    )


def test_what_is_written_is_read_again():
    assert parse_manifest(FIRST.to_bytes()) == FIRST
    assert FIRST.rows == 8


@pytest.mark.parametrize(
    "change",
    [
        {"format": "parquet"},
        {"version": 2},
        {"rows": 9},
        {"rows": True},
        {"batch": -1},
        {"topic": 5},
        {"next": {"x": 1}},
        {"next": []},
        {"ranges": [{"partition": 0}]},
        {"ranges": [{"partition": 0, "first": 5, "end": 4, "lost": 0}]},
        {"ranges": [{"partition": 0, "first": 5, "end": 7, "lost": 3}]},
        {"files": [{"path": "x"}]},
        {"files": None},
    ],
)
def test_other_contents_are_refused(change):
    told = {**json.loads(FIRST.to_bytes()), **change}
    with pytest.raises(ManifestError):
        parse_manifest(json.dumps(told).encode())


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../other/part.parquet",
        "date=2026-01-05/batch=00000001/../../x.parquet",
        "date=2026-01-05/batch=1/part.parquet",
        "s3://elsewhere/date=2026-01-05/batch=00000001/x.parquet",
    ],
)
def test_files_outside_of_the_archive_are_refused(path):
    told = json.loads(FIRST.to_bytes())
    told["files"][0]["path"] = path
    with pytest.raises(ManifestError, match="no file of an archive"):
        parse_manifest(json.dumps(told).encode())


@given(st.binary(max_size=200) | st.integers(0, len(FIRST.to_bytes())))
def test_any_bytes_are_a_manifest_or_refused(data):
    if isinstance(data, int):
        data = FIRST.to_bytes()[:data]  # a file that was not written to its end
    with contextlib.suppress(ManifestError):
        assert parse_manifest(data) == FIRST


def test_deep_json_is_refused():
    with pytest.raises(ManifestError):
        parse_manifest(b"[" * 100_000)


def test_names():
    assert manifest_name(7) == "00000007.json"
    assert manifest_number("00000007.json") == 7
    assert batch_directory(7) == "batch=00000007"
    for name in (".00000007.json.tmp", "7.json", "00000007.json.crc", "_SUCCESS"):
        assert manifest_number(name) is None


@pytest.mark.parametrize(
    ("topic", "directory"),
    [
        ("orders", "topic=orders"),
        ("..", "topic=.."),
        ("a/b", "topic=a%2Fb"),
        ("50%", "topic=50%25"),
        ("x=1:{y}", "topic=x%3D1%3A%7By}"),
        ("häse\n", "topic=häse%0A"),
    ],
)
def test_topics_are_directories_as_spark_names_them(topic, directory):
    assert topic_directory(topic) == directory


def test_batches_that_continue_each_other_are_in_order():
    second = after(FIRST, 20, 9, 5)
    third = after(second, 30, 9, 5)
    assert check_sequence([FIRST, second, third]) == []
    assert check_sequence([]) == []


def test_what_is_wrong_with_a_sequence_is_said():
    second = after(FIRST, 25, 9)
    third = after(second, 30, 12)
    assert check_sequence([second]) == ["batch 1 has no manifest, and batch 2 has one"]
    (text,) = check_sequence([FIRST, third])
    assert text == "batch 2 has no manifest, and batch 3 has one"
    hole = replace(second, ranges=(ArchivedRange(0, 22, 25), ArchivedRange(1, 7, 9)))
    assert check_sequence([FIRST, hole]) == ["batch 2: offsets 20 to 22 of partition 0 are missing"]
    twice = replace(second, ranges=(ArchivedRange(0, 18, 25), ArchivedRange(1, 7, 9)))
    assert check_sequence([FIRST, twice]) == [
        "batch 2: offsets 18 to 20 of partition 0 are there twice"
    ]
    other = replace(second, log="0" * 16)
    assert "batch 2 is of another topic than batch 1" in check_sequence([FIRST, other])
    short = replace(second, next={0: 25})
    assert "partition 1 ends at 9" in check_sequence([FIRST, short])[0]
    stray = replace(second, files=(FILE,))
    assert "has offsets that are not of the batch" in check_sequence([FIRST, stray])[0]
