"""Archives: every message once whatever ends the job, and verified against the log."""

from __future__ import annotations

import json
import time

import pika
import pyarrow.parquet as pq
import pytest

from leveret.spark.archive_files import LocalFiles, read_manifests
from leveret.spark.archive_manifest import check_sequence
from leveret.spark.archive_reader import ArchiveIndex
from leveret.spark.jobs import archive, archived_files, replay, verify
from leveret.spark.jobs.hadoop_files import HadoopFiles
from leveret.spark.jobs.job import JobError
from leveret.spark.offsets import OffsetRange
from spark_tests.conftest import SHORT

STEPS = ("cleaned", "written", "safe", "manifest", "group")


class Killed(BaseException):
    """The job ends here, as by SIGKILL."""


def publish(channel, topic, numbers, **properties):
    for number in numbers:
        headers = {"x-partition-key": f"k{number % 7}", "n": number, "x-tags": ["a"]}
        channel.basic_publish(
            "",
            topic,
            b"body %d\xff" % number * (number % 3),
            pika.BasicProperties(
                delivery_mode=2, headers=headers, message_id=f"m{number}", **properties
            ),
        )


def rows_of(spark, place, topic):
    files = LocalFiles(place)
    paths = [
        f"{place}/topic={topic}/{file.path}"
        for manifest in read_manifests(files, topic)
        for file in manifest.files
    ]
    table = spark.read.parquet(*paths)
    return sorted(map(tuple, table.select(*archived_files.HASHED, "partition", "key").collect()))


def rows_in_log(spark, node, topic):
    table = (
        spark.read.format("leveret")
        .options(servers=node.server, subscribe=topic, includeRecord="true")
        .load()
    )
    return sorted(map(tuple, table.select(*archived_files.HASHED, "partition", "key").collect()))


def test_batches_continue_each_other(spark, node, channel, topic, run, place):
    publish(channel, topic, range(50))
    summary = run("archive", topic, "--to", str(place), "--batch-rows", "20")
    (told,) = summary["topics"]
    assert (told["messages"], told["lost"]) == (50, 0)
    assert told["batches"] >= 3
    assert run("archive", topic, "--to", str(place))["topics"][0]["batches"] == 0
    publish(channel, topic, range(50, 60))
    assert run("archive", topic, "--to", str(place))["topics"][0]["messages"] == 10
    assert rows_of(spark, place, topic) == rows_in_log(spark, node, topic)
    assert check_sequence(read_manifests(LocalFiles(place), topic)) == []
    others = spark.read.option("basePath", str(place)).parquet(f"{place}/topic={topic}")
    assert others.count() == 60
    assert {"topic", "date", "batch", "headers", "value"} <= set(others.columns)


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_is_repaired_by_the_next(
    spark, node, channel, topic, context, place, step
):
    publish(channel, topic, range(30))
    made = context("archive", topic, "--to", str(place), "--batch-rows", "15")

    def kill(name):
        if name == step:
            raise Killed

    for number in (30, 31):
        with pytest.raises(Killed):
            archive.TopicArchiver(made, LocalFiles(place), topic, kill).run()
        publish(channel, topic, [number])
    archive.TopicArchiver(made, LocalFiles(place), topic).run()
    assert rows_of(spark, place, topic) == rows_in_log(spark, node, topic)
    assert check_sequence(read_manifests(LocalFiles(place), topic)) == []
    assert len(list(place.rglob("*.parquet"))) == sum(
        len(each.files) for each in read_manifests(LocalFiles(place), topic)
    )


def firsts(node, topic):
    told = node.ask("GET", f"leveret/topics/%2F/{topic}/offsets")
    return {each["partition"]: each["first"] for each in told["partitions"]}


def in_order(spark, node, topic, *columns, **options):
    """Return the rows of each partition in order."""
    table = (
        spark.read.format("leveret")
        .options(servers=node.server, subscribe=topic, includeRecord="true", **options)
        .load()
    )
    rows = table.select("partition", "offset", *columns).orderBy("partition", "offset").collect()
    return {
        number: [tuple(row)[2:] for row in rows if row.partition == number] for number in (0, 1)
    }


def publish_varied(channel, topic, count):
    """Publish messages with all kinds of properties, headers and bodies."""
    for number in range(count):
        headers = {"x-partition-key": f"k{number % 7}", "n": number, "list": [1, {"a": None}]}
        properties = pika.BasicProperties(
            content_type="text/plain",
            delivery_mode=1 + number % 2,
            priority=number % 5,
            correlation_id=f"c{number}",
            expiration=None if number % 3 else "3600000",
            message_id=f"m{number}",
            timestamp=1_700_000_000 + number,
            headers=headers if number % 4 else {**headers, "x-tags": ["a", "häse"]},
        )
        channel.basic_publish("", topic, bytes([number % 256]) * (number * 37 % 1000), properties)


def fill(channel, topic, count=150):
    for number in range(count):
        headers = {"x-partition-key": f"key {number}"}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        channel.basic_publish("", topic, b" " * 10_000, properties)


def test_what_retention_has_deleted_is_replayed_as_it_was(spark, node, channel, short, run, place):
    publish_varied(channel, short, 120)
    before = in_order(spark, node, short, "header", "value", "key")
    assert (
        run("archive", short, "--to", str(place), "--batch-rows", "50")["topics"][0]["messages"]
        == 120
    )
    archived = run("archive", short, "--to", str(place))["topics"][0]["next"]
    fill(channel, short)
    fill(channel, short)  # more than twice the limit: the group is where the archive is
    assert all(first >= archived[str(number)] for number, first in firsts(node, short).items())
    summary = run("verify", short, "--archive", str(place))
    assert (summary["ok"], summary["topics"][0]["messages"]) == (True, 120)

    again = f"{short}-again"
    arguments = {"x-queue-type": "stream", "x-partitions": 2}
    with pytest.raises(JobError, match="declare it first"):
        run("replay", short, "--from", str(place), "--to", again)
    channel.queue_declare(again, durable=True, arguments=arguments)
    replay = ("replay", short, "--from", str(place), "--to", again, "--piece-bytes", "40000")
    first = run(*replay)
    assert (first["messages"], first["published_before"]) == (120, 0)
    after = in_order(spark, node, again, "header", "value", "key")
    assert after == before
    second = run(*replay)
    assert (second["messages"], second["published_before"]) == (0, 120)
    fill(channel, short, 10)
    run("archive", short, "--to", str(place), "--accept-loss")
    third = run(*replay)
    assert third["published_before"] == 120
    assert third["messages"] > 0


@pytest.mark.parametrize("is_published", [False, True])
def test_a_replay_that_is_killed_goes_on(
    spark, node, channel, topic, run, place, monkeypatch, is_published
):
    publish(channel, topic, range(60))
    run("archive", topic, "--to", str(place), "--batch-rows", "40")
    again = f"{topic}-again"
    arguments = {"x-queue-type": "stream", "x-partitions": 2}
    channel.queue_declare(again, durable=True, arguments=arguments)
    command = ("replay", topic, "--from", str(place), "--to", again)
    with monkeypatch.context() as patch:
        original, calls = replay.Replay._publish, []

        def publish_until_killed(self, source, piece):
            calls.append(piece)
            if len(calls) == 1 or is_published:
                original(self, source, piece)
            if len(calls) == 2:
                raise Killed

        patch.setattr(replay.Replay, "_publish", publish_until_killed)
        with pytest.raises(Killed):
            run(*command, "--piece-bytes", "3000")
    told = run(*command, "--piece-bytes", "7000")
    assert 0 < told["messages"] < 60
    columns = ("header", "value", "key")
    assert in_order(spark, node, again, *columns) == in_order(spark, node, topic, *columns)


def test_a_range_of_a_topic_is_replayed(spark, node, channel, topic, run, capsys):
    publish(channel, topic, range(40))
    again = f"{topic}-again"
    channel.queue_declare(again, durable=True, arguments={"x-queue-type": "stream"})
    assert run("replay", topic, "--to", again)["messages"] == 40
    ((_, told, _),) = [
        line.split("'") for line in capsys.readouterr().err.splitlines() if "--offsets" in line
    ]
    publish(channel, topic, [40])
    repeated = run("replay", topic, "--to", again, "--offsets", told)
    assert (repeated["messages"], repeated["published_before"]) == (0, 40)
    some = ("replay", topic, "--to", again, "--offsets", '{"0": [1, 4]}')
    assert run(*some)["messages"] == 3
    assert run(*some, "--id", "once-more")["messages"] == 3
    assert sum(map(len, in_order(spark, node, again, "value").values())) == 46


def test_copies_are_not_sent_by_mistake(channel, topic, run):
    other = f"{topic}-other"
    for name in (other, f"{topic}-again"):
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    properties = pika.BasicProperties(delivery_mode=2, headers={"CC": [other]})
    channel.basic_publish("", topic, b"x", properties)
    with pytest.raises(JobError, match="1 messages have a header CC"):
        run("replay", topic, "--to", f"{topic}-again")
    assert run("replay", topic, "--to", f"{topic}-again", "--copies")["messages"] == 1


def test_losses_before_the_archive_are_an_error_unless_they_are_accepted(
    node, channel, topic, run, place
):
    name = f"{topic}-short"
    without = {name: value for name, value in SHORT.items() if "waits" not in name}
    channel.queue_declare(name, durable=True, arguments=without)
    publish(channel, name, range(20))
    assert run("archive", name, "--to", str(place))["topics"][0]["messages"] == 20
    fill(channel, name)
    with pytest.raises(JobError, match="were deleted before they were archived"):
        run("archive", name, "--to", str(place))
    told = run("archive", name, "--to", str(place), "--accept-loss")["topics"][0]
    assert told["lost"] > 0
    assert run("verify", name, "--archive", str(place))["ok"]


def test_a_batch_that_retention_catches_up_with_is_planned_anew(
    node, channel, topic, context, place
):
    name = f"{topic}-short"
    without = {name: value for name, value in SHORT.items() if "waits" not in name}
    channel.queue_declare(name, durable=True, arguments=without)
    publish(channel, name, range(20))
    steps = []

    def overtaken(step):
        """Delete what is about to be read, once in each run."""
        if step == "cleaned" and not steps:
            steps.append(step)
            before = firsts(node, name)
            fill(channel, name)
            fill(channel, name)
            wait_until(lambda: all(at > before[n] for n, at in firsts(node, name).items()))

    for options in ([], ["--accept-loss"]):
        steps.clear()
        made = context("archive", name, "--to", str(place), *options)
        archiver = archive.TopicArchiver(made, LocalFiles(place), name, overtaken)
        if not options:
            with pytest.raises(JobError, match="were deleted while they were archived"):
                archiver.run()
    archiver.run()
    publish(channel, name, [20])
    archiver.run()
    assert archiver.summary()["messages"] > 0
    assert check_sequence(read_manifests(LocalFiles(place), name)) == []


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def damage(place, topic, kind):
    files = sorted(place.rglob("*.parquet"))
    manifests = sorted((place / f"topic={topic}" / "_manifests").iterdir())
    if kind == "missing":
        files[0].unlink()
    elif kind == "short":
        files[0].write_bytes(files[0].read_bytes()[:-1])
    elif kind == "garbage":
        files[0].write_bytes(bytes(files[0].stat().st_size))
        files[0].with_name(f".{files[0].name}.crc").unlink()
    elif kind == "stray":
        files[0].with_name("part-1.parquet").write_bytes(files[0].read_bytes())
    elif kind == "hash":
        told = json.loads(manifests[0].read_text())
        told["files"][0]["hash"] = "0" * 16
        manifests[0].write_text(json.dumps(told))
    elif kind == "hole":
        manifests[0].unlink()
    elif kind == "manifest":
        manifests[0].write_text("{}")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("missing", "is missing"),
        ("short", "bytes, and its manifest says"),
        ("garbage", "cannot be read"),
        ("stray", "is in no manifest"),
        ("hash", "hash is"),
        ("hole", "batch 1 has no manifest"),
        ("manifest", "no manifest"),
    ],
)
def test_damage_is_found(channel, topic, run, place, kind, text):
    publish(channel, topic, range(10))
    run("archive", topic, "--to", str(place), "--batch-rows", "5")
    damage(place, topic, kind)
    found = run("verify", topic, "--archive", str(place))
    assert not found["ok"]
    assert any(text in each for each in found["differences"]), found["differences"]


def test_records_are_compared_with_the_log(channel, topic, run, place, monkeypatch):
    publish(channel, topic, range(20))
    run("archive", topic, "--to", str(place))
    summary = run("verify", topic, "--archive", str(place))
    assert (summary["ok"], summary["topics"][0]["compared_with_log"]) == (True, 20)
    before = verify.LogComparison._log

    def changed(self, ranges):
        return before(self, ranges).where("offset != 0").replace({"": "shop"}, subset="exchange")

    monkeypatch.setattr(verify.LogComparison, "_log", changed)
    found = run("verify", topic, "--archive", str(place))["differences"]
    assert any("2 messages are in the archive only" in each for each in found)
    assert any("18 messages are not the same in the log" in each for each in found)


def test_hadoops_file_systems_hold_archives(spark, node, channel, topic, context, place):
    """Their URIs are those of HDFS and S3, and here that of the local disk."""
    publish(channel, topic, range(20))
    made = context("archive", topic, "--to", str(place), "--batch-rows", "10")
    files = HadoopFiles(spark, f"file://{place}")

    def kill(name):
        if name == "safe":
            raise Killed

    with pytest.raises(Killed):
        archive.TopicArchiver(made, files, topic, kill).run()
    archive.TopicArchiver(made, files, topic).run()
    assert rows_of(spark, place, topic) == rows_in_log(spark, node, topic)
    assert read_manifests(files, topic) == read_manifests(LocalFiles(place), topic)
    path = f"topic={topic}/_manifests/00000001.json"
    assert files.size(path) == LocalFiles(place).size(path)
    assert files.size("nothing") is None
    with pytest.raises(FileExistsError):
        files.write(path, b"")
    with pytest.raises(OSError, match="nothing"):
        files.read("nothing")


def test_rows_that_are_not_in_order_are_sorted(spark, channel, topic, run, place):
    """Whatever has written a file: a manifest's offsets are what is read."""
    publish(channel, topic, range(30))
    run("archive", topic, "--to", str(place))
    for file in place.rglob("*.parquet"):
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.sort_by([("offset", "descending")]), file)
    index = ArchiveIndex(str(place))
    (manifest,) = read_manifests(LocalFiles(place), topic)
    for each in manifest.ranges:
        chunks = list(index.chunks(OffsetRange(topic, each.partition, 2, each.end), ["value"]))
        offsets = [offset for chunk in chunks for offset in chunk.columns["offset"].values]
        assert offsets == list(range(2, each.end))
        assert [chunks[0].offset, chunks[-1].next_offset] == [2, each.end]
