"""The option `archivePath`: what the log has no more is read from the archive, nothing twice."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from leveret.range_reader import RangeReader
from leveret.spark.archive_reader import topics_of
from leveret.spark.offsets import OffsetRange
from leveret.spark.partition_reader import ArchivedParts, LogRange, LossCheck
from leveret.spark.places import offsets_at
from leveret.spark.read_options import read_options
from spark_tests.test_archive import fill, firsts, publish_varied

FILLS = 4
FILLED = FILLS * 30


@pytest.fixture
def read(spark, node, short, place):
    """Return a function that reads the topic with its archive."""

    def read(**options):
        given = {"servers": node.server, "subscribe": short, "archivePath": str(place), **options}
        given = {name: value for name, value in given.items() if value is not None}
        table = spark.read.format("leveret").options(**given)
        return table.options(includeRecord="true", includeHeaders="true").load()

    return read


def rows_of(table):
    columns = [name for name in table.columns if name != "headers"]
    rows = table.select(*columns, "headers").orderBy("partition", "offset").collect()
    return [tuple(row) for row in rows]


@pytest.fixture
def outlived(node, channel, short, run, place, read):
    """Archive messages that the log then has no more. Returns them as rows."""
    publish_varied(channel, short, 60)
    before = rows_of(read(archivePath=None))
    run("archive", short, "--to", str(place), "--batch-rows", "25")
    for _ in range(FILLS):
        fill(channel, short, 30)
        run("archive", short, "--to", str(place))
    assert all(first > 0 for first in firsts(node, short).values())
    return before


def test_everything_is_read_once(read, outlived, channel, short):
    fill(channel, short, 3)  # which are not archived
    rows = rows_of(read())
    assert [row for row in rows if len(row[1]) < 10_000] == outlived
    for number in (0, 1):
        offsets = [row[4] for row in rows if row[3] == number]
        assert offsets == list(range(len(offsets)))
    assert len(rows) == 60 + FILLED + 3
    assert read(minPartitions="7", batchRows="10").select("offset").count() == len(rows)
    assert read(endingOffsets=json.dumps({short: {"0": 5, "1": 5}})).count() == 10


def test_properties_are_those_that_were_sent(spark, read, outlived):
    table = read(includeProperties="true").where("message_id is not null")
    rows = table.select("message_id", "correlation_id", "priority", "expiration").collect()
    assert sorted(map(tuple, rows)) == sorted(
        (f"m{n}", f"c{n}", n % 5, None if n % 3 else "3600000") for n in range(60)
    )


def test_times_are_found_in_the_archive(read, outlived):
    middle = outlived[len(outlived) // 2]
    time_ms = int(middle[5].timestamp() * 1000)
    found = rows_of(read(startingTimestamp=str(time_ms)))
    wanted = [row for row in outlived if row[5] >= middle[5]]
    assert [row for row in found if len(row[1]) < 10_000] == wanted
    assert len(found) == len(wanted) + FILLED


def test_a_stream_begins_in_the_archive(spark, node, read, outlived, short, place, tmp_path):
    stream = (
        spark.readStream.format("leveret")
        .options(servers=node.server, subscribe=short, archivePath=str(place))
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
        .load()
    )
    query = (
        stream.select("partition", "offset")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(rows) == len(set(map(tuple, rows))) == 60 + FILLED


def test_a_topic_that_is_gone_is_read_from_its_archive(read, outlived, channel, short):
    channel.queue_delete(short)
    rows = rows_of(read())
    assert [row for row in rows if len(row[1]) < 10_000] == outlived
    assert len(rows) == 60 + FILLED
    with pytest.raises(PySparkException, match="does not exist"):
        read(archivePath=None).count()


def test_another_topic_of_the_same_name_is_told(read, outlived, channel, short):
    channel.queue_delete(short)
    channel.queue_declare(short, durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(PySparkException, match="has another topic"):
        read().count()


def test_what_neither_has_is_a_loss(read, node, channel, short, run, place):
    publish_varied(channel, short, 60)
    fill(channel, short)
    first = firsts(node, short)
    assert all(first.values())
    run("archive", short, "--to", str(place), "--accept-loss")
    start = json.dumps({short: {"0": 0, "1": 0}})
    with pytest.raises(PySparkException, match=r"offsets 0 to .* are not there any more"):
        read(startingOffsets=start).count()
    table = read(startingOffsets=start, failOnDataLoss="false")
    assert table.count() == read().count() > 0


def test_what_retention_deletes_meanwhile_is_read_from_the_archive(
    node, outlived, short, place, read
):
    """A chunk of which records are missing is replaced by what is archived."""
    given = {"servers": node.server, "subscribe": short, "archivePath": str(place)}
    options = read_options(given, is_streaming=False)
    end = offsets_at(topics_of(options), options, options.ending)
    log, first = end.logs[short], firsts(node, short)[0]
    wanted = OffsetRange(short, 0, first - 3, first + 2)
    with RangeReader(f"http://{node.server}", "guest", "guest") as reader:
        chunk = reader.read(short, 0, first, rows_max=2)
    object.__setattr__(chunk, "offset", first - 3)
    object.__setattr__(chunk, "missing", 3)
    parts = ArchivedParts(str(place), log, ["offset", "value"])
    check = LossCheck(LogRange(wanted, log), fails=True)
    chunks = parts.in_place_of(chunk, wanted, check)
    offsets = [offset for each in chunks for offset in each.columns["offset"].values]
    assert offsets == list(range(first - 3, first + 2))
