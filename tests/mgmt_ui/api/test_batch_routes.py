"""Staged batches by HTTP: uploads, commits, aborts, lists, and who may do what."""

import pytest
from crc32c import crc32c
from pamqp import commands

from leveret.batch_writer import PERSISTENT_HEADER, pack_chunk, repeated, row_bytes
from leveret.features.staged_batches.commands import batch_delete, batch_list
from leveret.features.staged_batches.rules import BatchLimits
from leveret.mgmt_ui.hosts import BodyBudget
from leveret.ports.counters import DROP_UNROUTABLE, PUBLISH, PUBLISH_IN, PUBLISH_OUT
from leveret.ports.definitions import TopicPermissionDefinition
from tests.support.chunks import Row, chunk
from tests.support.client import Client
from tests.support.site import Site

ROOT = "/api/leveret/batches"
BATCH = f"{ROOT}/%2F/w/0"


@pytest.fixture
async def site(tmp_path):
    async with Site().running(tmp_path) as site:
        yield site


@pytest.fixture
def client(site):
    client = Client(site.stage).open()
    client.declare("q", durable=True)
    return client


async def post(site, path, content=b"", user="guest", **said):
    return await site.get(path, user, method="POST", content=content, **said)


async def stage(site, *rows, part="p", batch=BATCH, user="guest"):
    return await post(site, f"{batch}/parts/{part}", chunk(*rows), user)


async def commit(site, *parts, batch=BATCH, user="guest", **more):
    return await site.ask("POST", f"{batch}/commit", {"parts": list(parts), **more}, user)


async def told(asked, status):
    answer = await asked
    assert answer.status_code == status, answer.text
    return answer.json()


def bodies(client, queue="q"):
    found = []
    for _ in range(client.count(queue)):
        client.send(commands.Basic.Get(queue=queue, no_ack=True))
        found += [each.body for each in client.deliveries()]
    return found


async def test_a_batch_is_staged_and_committed_once(site, client):
    rows = [Row(value=b"1"), Row(value=b"2")]
    known = {"rows": 2, "checksum": f"{crc32c(chunk(*rows)):08x}"}
    assert await told(stage(site, *rows), 201) == {"outcome": "staged", **known}
    assert await told(stage(site, *rows), 200) == {"outcome": "repeated", **known}
    assert await told(stage(site, Row("none"), Row(value=b"4"), part="o"), 201)
    assert bodies(client) == []
    assert await told(commit(site, "o", "p"), 200) == {
        "outcome": "committed",
        "messages": 4,
        "unrouted": 1,
    }
    assert bodies(client) == [b"4", b"1", b"2"]
    assert await told(commit(site, "p"), 200) == {"outcome": "already committed"}
    late = await told(stage(site, Row(value=b"5")), 200)
    assert late == {"rows": 0, "outcome": "already committed", "checksum": None}
    assert bodies(client) == []


async def test_other_content_of_a_part_is_told(site, client):
    first, second = chunk(Row(value=b"1")), chunk(Row(value=b"2"))
    await told(post(site, f"{BATCH}/parts/p", first), 201)
    error = await told(post(site, f"{BATCH}/parts/p", second), 409)
    assert error["error"] == "conflict"
    for content in (first, second):
        assert f"{crc32c(content):08x}" in error["reason"]
    await told(commit(site, "p"), 200)
    assert bodies(client) == [b"1"]
    assert (await told(post(site, f"{BATCH}/parts/p", second), 200))["rows"] == 0


async def test_a_checksum_may_be_stated(site, client):
    part, content = f"{BATCH}/parts/p", chunk(Row(value=b"1")) + chunk(Row(value=b"2"))
    right, wrong = f"{crc32c(content):08X}", f"{crc32c(content) ^ 1:08x}"
    error = await told(post(site, f"{part}?checksum={wrong}", content), 400)
    assert wrong in error["reason"]
    assert right.lower() in error["reason"]
    assert (await told(commit(site, "p"), 404))["error"] == "not_found"
    for text in ("1234567", "1234567g", "", "0x123456"):
        error = await told(post(site, f"{part}?checksum={text}", content), 400)
        assert "8 hexadecimal digits" in error["reason"]
    for status in (201, 200):
        answer = await told(post(site, f"{part}?checksum={right}", content), status)
        assert answer["checksum"] == right.lower()
    assert (
        "as stated" in (await told(post(site, f"{part}?checksum={wrong}", content), 400))["reason"]
    )


async def test_a_part_without_messages_says_so(site, client):
    error = await told(post(site, f"{BATCH}/parts/p"), 400)
    assert error["reason"] == "the body is empty: a part without messages is a chunk of 0 rows"
    assert (await told(stage(site), 201))["rows"] == 0
    assert (await told(commit(site, "p"), 200))["messages"] == 0


async def test_several_chunks_in_pieces_of_any_size(site, client):
    data = b"".join(chunk(Row(value=b"%d" % n), Row(value=b"x" * n)) for n in range(30))

    async def pieces():
        at = 0
        while at < len(data):
            yield data[at : at + 1 + at % 97]
            at += 1 + at % 97

    assert (await told(post(site, f"{BATCH}/parts/p", pieces()), 201))["rows"] == 60
    await told(commit(site, "p"), 200)
    assert bodies(client)[::2] == [b"%d" % n for n in range(30)]


async def test_writers_are_listed_and_forgotten(site, client):
    assert await site.json(f"{ROOT}/%2F") == []
    await stage(site, Row())
    await commit(site, "p")
    await stage(site, Row(), Row(), batch=f"{ROOT}/%2F/w/3", part="a")
    await stage(site, Row(), batch=f"{ROOT}/%2F/w/2", part="b")
    [row] = await site.json(f"{ROOT}/%2F")
    assert row["bytes"] > 0
    assert row == {
        "writer": "w",
        "user": "guest",
        "committed": 0,
        "committed_at": site.stage.now,
        "staged": [2, 3],
        "parts": 2,
        "rows": 3,
        "bytes": row["bytes"],
        "staged_since": site.stage.now,
    }
    page = await site.json(f"{ROOT}/%2F?page=1&columns=writer")
    assert page["items"] == [{"writer": "w"}]
    assert (await site.ask("DELETE", f"{ROOT}/%2F/w/3")).status_code == 204
    assert (await site.ask("DELETE", f"{ROOT}/%2F/other/3")).status_code == 204
    [row] = await site.json(f"{ROOT}/%2F")
    assert row["staged"] == [2]


async def test_a_writer_that_will_not_come_again_is_forgotten(site, client):
    await stage(site, Row(value=b"1"))
    await commit(site, "p")
    await stage(site, Row(value=b"2"), batch=f"{ROOT}/%2F/w/1")
    site.add_user("u")
    assert (await site.ask("DELETE", f"{ROOT}/%2F/w", user="u")).status_code == 401
    assert (await site.ask("DELETE", f"{ROOT}/%2F/other")).status_code == 204
    assert len(await site.json(f"{ROOT}/%2F")) == 1
    assert (await site.ask("DELETE", f"{ROOT}/%2F/w")).status_code == 204
    assert await site.json(f"{ROOT}/%2F") == []
    assert (await told(stage(site, Row(value=b"3")), 201))["outcome"] == "staged"
    assert (await told(commit(site, "p"), 200))["outcome"] == "committed"
    assert bodies(client) == [b"1", b"3"]


async def test_a_missing_part_changes_nothing(site, client):
    await stage(site, Row())
    error = await told(commit(site, "p", "other", "more"), 404)
    assert error["reason"] == "batch 0 of writer 'w' has no part 'other', 'more'"
    assert bodies(client) == []
    assert (await told(commit(site, "p"), 200))["messages"] == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (f"{ROOT}/%2F/w/-1/parts/p", "a batch's number is 0 to 9223372036854775807"),
        (f"{ROOT}/%2F/w/9223372036854775808/parts/p", "a batch's number is"),
        (f"{ROOT}/%2F/w/1e5/parts/p", "a batch's number is"),
        (f"{ROOT}/%2F/{'w' * 256}/0/parts/p", "a writer has 1 to 255 bytes"),
        (f"{ROOT}/%2F/w/0/parts/{'%C3%A4' * 128}", "a part has 1 to 255 bytes"),
        (f"{ROOT}/%2F/w/0/parts/p?more=1", "more"),
    ],
)
async def test_paths_are_checked(site, client, path, reason):
    error = await told(post(site, path, chunk(Row())), 400)
    assert reason in error["reason"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"parts": "p"}, "parts is a list of names"),
        ({"parts": [1]}, "parts is a list of names"),
        ({}, "parts is missing"),
        ({"parts": ["p", "p"]}, "names one of them twice"),
        ({"parts": [], "more": 1}, "more"),
    ],
)
async def test_commits_are_checked(site, client, body, reason):
    error = await told(site.ask("POST", f"{BATCH}/commit", body), 400)
    assert reason in error["reason"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"what is this, and why is it here", "no chunk of version 1 begins here"),
        (chunk(Row())[:-3], "the body ends within a chunk"),
        (chunk(Row(), Row(header=b"x")), "row 1: a content header is not one of class 60"),
        (chunk(Row(properties={"expiration": "x"})), "row 0: invalid expiration 'x'"),
        (chunk(Row(properties={"headers": {"x-delay": "no"}})), "row 0: invalid header"),
        (chunk(Row(properties={"headers": {"CC": "no"}})), "row 0: invalid message"),
        (chunk(Row(properties={"headers": {"x-retry-delays": "no"}})), "row 0: "),
    ],
)
async def test_chunks_are_checked_and_nothing_stays(site, client, content, reason):
    error = await told(post(site, f"{BATCH}/parts/p", content), 400)
    assert reason in error["reason"]
    assert (await told(commit(site, "p"), 404))["error"] == "not_found"
    site.stage.run()
    log = site.broker.batches.find("/").records.log
    assert log.settled.contains(0, log.end) or not log.end


async def test_exchanges_are_checked(site, client):
    client.call(commands.Exchange.Declare(exchange="inside", internal=True))
    error = await told(stage(site, Row(exchange="none")), 404)
    assert error["reason"] == "row 0: no exchange 'none' in vhost '/'"
    assert (await told(stage(site, Row(exchange="inside")), 403))["error"] == "forbidden"
    error = await told(stage(site, Row(exchange="leveret.prepare")), 403)
    assert "takes commands" in error["reason"]


async def test_an_exchange_that_is_gone_fails_the_commit(site, client):
    client.call(commands.Exchange.Declare(exchange="x"))
    await stage(site, Row(), Row(exchange="x"))
    client.call(commands.Exchange.Delete(exchange="x"))
    assert (await told(commit(site, "p"), 404))["reason"] == "no exchange 'x' in vhost '/'"
    assert bodies(client) == []
    client.call(commands.Exchange.Declare(exchange="x"))
    assert (await told(commit(site, "p"), 200))["unrouted"] == 1


async def test_a_mandatory_batch_is_refused_if_a_message_finds_no_queue(site, client):
    await stage(site, Row(value=b"1"), Row("none", b"2"))
    error = await told(commit(site, "p", mandatory=True), 409)
    assert error["reason"] == (
        "messages that no queue gets: 1, the first one to exchange '' with routing key 'none'; "
        "nothing is published"
    )
    error = await told(commit(site, "p", mandatory=1), 400)
    assert error["reason"] == "mandatory is true or false"
    assert bodies(client) == []
    client.call(commands.Queue.Declare(queue="none"))
    assert (await told(commit(site, "p", mandatory=True), 200))["unrouted"] == 0
    assert bodies(client) == [b"1"]


async def test_permissions_are_those_for_publishing(site, client):
    client.call(commands.Exchange.Declare(exchange="mine", exchange_type="topic"))
    client.call(commands.Exchange.Declare(exchange="other"))
    site.add_user("u")
    assert (await stage(site, Row(), user="u")).status_code == 401
    site.permit("u", "/", "", "^mine$", "")
    assert (await told(stage(site, Row(exchange="other"), user="u"), 401))["reason"].startswith(
        "row 0: write access to exchange 'other' in vhost '/' refused for user 'u'"
    )
    await told(stage(site, Row(exchange="mine"), user="u"), 201)
    site.permit("u", "/", "", "^$", "")
    assert "refused for user 'u'" in (await told(commit(site, "p", user="u"), 401))["reason"]
    site.permit("u", "/", "", "^mine$", "")
    topics = TopicPermissionDefinition("/", "u", "mine", "^a$", "")
    site.stage.access.put_topic_permission(topics)
    assert "refused" in (await told(commit(site, "p", user="u"), 401))["reason"]
    second = {"part": "second", "user": "u"}
    error = await told(stage(site, Row("a", exchange="mine"), Row(exchange="mine"), **second), 401)
    assert error["reason"].startswith("row 1: ")
    copied = Row("a", exchange="mine", properties={"headers": {"CC": ["b"]}})
    assert (await stage(site, copied, **second)).status_code == 401
    await told(stage(site, Row("a", exchange="mine"), **second), 201)
    assert (await told(commit(site, "second", user="u"), 200))["messages"] == 1


async def test_writers_belong_to_their_users(site, client):
    site.add_user("u")
    site.permit("u", "/")
    await stage(site, Row(), user="u")
    assert (await told(commit(site, "p"), 404))["error"] == "not_found"
    await stage(site, Row(), part="o")
    assert (await told(commit(site), 200))["messages"] == 0
    assert (await told(commit(site, "p", user="u"), 200))["messages"] == 1
    assert [row["user"] for row in await site.json(f"{ROOT}/%2F", "u")] == ["guest", "u"]


async def test_where_nobody_may_come(site, client):
    site.add_user("u")
    assert (await stage(site, Row(), batch=f"{ROOT}/none/w/0")).status_code == 404
    assert (await commit(site, user="u")).status_code == 401
    assert (await site.ask("DELETE", BATCH, user="u")).status_code == 401
    assert (await site.get(f"{ROOT}/%2F", "u")).status_code == 401


@pytest.fixture
def narrow(site):
    """Set limits that are soon reached."""

    def set_limits(**limits):
        site.broker.batches.limits = BatchLimits(**limits)

    return set_limits


async def test_limits_are_named(site, client, narrow):
    narrow(
        staged_bytes_max=5000, commit_bytes_max=3000, parts_max=2, writers_max=1,
        message_bytes_max=4000,
    )  # fmt: skip
    large = Row(value=b"x" * 3000)
    error = await told(stage(site, large), 413)
    assert "use smaller batches" in error["reason"]
    error = await told(stage(site, Row(value=b"x" * 4001)), 400)
    assert "larger than max size 4000" in error["reason"]
    error = await told(post(site, f"{BATCH}/parts/p", chunk(Row())[:16] + b"\xff" * 20), 413)
    assert "a chunk of" in error["reason"]
    half = Row(value=b"x" * 1900)
    await told(stage(site, half, part="a"), 201)
    await told(stage(site, half, part="b"), 201)
    assert "2 parts are staged" in (await told(stage(site, half, part="c"), 429))["reason"]
    assert "use smaller batches" in (await told(commit(site, "a", "b"), 413))["reason"]
    other = f"{ROOT}/%2F/other/0"
    await told(commit(site, "a"), 200)
    answer = await stage(site, Row(), batch=other)
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "10"
    assert "there are 1 writers already" in answer.json()["reason"]
    await told(stage(site, half, batch=f"{ROOT}/%2F/w/1"), 201)
    two = [half, Row(value=b"x" * 500)]
    await told(stage(site, *two, batch=f"{ROOT}/%2F/w/2"), 201)
    await site.ask("DELETE", f"{ROOT}/%2F/w/1")
    narrow(staged_bytes_max=3000)
    site.broker.batches.find("/").limits = site.broker.batches.limits
    error = await told(stage(site, half, batch=f"{ROOT}/%2F/w/1"), 429)
    assert "commit or abort batches first" in error["reason"]


async def test_copies_in_queues_count(site, client, narrow):
    narrow(commit_bytes_max=3000)
    for name in ("a", "b"):
        client.declare(name, durable=True)
        client.call(commands.Queue.Bind(0, name, "amq.fanout", ""))
    await told(stage(site, Row("", b"x" * 1800, "amq.fanout")), 201)
    error = await told(commit(site, "p"), 413)
    assert "in its queues: use smaller batches" in error["reason"]
    assert bodies(client, "a") == []


async def test_rates_and_alarms_hold_uploads_back(site, client):
    site.administration.set_user_limits("guest", {"publish-rate": 1, "publish-burst": 2})
    await told(stage(site, *[Row()] * 9), 201)
    answer = await stage(site, Row(), part="o")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert (await commit(site, "p")).status_code == 200


async def test_usage_and_counters_are_those_of_publishes(site, client):
    client.call(commands.Queue.Bind(0, "q", "amq.topic", "q"))
    rows = [Row(exchange="amq.topic"), Row("other", exchange="amq.topic")]
    await stage(site, *rows)
    exchange = site.broker.vhosts["/"].exchanges["amq.topic"]
    assert exchange.counters.value(PUBLISH_IN) == 0
    await commit(site, "p")
    counted = [exchange.counters.value(each) for each in (PUBLISH_IN, PUBLISH_OUT, DROP_UNROUTABLE)]
    assert counted == [2, 1, 1]
    assert site.broker.vhosts["/"].counters.value(PUBLISH) == 2
    assert site.stage.queue("q").counters.value(PUBLISH) == 1
    usage = {account.name: each for account, each in site.broker.usage.take().items()}
    assert usage["guest"].messages_in == 2


async def test_a_body_is_given_back_as_it_is_taken_apart(site, client):
    budget = site.app._app._app
    assert isinstance(budget, BodyBudget)
    budget._left = 40_000
    one = chunk(*[Row(value=b"x" * 1000)] * 10)

    async def pieces():
        for _ in range(20):
            yield one

    assert (await told(post(site, f"{BATCH}/parts/p", pieces()), 201))["rows"] == 200
    assert budget._left == 40_000
    huge = pack_chunk(
        1,
        exchange=repeated(b"", 1),
        routing_key=repeated(b"q", 1),
        header=repeated(PERSISTENT_HEADER, 1),
        value=row_bytes([bytes(50_000)]),
    )
    assert (await post(site, f"{BATCH}/parts/o", huge)).status_code == 503
    assert budget._left == 40_000


async def test_a_deleted_vhost_takes_its_batches_with_it(site, client):
    site.administration.add_vhost("v")
    site.permit("guest", "v")
    there = f"{ROOT}/v/w/0"
    await told(stage(site, Row(), batch=there), 201)
    site.administration.delete_vhost("v")
    site.stage.run()
    assert (await stage(site, Row(), batch=there)).status_code == 404
    site.administration.add_vhost("v")
    site.permit("guest", "v")
    assert await site.json(f"{ROOT}/v") == []
    assert (await told(commit(site, "p", batch=there), 404))["error"] == "not_found"


async def test_an_administrator_forgets_a_writer(site, client):
    await stage(site, Row())
    await commit(site, "p")
    await stage(site, Row(), batch=f"{ROOT}/%2F/w/1")
    assert [row["writer"] for row in await batch_list(site.context, vhost="/")] == ["w"]
    async with site.working():
        await batch_delete(site.context, vhost="/", writer="w", user="guest")
    assert await batch_list(site.context, vhost="/") == []
    assert (await told(stage(site, Row()), 201))["outcome"] == "staged"
