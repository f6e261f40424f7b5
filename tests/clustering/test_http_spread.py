"""HTTP clients of queues whose partitions several nodes lead, at any node."""

import aio_pika
import pytest

from leveret.features.topics.rows import describe_topic
from leveret.mgmt_ui.api import forwarding
from tests.clustering.http import Visit, ask, refused, serve_http, told, values
from tests.clustering.nodes import BrokerCluster
from tests.clustering.test_takeover import connected
from tests.support.waiting import eventually

FIRST, OTHER, THIRD = 0, 1, 2
TOPIC, QUEUE, LEASES = "/topics/%2F/q", "/queues/%2F/q", "/leases/%2F/q"
PARTITIONS = {"x-partitions": 3, "x-partition-by": "round-robin"}
BODIES = [b"%d" % number for number in range(9)]


@pytest.fixture
async def cluster(tmp_path):
    async with BrokerCluster(tmp_path) as cluster:
        for node in cluster.nodes:
            serve_http(node)
        yield cluster


@pytest.fixture(params=["a leader", "another node"])
def here(cluster, request):
    """The node that is asked: it leads one partition or none."""
    return cluster.nodes[FIRST if request.param == "a leader" else THIRD]


@pytest.fixture
async def queue(cluster):
    await cluster.add_queue("q", leaders=(FIRST, OTHER, OTHER), durable=True, arguments=PARTITIONS)
    for node in cluster.nodes:
        await eventually(lambda node=node: all(map(is_known, node.queue("q").places)))


def is_known(place):
    return place.is_led_here or place.leading_node is not None


async def publish(node, bodies):
    channel = await connected(node)
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=2)
        await channel.default_exchange.publish(message, "q")


async def received(node, **asked):
    answer = await told(node, "POST", f"{QUEUE}/receive", asked)
    return answer["messages"]


async def test_bounds_are_those_of_all_leaders(cluster, here):
    kept = {**PARTITIONS, "x-retention": "1d"}
    await cluster.add_queue("q", leaders=(FIRST, OTHER, OTHER), durable=True, arguments=kept)
    await publish(here, BODIES)
    rows = (await told(here, "GET", f"{TOPIC}/offsets"))["partitions"]
    assert rows == [{"partition": number, "first": 0, "end": 3} for number in range(3)]
    found = []
    for number in range(3):
        answer = await ask(here, "GET", f"{TOPIC}/partitions/{number}/records", offset=0)
        found += values(answer.content)
    assert sorted(found) == BODIES


async def test_a_topic_is_described_with_all_partitions(cluster, queue, here):
    await publish(here, BODIES)
    groups = here.broker.groups
    told = await describe_topic(here.queue("q"), groups)
    rows = told["partition_details"]
    found = [(row["partition"], row["messages"], row["first"], row["end"]) for row in rows]
    assert found == [(number, 3, 0, 3) for number in range(3)]
    assert all(row["bytes"] > 0 and row["committed"] == 3 for row in rows)
    await cluster.nodes[OTHER].kill()
    rows = (await describe_topic(here.queue("q"), groups))["partition_details"]
    assert [row["partition"] for row in rows] == [0, 1, 2]


async def test_all_messages_are_received_and_settled(queue, here):
    await publish(here, BODIES)
    found = []
    while messages := await received(here, count=2):
        found += messages
    assert sorted(each["payload"].encode() for each in found) == BODIES
    handles = [each["receipt_handle"] for each in found]
    asked = {"receipt_handles": [*handles, "x"]}
    results = (await told(here, "POST", f"{QUEUE}/ack", asked))["results"]
    assert [each["receipt_handle"] for each in results] == [*handles, "x"]
    assert [each["result"] for each in results] == ["ok"] * len(handles) + ["invalid"]
    stale = (await told(here, "POST", f"{QUEUE}/nack", {"receipt_handles": handles}))["results"]
    assert {each["result"] for each in stale} == {"stale"}


async def test_a_receive_waits_at_all_leaders(cluster, queue, here):
    visit = Visit(here, "POST", f"{QUEUE}/receive", body={"wait_ms": 20_000})
    leaders = [cluster.nodes[number].broker for number in (FIRST, OTHER)]
    await eventually(lambda: all(leader.pulls.under_way for leader in leaders))
    await publish(here, [b"news"])
    await visit.task
    assert b'"news"' in b"".join(visit.pieces)
    assert not any(leader.pulls.under_way for leader in leaders)


async def test_a_receive_is_given_no_more_than_it_asked_for(cluster, queue, here, monkeypatch):
    leaders = [cluster.nodes[number].broker for number in (FIRST, OTHER)]
    visit = Visit(here, "POST", f"{QUEUE}/receive", body={"wait_ms": 20_000})
    await eventually(lambda: all(leader.pulls.under_way for leader in leaders))
    publishing = [publish(cluster.nodes[number], BODIES) for number in (FIRST, OTHER)]
    for each in publishing:
        await each
    await visit.task
    left = await received(here, count=1)
    found = [*b"".join(visit.pieces).split(b"payload_bytes")[1:], *left]
    assert len(found) == 2
    ready = await told(here, "GET", LEASES)
    assert ready["ready"] == 2 * len(BODIES) - 2


async def test_a_lease_is_of_all_leaders(queue, cluster, here):
    await publish(here, BODIES)
    assert (await told(here, "GET", LEASES))["ready"] == 9
    leased = await told(here, "POST", f"{LEASES}/job/1")
    assert leased["ranges"] == {str(number): [[0, 3]] for number in range(3)}
    assert leased["messages"] == 9
    third = cluster.nodes[THIRD]
    assert await told(third, "POST", f"{LEASES}/job/1", {"messages": 1}) == leased
    found = []
    for number in range(3):
        records = f"{LEASES}/job/1/partitions/{number}/records"
        found += values((await ask(here, "GET", records, offset=0)).content)
    assert sorted(found) == BODIES
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    again = await told(third, "PUT", f"{LEASES}/job/1", known)
    assert (again["messages"], again["missing"], again["ranges"]) == (9, 0, leased["ranges"])
    unknown = {**known, "ranges": {**leased["ranges"], "7": [[0, 5]]}}
    settled = await told(here, "POST", f"{LEASES}/job/1/settle", unknown)
    assert settled == {"settled": 9, "missing": 5}
    assert await told(here, "POST", f"{LEASES}/job/1/settle", known) == {"settled": 0, "missing": 0}
    assert (await told(here, "GET", LEASES))["ready"] == 0


async def test_a_lease_of_which_nobody_knows_is_gone(queue, here):
    assert await refused(here, "POST", f"{LEASES}/job/1/settle") == (410, "lease_not_found")
    assert await told(here, "DELETE", f"{LEASES}/job") == {"released": 0}
    none = await told(here, "POST", f"{LEASES}/job/1")
    assert (none["messages"], none["ranges"]) == (0, {})


async def test_a_lease_waits_at_all_leaders(cluster, queue, here):
    visit = Visit(here, "POST", f"{LEASES}/job/1", body={"wait_ms": 20_000})
    leaders = [cluster.nodes[number].broker for number in (FIRST, OTHER)]
    await eventually(
        lambda: all(any(each.is_leasing for each in one.batch_leases) for one in leaders)
    )
    await publish(here, [b"news"])
    await visit.task
    assert b'"messages":1' in b"".join(visit.pieces)


async def test_a_holder_ends_where_a_partition_gets_another_leader(cluster, queue, here):
    await publish(here, BODIES)
    leased = await told(here, "POST", f"{LEASES}/job/1")
    await cluster.nodes[OTHER].kill()
    for number in (1, 2):
        await eventually(
            lambda number=number: any(
                node.is_up and node.queue("q").places[number].is_led_here for node in cluster.nodes
            )
        )
    # Nobody shall read a part of the lease and settle the whole.
    records = f"{LEASES}/job/1/partitions/1/records"
    assert await refused(here, "GET", records, offset=0) == (410, "lease_not_found")
    known = {"log": leased["log"], "ranges": leased["ranges"]}
    again = await told(here, "PUT", f"{LEASES}/job/1", known)
    assert (again["messages"], again["missing"]) == (9, 0)
    assert len(values((await ask(here, "GET", records, offset=0)).content)) == 3
    assert (await told(here, "POST", f"{LEASES}/job/1/settle", known))["settled"] == 9


async def test_leases_come_back_when_their_leader_leads_no_more(cluster, queue):
    """A node that goes on living has handed a partition over."""
    first = cluster.nodes[FIRST]
    await publish(first, BODIES)
    await cluster.in_sync("q", FIRST, OTHER, THIRD)
    await told(first, "POST", f"{LEASES}/job/1")
    (part,) = first.queue("q").partitions
    assert part.leased_count == 3
    await first.hand_overs.leave(10)
    await eventually(lambda: not first.queue("q").partitions)
    assert not list(first.broker.batch_leases)
    again = await told(first, "POST", f"{LEASES}/job/2")
    assert again["ranges"] == {"0": [[0, 3]]}


async def test_an_answer_of_several_has_a_limit(queue, here, monkeypatch):
    monkeypatch.setattr(forwarding, "ANSWER_BYTES_MAX", 10)
    assert await refused(here, "GET", LEASES) == (503, "service_unavailable")
