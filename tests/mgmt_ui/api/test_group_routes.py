"""Consumer groups by HTTP: listed, shown, reset, committed for readers, and deleted."""

from types import SimpleNamespace

import pytest
from pamqp import commands

from tests.support.client import Client
from tests.support.site import Site

GROUPS = "/api/leveret/consumer-groups"
GROUP = f"{GROUPS}/%2F/views/billing"
STREAM = {"x-queue-type": "stream"}


@pytest.fixture
async def site(tmp_path):
    async with Site().running(tmp_path) as site:
        site.administration.add_vhost("other")
        yield site


@pytest.fixture
def consumer(site):
    """A member of `billing` that has settled two of four messages, and holds one."""
    consumer = Client(site.stage).open()
    consumer.declare("views", durable=True, arguments=STREAM)
    consumer.declare("quiet", durable=True, arguments=STREAM)
    consumer.prefetch(3)
    join(consumer, "views", "billing")
    consumer.publish("views", b"0", b"1", b"2", b"3")
    consumer.send(commands.Basic.Ack(2, multiple=True))
    consumer.deliveries()
    return consumer


def join(client, queue, group):
    client.consume(queue, group, arguments={"x-consumer-group": group})


def leave(client):
    client.send(commands.Channel.Close(200, "", 0, 0))


async def names(site, path, user="guest"):
    return [(row["queue"], row["name"]) for row in await site.json(f"{GROUPS}{path}", user)]


async def test_groups_are_listed_of_all_of_a_virtual_host_or_of_a_queue(site, consumer):
    join(consumer, "quiet", "audit")
    both = [("quiet", "audit"), ("views", "billing")]
    assert await names(site, "") == await names(site, "/%2F") == both
    assert await names(site, "/other") == []
    assert await names(site, "/%2F/views") == [("views", "billing")]
    assert await site.error(f"{GROUPS}/%2F/none") == (404, "not_found", "queue_not_found")
    page = await site.json(f"{GROUPS}?page=1&page_size=1&sort=lag&sort_reverse=true")
    assert ([row["name"] for row in page["items"]], page["total_count"]) == (["billing"], 2)
    [row] = await site.json(f"{GROUPS}/%2F/views")
    assert row == {
        "vhost": "/",
        "queue": "views",
        "name": "billing",
        "state": "stable",
        "members": 1,
        "partitions": 1,
        "lag": 2,
        "unacked": 2,
        "created_at": row["created_at"],
    }


async def test_a_group_is_shown_with_its_members_and_partitions(site, consumer):
    shown = await site.json(GROUP)
    [member], [partition] = shown["member_details"], shown["partition_details"]
    assert partition == {
        "partition": 0,
        "first": 0,
        "committed": 2,
        "end": 4,
        "lag": 2,
        "unacked": 2,
        "delayed": 0,
        "member": partition["member"],
        "revoked": False,
    }
    assert partition["member"].endswith("(1) billing")
    assert {key: member[key] for key in ("user", "channel", "tag", "partitions", "prefetch")} == {
        "user": "guest",
        "channel": 1,
        "tag": "billing",
        "partitions": [0],
        "prefetch": 3,
    }
    assert (member["unacked"], member["session_ms"], member["suspended"]) == (2, 300_000, False)
    assert await site.error(f"{GROUPS}/%2F/views/none") == (
        404,
        "not_found",
        "no consumer group 'none' of queue 'views'",
    )


async def test_several_partitions_are_shown_each_with_its_member(site, consumer):
    second = Client(site.stage).open()
    second.prefetch(1)
    second.consume("views", "other", arguments={"x-consumer-group": "billing"})
    queue = site.stage.queue("views")
    group = site.broker.groups.of_queue(queue)["billing"]
    group.attach(SimpleNamespace(number=1), group.subscriptions[0])
    shown = await site.json(GROUP)
    assert (shown["partitions"], shown["lag"], shown["state"]) == (2, 4, "stable")
    assert [row["partitions"] for row in shown["member_details"]] == [[0], [1]]
    assert [row["partition"] for row in shown["partition_details"]] == [0, 1]
    members = [row["member"].split()[-1] for row in shown["partition_details"]]
    assert members == ["billing", "other"]


async def test_a_reset_is_tried_and_then_made(site, consumer):
    async def reset(to, status=200, **more):
        answer = await site.ask("POST", f"{GROUP}/reset", {"to": to, **more})
        assert answer.status_code == status, answer.text
        return answer.json()

    told = [{"partition": 0, "before": 2, "after": 0}]
    assert await reset("earliest", dry_run=True) == told  # also while there are members
    assert "is in use" in (await reset("earliest", 400))["reason"]
    leave(consumer)
    assert await reset("earliest") == told
    assert "0 to 4, its end" in (await reset(1795884267383, 400))["reason"]
    assert "no partition '1'" in (await reset("earliest", 404, partitions=[1]))["reason"]
    await reset("earliest", 400, partitions=["0"])
    assert await reset("first", partitions=[0], dry_run=True) == [
        {"partition": 0, "before": 0, "after": 0}
    ]
    assert await reset(3) == [{"partition": 0, "before": 0, "after": 3}]
    assert (await site.json(GROUP))["lag"] == 1
    assert await reset("latest", dry_run=True) == [{"partition": 0, "before": 3, "after": 4}]
    assert "is no place in a queue" in (await reset("soon", 400))["reason"]
    await reset(None, 400)
    await reset([], 400)
    await reset("earliest", 400, dry_run=7)
    answer = await site.ask("POST", f"{GROUP}/reset", {})
    assert answer.json()["reason"] == "to is missing"


@pytest.fixture
def application(site):
    """A user without any tag who may read from `views`."""
    site.add_user("app")
    site.permit("app", "/", "^$", "^$", "^(views|plain|none)$")
    return "app"


async def commit(site, offsets, status=200, *, user="app", group="spark", queue="views"):
    """Return what a commit is answered, or the error and the reason of a refused one."""
    path = f"{GROUPS}/%2F/{queue}/{group}/offsets"
    answer = await site.ask("PUT", path, {"offsets": offsets}, user)
    assert answer.status_code == status, answer.text
    told = answer.json()
    return told if status == 200 else (told["error"], told["reason"])


async def test_a_reader_commits_offsets_without_a_management_tag(site, consumer, application):
    assert await commit(site, {"0": 1}) == [{"partition": 0, "before": 0, "after": 1}]
    assert await commit(site, {"0": 3}) == [{"partition": 0, "before": 1, "after": 3}]
    assert await commit(site, {"0": 2}) == [{"partition": 0, "before": 3, "after": 3}]
    assert await commit(site, {}) == []
    shown = await site.json(f"{GROUPS}/%2F/views/spark")
    assert (shown["state"], shown["members"], shown["lag"]) == ("empty", 0, 1)
    [partition] = shown["partition_details"]
    assert (partition["committed"], partition["end"], partition["lag"]) == (3, 4, 1)
    assert (partition["member"], partition["unacked"], partition["revoked"]) == (None, 0, False)
    assert await names(site, "/%2F/views") == [("views", "billing"), ("views", "spark")]


async def test_commits_are_no_news_for_the_audit_log(site, consumer, application):
    await commit(site, {"0": 1})
    assert (await site.json("/api/leveret/audit?operation=group."))["rows"] == []


async def test_commits_that_make_no_sense_are_refused(site, consumer, application):
    consumer.declare("plain", durable=True)
    for offsets, told in (
        ({"0": 5}, "the offset of partition 0 is from 0 to 4, its end"),
        ({"0": -1}, "the offset of partition 0 is from 0 to 4, its end"),
        ({"0": "1"}, "group.commit_offsets: offsets is an object, each value a whole number"),
        ({"0": 1.5}, "group.commit_offsets: offsets is an object, each value a whole number"),
        ({"0": True}, "group.commit_offsets: offsets is an object, each value a whole number"),
        ([1], "group.commit_offsets: offsets is an object, each value a whole number"),
        (None, "group.commit_offsets: offsets is an object, each value a whole number"),
    ):
        assert await commit(site, offsets, 400) == ("bad_request", told)
    told = await commit(site, {"0": 4, "1": 0}, 404)
    assert told == ("not_found", "there is no partition '1'; there are 0")
    error, reason = await commit(site, {"0": 4}, 400, group="billing")
    assert (error, "is in use" in reason) == ("bad_request", True)
    error, reason = await commit(site, {}, 400, queue="plain")
    assert (error, "keeps no messages" in reason) == ("bad_request", True)
    assert await commit(site, {}, 404, queue="none") == ("not_found", "queue_not_found")
    for body, told in (
        ({}, "offsets is missing"),
        ({"offsets": {}, "dry_run": True}, "unknown"),
    ):
        answer = await site.ask("PUT", f"{GROUPS}/%2F/views/spark/offsets", body, "app")
        assert (answer.status_code, told in answer.json()["reason"]) == (400, True), answer.text
    assert await names(site, "/%2F/views") == [("views", "billing")]


async def test_who_may_not_read_the_queue_commits_nothing(site, consumer, application):
    assert await commit(site, {"0": 1}, 401, user="nobody") == ("not_authorized", "Not_Authorized")
    error, _ = await commit(site, {"0": 1}, 401, queue="quiet")
    assert error == "not_authorised"
    site.add_user("stranger", "management")
    assert (await commit(site, {"0": 1}, 401, user="stranger"))[0] == "not_authorised"
    answer = await site.ask("PUT", f"{GROUPS}/none/views/spark/offsets", {"offsets": {}}, "app")
    assert (answer.status_code, answer.json()["reason"]) == (404, "vhost_not_found")


async def test_a_group_is_deleted_once_nobody_uses_it(site, consumer):
    assert (await site.ask("DELETE", GROUP)).status_code == 400
    leave(consumer)
    assert (await site.ask("DELETE", GROUP)).status_code == 204
    site.stage.run()
    assert (await site.ask("DELETE", GROUP)).status_code == 404
    rows = (await site.json("/api/leveret/audit?operation=group."))["rows"]
    assert [(row["operation"], row["error"]) for row in rows] == [
        ("group.delete", "not_found"),
        ("group.delete", ""),
        ("group.delete", "invalid"),
    ]


async def test_who_may_not_read_may_look_and_change_nothing(site, consumer):
    leave(consumer)
    site.add_user("monica", "monitoring")
    assert await names(site, "", "monica") == []
    assert (await site.get(GROUP, "monica")).status_code == 401
    site.permit("monica", "/", "^$", "^$", "^$")
    assert await names(site, "", "monica") == [("views", "billing")]
    assert (await site.json(GROUP, "monica"))["lag"] == 2
    for method, path, body in (
        ("POST", f"{GROUP}/reset", {"to": "earliest", "dry_run": True}),
        ("POST", f"{GROUP}/reset", {"to": "earliest"}),
        ("DELETE", GROUP, None),
    ):
        assert (await site.ask(method, path, body, "monica")).status_code == 401
    site.permit("monica", "/", "^$", "^$", "^views$")
    answer = await site.ask("POST", f"{GROUP}/reset", {"to": "earliest"}, "monica")
    assert answer.status_code == 200


async def test_states_of_a_group(site, consumer):
    async def state(group=GROUP):
        return (await site.json(group))["state"]

    second = Client(site.stage).open()
    second.prefetch(1)
    join(second, "views", "billing")
    consumer.send(commands.Basic.Cancel("billing"))
    assert await state() == "rebalancing"  # what the first one holds is to be settled
    consumer.send(commands.Basic.Ack(0, multiple=True))
    assert await state() == "stable"
    second.send(commands.Basic.Cancel("billing"))
    assert await state() == "empty"
    second.received()
    second.declare("parted", durable=True, arguments={**STREAM, "x-partitions": 2})
    arguments = {"x-consumer-group": "billing", "x-group-assign": [1]}
    second.consume("parted", "picky", arguments=arguments)
    assert await state(f"{GROUPS}/%2F/parted/billing") == "stalled"


@pytest.mark.parametrize("query", ["queue=views", "queue=", "vhost=other"])
async def test_a_place_in_the_query_string_is_no_mistake_of_the_nodes(site, consumer, query):
    assert (await site.get(f"{GROUPS}?{query}")).status_code in {200, 400}
