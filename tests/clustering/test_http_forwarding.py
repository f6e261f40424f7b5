"""HTTP clients read, pull and lease at any node: the leader of the messages answers."""

import asyncio

import aio_pika
import pytest

from leveret.clustering import http_forwarding
from leveret.links.errors import StreamFailedError
from leveret.mgmt_ui.api import forwarding
from leveret.mgmt_ui.http_connections import AnswerCutError
from leveret.ports.definitions import PermissionDefinition, UserDefinition
from leveret.ports.link_kinds import FORWARD_HTTP
from tests.clustering.http import Visit, ask, refused, serve_http, told, values
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import connected
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
KEPT = {"x-retention": "1d"}
TOPIC, QUEUE, LEASES = "/topics/%2F/q", "/queues/%2F/q", "/leases/%2F/q"


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        for node in cluster.nodes:
            serve_http(node)
        yield cluster


@pytest.fixture
def here(cluster):
    """A node that leads nothing."""
    return cluster.nodes[FIRST]


async def publish(node, name, bodies):
    channel = await connected(node)
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=2)
        await channel.default_exchange.publish(message, name)


async def filled(cluster, bodies, *, leader=OTHER, **arguments):
    await cluster.add_queue("q", leader=leader, durable=True, arguments=arguments)
    await publish(cluster.nodes[leader], "q", bodies)


BODIES = [b"%d" % number for number in range(5)]


async def test_bounds_are_those_of_the_leader(cluster, here):
    await filled(cluster, BODIES, **KEPT)
    answer = await told(here, "GET", f"{TOPIC}/offsets")
    assert answer["partitions"] == [{"partition": 0, "first": 0, "end": 5}]
    asked = await told(here, "GET", f"{TOPIC}/offsets", time=1, sizes="true")
    at_leader = await told(cluster.nodes[OTHER], "GET", f"{TOPIC}/offsets", time=1, sizes="true")
    assert asked == at_leader
    assert asked["partitions"][0]["offset"] == 0
    assert asked["partitions"][0]["bytes"] > 0


async def test_records_are_read(cluster, here):
    await filled(cluster, BODIES, **KEPT)
    answer = await ask(here, "GET", f"{TOPIC}/partitions/0/records", offset=1, columns="value")
    assert answer.headers["content-type"] == "application/vnd.leveret.chunk"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert values(answer.content) == BODIES[1:]
    several = await ask(here, "GET", f"{TOPIC}/partitions/0/records", offset=0, rows=2, chunks=9)
    assert values(several.content) == BODIES


async def test_what_the_leader_refuses_is_refused(cluster, here):
    await filled(cluster, BODIES, **KEPT)
    records = f"{TOPIC}/partitions/0/records"
    answer = await ask(here, "GET", records, offset=9)
    assert (answer.status_code, answer.json()["end"]) == (416, 5)
    assert await refused(here, "GET", records) == (400, "bad_request")
    assert await refused(here, "GET", f"{TOPIC}/partitions/7/records", offset=0) == (
        404,
        "not_found",
    )


async def test_a_long_poll_ends_with_the_next_message(cluster, here):
    await filled(cluster, [], **KEPT)
    visit = Visit(here, "GET", f"{TOPIC}/partitions/0/records", "offset=0&wait=20000")
    leader = cluster.nodes[OTHER].broker
    await eventually(lambda: leader.range_reads._waiting)
    await publish(here, "q", [b"news"])
    await visit.task
    assert values(b"".join(visit.pieces)) == [b"news"]


async def test_messages_are_pulled_and_settled_at_different_nodes(cluster, here):
    await filled(cluster, BODIES)
    third = cluster.nodes[THIRD]
    pulled = await told(here, "POST", f"{QUEUE}/receive", {"count": 3})
    assert [each["payload"] for each in pulled["messages"]] == ["0", "1", "2"]
    handles = [each["receipt_handle"] for each in pulled["messages"]]

    async def outcome(node, verb, at, **asked):
        row = await told(
            node, "POST", f"{QUEUE}/{verb}", {"receipt_handles": [handles[at]], **asked}
        )
        return row["results"][0]["result"]

    assert await outcome(third, "extend", 0, visibility_timeout_ms=60_000) == "ok"
    assert await outcome(third, "ack", 0) == "ok"
    assert await outcome(here, "ack", 0) == "stale"
    assert await outcome(cluster.nodes[OTHER], "nack", 1) == "ok"
    again = await told(third, "POST", f"{QUEUE}/receive", {"count": 1})
    assert [(each["payload"], each["redelivered"]) for each in again["messages"]] == [("1", True)]


async def test_a_lease_is_taken_read_and_settled_at_different_nodes(cluster, here):
    await filled(cluster, BODIES)
    leader, third = cluster.nodes[OTHER], cluster.nodes[THIRD]
    assert (await told(here, "GET", LEASES))["ready"] == 5
    leased = await told(here, "POST", f"{LEASES}/job/1", {"messages": 3})
    assert leased["ranges"] == {"0": [[0, 3]]}
    assert await told(third, "POST", f"{LEASES}/job/1") == leased
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    assert (await told(leader, "PUT", f"{LEASES}/job/1", known))["messages"] == 3
    read = await ask(third, "GET", f"{LEASES}/job/1/partitions/0/records", offset=0)
    assert values(read.content) == BODIES[:3]
    settled = await told(leader, "POST", f"{LEASES}/job/1/settle", known)
    assert settled == {"settled": 3, "missing": 0}
    await told(here, "POST", f"{LEASES}/job/2", {"messages": 1})
    assert await told(third, "DELETE", f"{LEASES}/job") == {"released": 1}


async def test_permissions_are_those_of_the_user(cluster, here):
    await filled(cluster, BODIES, **KEPT)
    for node in cluster.nodes:
        node.broker.access.put_user(UserDefinition("app", "x"))
        node.broker.access.put_permission(PermissionDefinition("/", "app", "", "", "^other$"))
    records, options = f"{TOPIC}/partitions/0/records", {"auth": ("app", "app"), "offset": 0}
    assert await refused(here, "GET", records, **options) == (403, "forbidden")
    # The leader checks them, too: it may know of a change before the others do.
    here.broker.access.put_permission(PermissionDefinition("/", "app", "", "", ".*"))
    assert await refused(here, "GET", records, **options) == (403, "forbidden")
    cluster.nodes[OTHER].broker.access.remove_user("app")
    assert await refused(here, "GET", records, **options) == (401, "not_authorized")


async def test_a_user_of_another_source_has_the_rights_that_the_asked_node_knows(
    cluster, here, monkeypatch
):
    await filled(cluster, BODIES, **KEPT)
    here.broker.access.put_user(UserDefinition("token", "x"))
    here.broker.access.put_permission(PermissionDefinition("/", "token", "", "", "^q$"))
    records, options = f"{TOPIC}/partitions/0/records", {"auth": ("token", "x"), "offset": 0}
    assert await refused(here, "GET", records, **options) == (401, "not_authorized")
    monkeypatch.setattr(forwarding, "InternalRights", type(None))
    answer = await ask(here, "GET", records, **options)
    assert values(answer.content) == BODIES
    assert await refused(here, "GET", "/topics/%2F/none/partitions/0/records", **options) == (
        403,
        "forbidden",
    )


# -- clients that hang up


async def test_a_reader_that_hangs_up_leaves_nothing_at_the_leader(cluster, here):
    await filled(cluster, [], **KEPT)
    leader = cluster.nodes[OTHER]
    visit = Visit(here, "GET", f"{TOPIC}/partitions/0/records", "offset=0&wait=20000")
    await eventually(lambda: leader.broker.range_reads._waiting)
    visit.hang_up()
    await visit.task
    await eventually(lambda: not leader.broker.range_reads._waiting)
    assert (here.http._asked, visit.status) == (0, None)
    await eventually(lambda: leader.http._served == 0)


async def test_a_receive_whose_client_hangs_up_takes_nothing(cluster, here):
    await filled(cluster, [])
    leader = cluster.nodes[OTHER]
    visit = Visit(here, "POST", f"{QUEUE}/receive", body={"wait_ms": 20_000})
    await eventually(lambda: leader.broker.pulls.under_way)
    visit.hang_up()
    await visit.task
    await eventually(lambda: not leader.broker.pulls.under_way)
    await publish(leader, "q", BODIES)
    assert leader.queue("q").leased_count == 0


async def test_a_lease_whose_client_hangs_up_is_not_made(cluster, here):
    await filled(cluster, [])
    leader = cluster.nodes[OTHER]
    visit = Visit(here, "POST", f"{LEASES}/job/1", body={"wait_ms": 20_000})
    await eventually(lambda: any(each.is_leasing for each in leader.broker.batch_leases))
    visit.hang_up()
    await visit.task
    await eventually(lambda: not any(each.is_leasing for each in leader.broker.batch_leases))


# -- back-pressure and failures

LARGE = [bytes([number]) * 600_000 for number in range(12)]


async def test_a_slow_client_keeps_the_answer_at_the_leader(cluster, here):
    await filled(cluster, LARGE, **KEPT)
    leader = cluster.nodes[OTHER]
    visit = Visit(here, "GET", f"{TOPIC}/partitions/0/records", "offset=0&bytes=600000&chunks=99")
    visit.may_take.clear()
    await eventually(lambda: visit.status == 200)
    await asyncio.sleep(0.2)  # in which all of it would have come
    assert leader.broker.range_reads._held_bytes > 0
    assert not visit.pieces
    visit.may_take.set()
    await visit.task
    assert visit.is_whole
    assert values(b"".join(visit.pieces)) == LARGE
    assert leader.broker.range_reads._held_bytes == 0


async def test_an_answer_is_cut_where_the_leader_is_lost(cluster, here):
    await filled(cluster, LARGE, **KEPT)
    visit = Visit(here, "GET", f"{TOPIC}/partitions/0/records", "offset=0&bytes=600000&chunks=99")
    visit.may_take.clear()
    await eventually(lambda: visit.status == 200)
    await cluster.nodes[OTHER].links.close()
    visit.may_take.set()
    with pytest.raises(AnswerCutError):
        await visit.task
    assert not visit.is_whole


async def test_the_next_leader_answers(cluster, here):
    await filled(cluster, BODIES, **KEPT)
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    visit = Visit(here, "GET", f"{TOPIC}/partitions/0/records", "offset=5&wait=20000")
    await eventually(lambda: cluster.nodes[OTHER].broker.range_reads._waiting)
    await cluster.nodes[OTHER].kill()
    leader = await cluster.leader("q", among=(FIRST, THIRD))
    await eventually(lambda: leader.broker.range_reads._waiting)
    await publish(leader, "q", [b"news"])
    await visit.task
    assert values(b"".join(visit.pieces)) == [b"news"]


async def test_readers_and_receivers_at_a_leader_go_on_at_the_next_one(cluster):
    """The node that is asked has led the queue, and hands it over."""
    await filled(cluster, BODIES, **KEPT)
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    before = cluster.nodes[OTHER]
    reading = Visit(before, "GET", f"{TOPIC}/partitions/0/records", "offset=5&wait=20000")
    taken = await told(before, "POST", f"{QUEUE}/receive", {"count": 9})
    receiving = Visit(before, "POST", f"{QUEUE}/receive", body={"wait_ms": 20_000})
    await eventually(lambda: before.broker.range_reads._waiting)
    await eventually(lambda: before.broker.pulls.under_way)
    await before.hand_overs.leave(10)
    leader = await cluster.leader("q", among=(FIRST, THIRD))
    await receiving.task
    assert b"".join(receiving.pieces) == b'{"messages":[]}', "it is asked again, and forwarded"
    await eventually(lambda: leader.broker.range_reads._waiting)
    await publish(leader, "q", [b"news"])
    await reading.task
    assert values(b"".join(reading.pieces)) == [b"news"]
    handles = [each["receipt_handle"] for each in taken["messages"]]
    results = (await told(before, "POST", f"{QUEUE}/ack", {"receipt_handles": handles}))["results"]
    assert {each["result"] for each in results} == {"stale"}
    again = await told(before, "POST", f"{QUEUE}/receive", {"count": 9})
    assert len(again["messages"]) == 6


async def test_a_lease_is_lost_with_its_leader_and_taken_again(cluster, here):
    await filled(cluster, BODIES)
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    leased = await told(here, "POST", f"{LEASES}/job/1", {"messages": 3})
    await cluster.nodes[OTHER].kill()
    leader = await cluster.leader("q", among=(FIRST, THIRD))
    other = next(each for each in cluster.nodes if each.is_up and each is not leader)
    records = f"{LEASES}/job/1/partitions/0/records"
    assert await refused(other, "GET", records, offset=0) == (410, "lease_not_found")
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    again = await told(other, "PUT", f"{LEASES}/job/1", known)
    assert (again["messages"], again["missing"]) == (3, 0)
    read = await ask(other, "GET", records, offset=0)
    assert values(read.content) == BODIES[:3]
    assert (await told(other, "POST", f"{LEASES}/job/1/settle", known))["settled"] == 3


async def test_what_another_may_have_done_is_not_asked_twice(cluster, here, monkeypatch):
    await filled(cluster, [])
    leader = cluster.nodes[OTHER]
    visit = Visit(here, "POST", f"{QUEUE}/receive", body={"wait_ms": 20_000})
    await eventually(lambda: leader.broker.pulls.under_way)
    await leader.links.close()
    await visit.task
    assert visit.status == 503


async def test_without_a_leader_it_is_refused_after_a_while(cluster, here, monkeypatch):
    monkeypatch.setattr(forwarding, "LEADER_POLLS", 3)
    await cluster.add_queue("q", leader=OTHER, replicas=(OTHER,), durable=True, arguments=KEPT)
    await cluster.nodes[OTHER].kill()
    answer = await ask(here, "GET", f"{TOPIC}/partitions/0/records", offset=0)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_request_is_never_forwarded_twice(cluster, here, monkeypatch):
    monkeypatch.setattr(forwarding, "LEADER_POLLS", 3)
    await filled(cluster, BODIES, **KEPT)
    (place,) = here.queue("q").places
    place.leader = (THIRD, place.leader[1])  # which this node takes for the leader
    records = f"{TOPIC}/partitions/0/records"
    assert await refused(here, "GET", records, offset=0) == (503, "service_unavailable")


async def test_requests_under_way_are_bounded(cluster, here, monkeypatch):
    await filled(cluster, BODIES, **KEPT)
    records = f"{TOPIC}/partitions/0/records"
    monkeypatch.setattr(http_forwarding, "ASKED_MAX", 0)
    assert await refused(here, "GET", records, offset=0) == (429, "too_many_requests")
    monkeypatch.undo()
    monkeypatch.setattr(http_forwarding, "SERVED_MAX", 0)
    assert await refused(here, "GET", records, offset=0) == (429, "too_many_requests")


async def test_a_leader_that_is_starting_is_asked_again(cluster, here, monkeypatch):
    await filled(cluster, BODIES, **KEPT)
    leader = cluster.nodes[OTHER].http
    make, leader._make = leader._make, None
    visit = Visit(here, "POST", f"{QUEUE}/receive", body={})
    await eventually(lambda: here.http._asked)
    leader.serve_by(make)
    await visit.task
    assert visit.status == 200


async def test_a_mistake_of_the_leader_is_told(cluster, here):
    async def mistaken(_scope, _receive, _send):
        raise ArithmeticError

    await filled(cluster, BODIES, **KEPT)
    cluster.nodes[OTHER].http.serve_by(lambda: mistaken)
    records = f"{TOPIC}/partitions/0/records"
    assert await refused(here, "GET", records, offset=0) == (500, "internal_server_error")


@pytest.mark.parametrize("opening", [b"", b"{}", b"GET /", b"x" * 5000])
async def test_a_stream_that_begins_with_no_request_is_refused(cluster, here, opening):
    await eventually(lambda: here.links.peer(OTHER).is_connected)
    stream = here.links.peer(OTHER).open_stream(FORWARD_HTTP, opening)
    with pytest.raises(StreamFailedError) as failed:
        await stream.receive()
    assert failed.value.code == http_forwarding.BAD_REQUEST
