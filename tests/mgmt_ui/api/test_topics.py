"""Range reads by HTTP, asked in-process."""

import asyncio
import random

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.features.range_reads import range_read, range_reads
from leveret.features.range_reads.rules import BYTES_MAX, RangeRequest
from leveret.mgmt_ui.api import topics
from leveret.range_reader import parse_chunk
from leveret.range_reader.chunk import chunk_bytes
from tests.mgmt_ui.api.test_pull import PullSite
from tests.support.client import Client
from tests.support.waiting import eventually

URL = "/api/leveret/topics/%2F/q/"
RECORDS = URL + "partitions/0/records"


class TopicSite(PullSite):
    """A site whose clock goes on while it is asked."""

    step_seconds = 0.001

    async def ask_for(self, path, user="app", *, meanwhile=None, **query):
        asking = self.get(path, user, params=query)
        return await self.ask_meanwhile(asking, lambda: self.broker.range_reads._waiting, meanwhile)

    async def chunks(self, offset=0, **query):
        answer = await self.ask_for(RECORDS, offset=offset, **query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == topics.CHUNK_TYPE
        data, chunks = answer.content, []
        while data:
            size = chunk_bytes(data[:24])
            chunks.append(parse_chunk(data[:size]))
            data = data[size:]
        return chunks

    async def chunk(self, offset=0, **query):
        (chunk,) = await self.chunks(offset, **query)
        return chunk

    async def refused(self, path=RECORDS, user="app", **query):
        answer = await self.ask_for(path, user, **query)
        told = answer.json()
        return answer.status_code, told["error"], told["reason"]


@pytest.fixture
def site():
    site = TopicSite()
    site.client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    yield site
    assert site.stage.reported == []
    assert site.broker.range_reads._held_bytes == 0
    assert site.broker.range_reads._waiting == set()


def bodies(chunk):
    return [chunk.columns["value"][row] for row in range(chunk.rows)]


async def test_records_from_an_offset_on(site):
    site.client.publish("q", b"0", b"1", b"2", headers={"x-partition-key": "k"})
    chunk = await site.chunk(1)
    assert bodies(chunk) == [b"1", b"2"]
    assert [chunk.columns["key"][row] for row in range(2)] == [b"k", b"k"]
    assert (chunk.offset, chunk.next_offset, chunk.end, chunk.has_more) == (1, 3, 3, False)


async def test_only_the_columns_that_are_asked_for(site):
    site.client.publish("q", b"0")
    chunk = await site.chunk(columns="value,offset")
    assert set(chunk.columns) == {"offset", "value"}


async def test_one_chunk_has_a_length(site):
    site.client.publish("q", b"0")
    answer = await site.ask_for(RECORDS, offset=0)
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["cache-control"] == "no-cache"


async def test_many_chunks_in_one_answer(site):
    rng = random.Random(5)
    texts = [rng.randbytes(rng.choice([0, 10, 70_000])) for _ in range(50)]
    site.client.publish("q", *texts)
    chunks = await site.chunks(chunks=1000, rows=7)
    assert [text for chunk in chunks for text in bodies(chunk)] == texts
    assert len(chunks) == 8
    assert [chunk.offset for chunk in chunks] == list(range(0, 50, 7))
    assert len(await site.chunks(chunks=3, rows=7)) == 3


def publish_tagged(site, count):
    for number in range(count):
        headers = {"n": number, "x-tags": ["odd" if number % 2 else "even"]}
        site.client.publish("q", b"%d" % number, headers=headers)


async def test_only_records_that_match(site):
    publish_tagged(site, 10)
    chunk = await site.chunk(1, tags="odd")
    assert bodies(chunk) == [b"1", b"3", b"5", b"7", b"9"]
    assert (chunk.next_offset, chunk.missing) == (10, 0)
    assert bodies(await site.chunk(filter="n >= 8 AND NOT n = 9")) == [b"8"]
    assert bodies(await site.chunk(tags="even || 'x y'", filter="n < 4", columns="value")) == [
        b"0",
        b"2",
    ]
    assert (await site.chunk(tags="none")).rows == 0


async def test_an_answer_goes_on_over_chunks_without_rows(site, monkeypatch):
    publish_tagged(site, 200)
    monkeypatch.setattr(range_read, "READ_BYTES_MAX", 4000)
    monkeypatch.setattr(range_read, "READ_BYTES_TOTAL_MAX", 4000)
    chunks = await site.chunks(chunks=1000, filter="n IN (3, 150, 199)")
    assert [text for chunk in chunks for text in bodies(chunk)] == [b"3", b"150", b"199"]
    assert sum(chunk.rows == 0 for chunk in chunks) > 1
    assert [chunk.offset for chunk in chunks[1:]] == [chunk.next_offset for chunk in chunks[:-1]]
    assert chunks[-1].next_offset == 200


async def test_the_longest_expression_fits_into_a_request(site):
    publish_tagged(site, 2)
    text = "n = 1 OR 'ä' = '" + "ä" * 4079 + "'"
    assert len(text) == 4096
    assert bodies(await site.chunk(filter=text)) == [b"1"]


async def test_a_filter_ends_with_its_slice(site, monkeypatch):
    publish_tagged(site, 20)
    monkeypatch.setattr(range_read, "SLICE_NS_MAX", -1)  # it is always over
    slices = []
    taken = range_read.RangeRead._slice
    monkeypatch.setattr(
        range_read.RangeRead, "_slice", lambda self: slices.append(self) or taken(self)
    )
    assert bodies(await site.chunk(filter="n > 17")) == [b"18", b"19"]
    assert len(slices) >= 20


async def test_what_fails_behind_the_first_chunk_is_told_to_the_next_request(site):
    site.client.publish("q", b"0")
    site.client.publish("q", b"1")
    log = site.stage.queue("q").log
    read = log.read
    log.read = lambda offset, size: None if offset else read(offset, 1)
    log.fetch_error = StorageError("no device")
    (chunk,) = await site.chunks(chunks=5, rows=1)
    assert bodies(chunk) == [b"0"]
    status, error, reason = await site.refused(offset=1)
    assert (status, error) == (503, "service_unavailable")
    assert "no device" in reason


async def test_an_answer_ends_in_time(site, monkeypatch):
    monkeypatch.setattr(topics, "ANSWER_SECONDS_MAX", 0)
    site.client.publish("q", *[b"x"] * 10)
    assert len(await site.chunks(chunks=10, rows=1)) == 1


async def test_offsets(site):
    site.client.publish("q", b"0", b"1")
    log = site.stage.queue("q").log
    answer = (await site.ask_for(URL + "offsets")).json()
    assert answer["partitions"] == [{"partition": 0, "first": 0, "end": 2}]
    assert len(answer["log"]) == 16
    assert int(answer["log"], 16) == (await site.chunk()).log
    answer = (await site.ask_for(URL + "offsets", time=site.stage.now + 1000)).json()
    assert answer["partitions"] == [{"partition": 0, "first": 0, "end": 2, "offset": 2}]
    log.settle([(0, 1)])
    answer = (await site.ask_for(URL + "offsets", time=0)).json()
    assert answer["partitions"] == [{"partition": 0, "first": 1, "end": 2, "offset": 1}]


async def test_sizes_of_the_logs(site):
    site.client.publish("q", b"0")
    (small,) = (await site.ask_for(URL + "offsets", sizes="true")).json()["partitions"]
    site.client.publish("q", b"1" * 1000)
    (large,) = (await site.ask_for(URL + "offsets", sizes="true")).json()["partitions"]
    assert large["bytes"] >= small["bytes"] + 1000 > 1000
    answer = await site.ask_for(URL + "offsets", sizes="yes")
    assert (answer.status_code, answer.json()["reason"]) == (400, "sizes is true or false")


async def test_outside_of_the_log_the_bounds_are_told(site):
    site.client.publish("q", b"0")
    site.client.publish("q", b"1")
    site.stage.queue("q").log.settle([(0, 1)])
    for offset in (0, 3):
        answer = await site.ask_for(RECORDS, offset=offset)
        told = answer.json()
        assert answer.status_code == 416
        assert told.keys() == {"error", "reason", "first", "end"}
        assert (told["error"], told["first"], told["end"]) == ("offset_out_of_range", 1, 2)
        assert f"offset {offset} is " in told["reason"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "offset is needed: where to begin"),
        ({"offset": "-1"}, "offset is a whole number from 0 to 9223372036854775807"),
        ({"offset": 0, "rows": 0}, "rows is a whole number from 1 to 1000000"),
        ({"offset": 0, "bytes": BYTES_MAX + 1}, f"bytes is a whole number from 1 to {BYTES_MAX}"),
        ({"offset": 0, "chunks": 1001}, "chunks is a whole number from 1 to 1000"),
        ({"offset": 0, "wait": "1s"}, "wait is a whole number from 0 to 20000"),
        ({"offset": 0, "columns": "valu"}, "unknown column 'valu'"),
        ({"offset": 0, "columns": ""}, "unknown column ''"),
        ({"offset": 0, "row": 1}, "unknown field 'row'"),
        ({"offset": 0, "tags": ""}, "tags: expected a tag, found the end at character 1"),
        ({"offset": 0, "tags": "a | b"}, "tags: unexpected '|' at character 3"),
        ({"offset": 0, "tags": "a", "filter": "n = "}, "filter: expected a value, found the end"),
        ({"offset": 0, "filter": "(" * 50}, "filter: nested deeper than 32"),
        ({"offset": 0, "filter": "n" * 4097}, "filter: longer than 4096 characters"),
    ],
)
async def test_bad_parameters(site, query, reason):
    status, error, told = await site.refused(**query)
    assert (status, error) == (400, "bad_request")
    assert reason in told


async def test_a_bad_time(site):
    status, _, told = await site.refused(URL + "offsets", time="yesterday")
    assert (status, told) == (400, "time is a whole number from 0 to 9223372036854775807")


@pytest.mark.parametrize("number", ["1", "-1", "00", "x", "%20", "9" * 30])
async def test_unknown_partitions(site, number):
    path = f"{URL}partitions/{number}/records"
    assert await site.refused(path, offset=0) == (404, "not_found", "partition_not_found")


async def test_partitions_may_have_gaps(site, monkeypatch):
    site.client.publish("q", b"0")
    queue = site.stage.queue("q")
    monkeypatch.setattr(type(queue), "number", 3)
    path = f"{URL}partitions/3/records"
    answer = await site.ask_for(path, offset=0)
    assert parse_chunk(answer.content).partition == 3
    assert (await site.refused(offset=0))[0] == 404
    (row,) = (await site.ask_for(URL + "offsets")).json()["partitions"]
    assert row == {"partition": 3, "first": 0, "end": 1}


async def test_what_is_not_there(site):
    path = "/api/leveret/topics/%2F/none/offsets"
    assert await site.refused(path) == (404, "not_found", "queue_not_found")
    path = "/api/leveret/topics/none/q/offsets"
    assert await site.refused(path) == (404, "not_found", "vhost_not_found")


@pytest.mark.parametrize("rest", ["offsets", "partitions/0/records?offset=0"])
async def test_queues_that_keep_nothing(site, rest):
    site.client.declare("plain")
    status, error, reason = await site.refused(f"/api/leveret/topics/%2F/plain/{rest}")
    assert (status, error) == (400, "bad_request")
    assert "keeps no messages to be read by offset" in reason


async def test_read_permission_is_needed(site):
    site.add_user("other")
    site.permit("other", "/", ".*", ".*", "^other$")
    for path in (RECORDS, URL + "offsets"):
        status, error, reason = await site.refused(path, "other", offset=0)
        if path != RECORDS:
            assert (status, error) == (400, "bad_request")  # `offset` is no parameter of it
            status, error, reason = await site.refused(path, "other")
        assert (status, error) == (401, "not_authorised")
        assert "read access to queue 'q'" in reason
    site.add_user("outsider")
    assert (await site.refused(user="outsider", offset=0))[:2] == (401, "not_authorised")


async def test_rates_of_consumers_hold(site):
    site.client.declare(
        "slow",
        durable=True,
        arguments={"x-queue-type": "stream", "x-consume-rate": 2},
    )
    site.client.publish("slow", *[b"x"] * 500)
    path = "/api/leveret/topics/%2F/slow/partitions/0/records"
    assert (await site.ask_for(path, offset=0, chunks=100, rows=100)).status_code == 200
    answer = await site.ask_for(path, offset=0)
    assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
    assert int(answer.headers["retry-after"]) > 1


async def test_rates_are_of_what_matches(site):
    arguments = {"x-queue-type": "stream", "x-consume-rate": 2}
    site.client.declare("slow", durable=True, arguments=arguments)
    site.client.publish("slow", *[b"x"] * 500, headers={"x-tags": ["many"]})
    site.client.publish("slow", b"y", headers={"x-tags": ["one"]})
    path = "/api/leveret/topics/%2F/slow/partitions/0/records"
    for tags, status in (("one", 200), ("many", 200), ("one", 429)):
        assert (await site.ask_for(path, offset=0, tags=tags)).status_code == status


async def test_usage_is_counted_for_the_user(site):
    site.client.publish("q", b"0", b"1")
    await site.chunk()
    counted = site.stage.queue("q").counters.counted()
    assert counted["get_no_ack"] == 2


async def test_a_long_poll_is_woken(site):
    chunk = await site.chunk(wait=20_000, meanwhile=lambda: site.client.publish("q", b"0"))
    assert bodies(chunk) == [b"0"]


async def test_a_long_poll_ends_without_rows(site):
    chunk = await site.chunk(wait=50)
    assert (chunk.rows, chunk.next_offset) == (0, 0)


async def test_a_queue_deleted_while_somebody_waits(site):
    answer = await site.ask_for(
        RECORDS,
        offset=0,
        wait=20_000,
        meanwhile=lambda: site.client.call(commands.Queue.Delete(queue="q")),
    )
    assert (answer.status_code, answer.json()["reason"]) == (404, "queue_not_found")


async def test_too_many_wait(site, monkeypatch):
    monkeypatch.setattr(range_reads, "WAITING_MAX", 0)
    answer = await site.ask_for(RECORDS, offset=0, wait=1000)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def test_too_much_is_read_at_once(site):
    reads, large = site.broker.range_reads, RangeRequest(0, bytes_max=BYTES_MAX)
    count = range_reads.CHUNKS_BYTES_MAX // BYTES_MAX
    for _ in range(count):
        reads.reserve(large)
    assert (await site.refused(offset=0))[0] == 429
    for _ in range(count):
        reads.release(large)
    assert (await site.chunk()).rows == 0


class Hanging:
    """A request below httpx: a client that hangs up, or does not take what it is sent."""

    def __init__(self, site, query):
        self.site = site
        self.sent = []
        self.gone = asyncio.Event()
        path = RECORDS.encode()
        self.scope = {
            "type": "http",
            "method": "GET",
            "path": RECORDS,
            "raw_path": path,
            "query_string": query,
            "headers": [(b"host", b"localhost"), (b"authorization", b"Basic YXBwOmFwcA==")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 15672),
            "scheme": "http",
            "http_version": "1.1",
            "root_path": "",
        }

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    async def run_until(self, condition):
        task = asyncio.get_running_loop().create_task(
            self.site.app(self.scope, self.receive, self.send)
        )

        def come_to_it():
            self.site.stage.run()
            return task.done() or condition()

        await eventually(come_to_it)
        return task


async def test_a_client_that_hangs_up_while_it_waits(site):
    hanging = Hanging(site, b"offset=0&wait=20000")
    waiting = site.broker.range_reads._waiting
    task = await hanging.run_until(lambda: waiting)
    assert len(waiting) == 1
    hanging.gone.set()
    await task
    assert waiting == set()


async def test_a_client_that_is_cut_while_it_waits(site):
    waiting = site.broker.range_reads._waiting
    task = await Hanging(site, b"offset=0&wait=20000").run_until(lambda: waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiting == set()


async def test_a_client_that_hangs_up_gets_no_more_chunks(site):
    site.client.publish("q", *[b"x" * 1000] * 200)
    hanging = Hanging(site, b"offset=0&rows=1&chunks=1000")
    task = await hanging.run_until(lambda: len(hanging.sent) > 3)
    hanging.gone.set()
    await task
    assert len(hanging.sent) < 100


async def test_a_client_that_is_cut_while_it_is_sent_a_chunk(site):
    site.client.publish("q", *[b"x" * 1000] * 2000)
    hanging = Hanging(site, b"offset=0")

    async def stuck(message):
        hanging.sent.append(message)
        if len(hanging.sent) > 2:
            await asyncio.Event().wait()

    hanging.send = stuck
    task = await hanging.run_until(lambda: len(hanging.sent) > 2)
    assert site.broker.range_reads._held_bytes > 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def texts(rng):
    number = str(rng.choice([rng.randint(-5, 50), rng.randrange(1 << 70)]))
    return rng.choice([number, "", "x", "1.5", "value", "key,value", "\x00", "٣", "%", "0" * 40])


@pytest.mark.parametrize("seed", range(4))
async def test_any_parameters_are_answered(site, seed):
    rng = random.Random(seed)
    site.client.publish("q", *[b"%d" % number for number in range(20)])
    names = ["offset", "rows", "bytes", "chunks", "columns", "tags", "filter", "time", "x"]
    for _ in range(60):
        query = {name: texts(rng) for name in rng.sample(names, rng.randint(0, 4))}
        path = rng.choice([RECORDS, RECORDS, URL + "offsets", URL + "partitions/1/records"])
        answer = await site.ask_for(path, **query)
        assert answer.status_code in {200, 400, 404, 416}, (query, answer.text)
        if answer.status_code != 200:
            assert answer.json()["reason"]


async def test_other_vhosts_are_theirs(site):
    site.administration.add_vhost("other")
    assert (await site.refused("/api/leveret/topics/other/q/offsets"))[0] == 401
    site.permit("app", "other")
    assert (await site.refused("/api/leveret/topics/other/q/offsets"))[0] == 404


async def test_an_exclusive_queue_is_its_connections(site):
    client = Client(site.stage).open()
    client.declare("own", exclusive=True)
    assert (await site.refused("/api/leveret/topics/%2F/own/offsets"))[0] == 400
