"""Batch leases by HTTP, asked in-process."""

import pytest
from pamqp import commands

from leveret.core.definitions.administration import AdministrationError
from leveret.features.batch_leases.commands import lease_release
from leveret.features.batch_leases.rules import RANGES_MAX
from leveret.mgmt_ui.api import leases
from leveret.range_reader import parse_chunk
from leveret.range_reader.chunk import chunk_bytes
from tests.mgmt_ui.api.test_pull import PullSite
from tests.support.client import Client

URL = "/api/leveret/leases/%2F/q"


class LeaseSite(PullSite):
    """A site whose clock goes on while it is asked."""

    step_seconds = 0.001

    async def ask_for(self, method, path="", body=None, user="app", *, meanwhile=None, **query):
        """Return the answer; `meanwhile` is called once somebody waits for messages."""
        path = path if path.startswith("/api") else f"{URL}{path}"
        asking = self.ask(method, path, body, user, params=query)
        leases = self.broker.batch_leases
        return await self.ask_meanwhile(
            asking, lambda: any(each.is_leasing for each in leases), meanwhile
        )

    async def told(self, method, path="", body=None, **options):
        answer = await self.ask_for(method, path, body, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, method, path="", body=None, user="app", **query):
        answer = await self.ask_for(method, path, body, user, **query)
        assert answer.json().keys() == {"error", "reason"}
        return answer.status_code, answer.json()["error"], answer.json()["reason"]

    async def bodies(self, path, **query):
        answer = await self.ask_for("GET", path, **query)
        assert answer.status_code == 200, answer.text
        data, found, chunks = answer.content, [], 0
        while data:
            size = chunk_bytes(data[:24])
            chunk = parse_chunk(data[:size])
            found += [chunk.columns["value"][row] for row in range(chunk.rows)]
            data, chunks = data[size:], chunks + 1
        return found, chunks


@pytest.fixture
def site():
    site = LeaseSite()
    site.client.declare("q", durable=True)
    yield site
    assert site.stage.reported == []
    assert site.broker.range_reads._held_bytes == 0


async def test_a_batch_is_leased_read_and_settled(site):
    site.client.publish("q", *(b"%d" % n for n in range(5)))
    shown = await site.told("GET")
    assert shown["ready"] == 5
    leased = await site.told("POST", "/job/1", {"messages": 3})
    assert leased == {
        "log": shown["log"],
        "messages": 3,
        "bytes": leased["bytes"],
        "ranges": {"0": [[0, 3]]},
    }
    assert await site.told("POST", "/job/1") == leased
    records = "/job/1/partitions/0/records"
    assert await site.bodies(records, offset=0) == ([b"0", b"1", b"2"], 1)
    assert await site.bodies(records, offset=1, rows=1, chunks=9) == ([b"1", b"2"], 2)
    assert await site.bodies(records, offset=0, columns="value", rows=1) == ([b"0"], 1)
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    again = await site.told("PUT", "/job/1", known)
    assert again == {"messages": 3, "missing": 0, "ranges": {"0": [[0, 3]]}}
    assert await site.told("POST", "/job/1/settle", known) == {"settled": 3, "missing": 0}
    assert await site.told("POST", "/job/1/settle", known) == {"settled": 0, "missing": 0}
    assert (await site.told("POST", "/job/2"))["ranges"] == {"0": [[3, 5]]}
    assert (await site.told("POST", "/job/3"))["ranges"] == {}
    assert await site.told("DELETE", "/job") == {"released": 2}
    assert await site.told("DELETE", "/job") == {"released": 0}
    assert site.stage.queue("q").message_count == 2


async def test_holders_are_listed_and_released_by_an_operator(site):
    site.client.publish("q", b"1", b"2", b"3")
    for number in (1, 2):
        await site.told("POST", f"/job/{number}", {"messages": 1})
    path = "/api/leveret/leases/%2F"
    assert [row["holder"] for row in await site.told("GET", path)] == ["job"]
    (row,) = await site.json(path)
    assert row["ends_at"] > site.stage.now
    del row["ends_at"], row["bytes"]
    assert row == {"queue": "q", "holder": "job", "user": "app", "leases": [1, 2], "messages": 2}
    ask = {"vhost": "/", "queue": "q", "holder": "job"}
    with pytest.raises(AdministrationError, match="no holder 'job'"):
        await lease_release(site.context, **ask, user="guest")
    assert await lease_release(site.context, **ask) == {"released": 2}
    assert await site.json(path) == []


async def test_a_lease_waits_for_messages(site):
    def publish():
        site.client.publish("q", b"1")

    leased = await site.told("POST", "/job/1", {"wait_ms": 20_000}, meanwhile=publish)
    assert leased["messages"] == 1


async def test_what_is_read_and_settled_is_counted(site):
    site.client.publish("q", b"1", b"2")
    await site.told("POST", "/job/1")
    await site.bodies("/job/1/partitions/0/records", offset=0)
    await site.told("POST", "/job/1/settle")
    counted = site.stage.queue("q").counters.counted()
    assert (counted["deliver"], counted["ack"]) == (2, 2)


async def test_a_deleted_queue_is_told_to_who_waits(site):
    def delete():
        site.client.call(commands.Queue.Delete(0, "q"))

    answer = await site.ask_for("POST", "/job/1", {"wait_ms": 20_000}, meanwhile=delete)
    assert (answer.status_code, answer.json()["reason"]) == (404, "queue_not_found")


async def test_leases_that_are_not_known(site):
    site.client.publish("q", b"1")
    status, error, _ = await site.refused("GET", "/job/1/partitions/0/records", offset=0)
    assert (status, error) == (410, "lease_not_found")
    assert (await site.refused("POST", "/job/1/settle"))[0] == 410
    await site.told("POST", "/job/1")
    assert (await site.refused("GET", "/job/2/partitions/0/records", offset=0))[0] == 410
    missing = await site.refused("GET", "/job/1/partitions/7/records", offset=0)
    assert missing == (404, "not_found", "partition_not_found")
    await site.told("POST", "/job/1/settle")
    assert (await site.refused("POST", "/job/1"))[:2] == (409, "lease_settled")


async def test_another_queue_of_the_same_name_has_other_offsets(site):
    site.client.publish("q", b"1")
    leased = await site.told("POST", "/job/1")
    site.client.call(commands.Queue.Delete(0, "q"))
    site.client.declare("q", durable=True)
    site.client.publish("q", b"2")
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    for method, path in (("PUT", "/job/1"), ("POST", "/job/1/settle")):
        status, error, reason = await site.refused(method, path, known)
        assert (status, error) == (412, "precondition_failed")
        assert "declared again" in reason
    assert site.stage.queue("q").message_count == 1


async def test_a_holder_belongs_to_its_user(site):
    site.add_user("other")
    site.permit("other", "/")
    site.client.publish("q", b"1")
    await site.told("POST", "/job/1")
    assert (await site.told("POST", "/job/1", user="other"))["messages"] == 0
    settled = await site.told("POST", "/job/1/settle", user="other")
    assert settled == {"settled": 0, "missing": 0}
    assert await site.told("DELETE", "/job", user="other") == {"released": 0}
    assert site.stage.queue("q").leased_count == 1


async def test_who_may_not_read_leases_nothing(site):
    site.add_user("blind")
    site.permit("blind", "/", ".*", ".*", "^$")
    site.add_user("stranger")
    site.client.publish("q", b"1")
    for method, path in [
        ("GET", ""),
        ("POST", "/job/1"),
        ("PUT", "/job/1"),
        ("POST", "/job/1/settle"),
        ("GET", "/job/1/partitions/0/records"),
        ("DELETE", "/job"),
    ]:
        for user in ("blind", "stranger"):
            status, error, _ = await site.refused(method, path, None, user)
            assert (status, error) == (401, "not_authorised"), (method, path, user)
    assert site.stage.queue("q").consumer_count == 0


async def test_what_cannot_be_leased_is_refused(site):
    site.client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    stream, none = URL.replace("/q", "/s"), URL.replace("/q", "/none")
    assert (await site.refused("POST", f"{stream}/job/1"))[0] == 400
    assert await site.refused("POST", f"{none}/job/1") == (404, "not_found", "queue_not_found")
    assert (await site.refused("POST", "/api/leveret/leases/none/q/job/1"))[0] == 404
    for body in ({"messages": 0}, {"count": 1}, {"wait_ms": "x"}):
        assert (await site.refused("POST", "/job/1", body))[0] == 400
    assert (await site.refused("POST", "/job/x"))[0] == 400
    assert (await site.refused("GET", "/job/1/partitions/0/records", offset="x"))[0] == 400
    assert (await site.refused("GET", "/job/1/partitions/0/records", offset=0, wait=1))[0] == 400
    log = (await site.told("GET"))["log"]
    most = [[2 * n, 2 * n + 1] for n in range(RANGES_MAX)]
    assert (await site.told("PUT", "/job/1", {"log": log, "ranges": {"0": most}}))["messages"] == 0
    most.append([1 << 20, 1 << 21])
    assert (await site.refused("PUT", "/job/1", {"log": log, "ranges": {"0": most}}))[0] == 400


async def test_exclusive_consumers_and_queues_stay_alone(site):
    client = Client(site.stage).open()
    client.consume("q", "c", exclusive=True)
    assert (await site.refused("POST", "/job/1"))[:2] == (403, "forbidden")
    client.declare("own", exclusive=True)
    assert (await site.refused("POST", f"{URL[:-1]}own/job/1"))[0] == 400


async def test_consume_rates_hold_for_leases(site):
    site.client.declare("slow", arguments={"x-consume-rate": 1, "x-consume-burst": 2})
    site.client.publish("slow", *[b"x"] * 6)
    slow = f"{URL[:-1]}slow/job"
    await site.told("POST", f"{slow}/1", {"messages": 4})
    assert (await site.bodies(f"{slow}/1/partitions/0/records", offset=0))[0] == [b"x"] * 4
    answer = await site.ask_for("POST", f"{slow}/2")
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert (await site.refused("GET", f"{slow}/1/partitions/0/records", offset=0))[0] == 429


async def test_not_all_connections_wait_for_messages(site, monkeypatch):
    monkeypatch.setattr(leases, "WAITING_MAX", 0)
    assert (await site.refused("POST", "/job/1"))[0] == 429
