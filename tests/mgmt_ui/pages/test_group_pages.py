"""Pages of consumer groups: who is how far, and forms that move and delete them."""

import asyncio
import html
import json
import re

import pytest
from pamqp import commands

from leveret.features.groups.lag_history import sample_lag
from leveret.mgmt_ui.pages import live
from tests.support.browser import Browser
from tests.support.client import Client
from tests.support.waiting import LIMIT_SECONDS

HOSTILE = "<script>alert(1)</script>"
GROUP = "/consumer-groups/%2F/views/billing"


@pytest.fixture
def member(site):
    """A member of `billing` that has settled one of four messages, and holds the others."""
    member = Client(site.stage).open()
    [connection] = site.broker.connections
    connection.client_properties["connection_name"] = "billing service"
    member.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    member.prefetch(10)
    join(member, "billing")
    member.publish("views", b"0", b"1", b"2", b"3")
    member.send(commands.Basic.Ack(1))
    member.deliveries()
    return member


def join(client, group):
    client.consume("views", group, arguments={"x-consumer-group": group})


def leave(client):
    client.send(commands.Channel.Close(200, "", 0, 0))


async def preview(browser, **fields):
    """Return the status, the previewed rows and what would be applied."""
    answer = await browser.submit(f"{GROUP}/preview", **fields)
    part = answer.text.partition('aria-label="Preview')[2]
    cells = re.findall(r'<td class="number">([^<]*)</td>', part)
    to = re.search(r'name="to" value="([^"]*)"', part)
    return answer.status_code, cells, to and to[1]


async def test_without_groups_the_list_says_how_to_make_one(guest):
    text = await guest.text("/consumer-groups")
    assert "x-consumer-group" in text
    assert "<table>" not in text


async def test_groups_are_listed_and_filtered(guest, member):
    join(member, HOSTILE)
    text = await guest.text("/consumer-groups")
    assert f'<a href="{GROUP}">billing</a>' in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert '<span class="state stable">stable</span>' in text
    assert '<a href="/consumer-groups" aria-current="page">' in text
    for query, found in {
        "name=bil": 1,
        "queue=views": 2,
        "queue=other": 0,
        "state=empty": 0,
        "vhost=other": 0,
        "sort=lag&sort_reverse=true": 2,
    }.items():
        text = await guest.text(f"/consumer-groups?{query}")
        assert text.count('class="state stable"') == found, query


async def test_a_group_shows_its_partitions_and_members(guest, member):
    text = await guest.text(GROUP)
    assert "billing service" in text
    assert 'data-figure="lag">3</dd>' in text
    assert '<rect class="unacked"' in text
    assert "3 of 4 messages kept are not acknowledged" in text
    assert "The group is in use" in text
    leave(member)
    text = await guest.text(GROUP)
    assert "No members." in text
    assert "nobody" in text
    assert "The group is in use" not in text
    answer = await guest.get("/consumer-groups/%2F/views/none")
    assert answer.status_code == 404
    assert "no consumer group" in answer.text


async def test_a_group_of_a_reader_is_shown_without_members(site, guest, member):
    path = "/api/leveret/consumer-groups/%2F/views/spark/offsets"
    await site.ask("PUT", path, {"offsets": {"0": 3}})
    listed = await guest.text("/consumer-groups?name=spark")
    assert '<span class="state empty">empty</span>' in listed
    text = await guest.text("/consumer-groups/%2F/views/spark")
    assert '<span class="state empty">empty</span>' in text
    assert 'data-figure="lag">1</dd>' in text
    assert "1 of 4 messages kept are not acknowledged" in text
    assert "No members." in text
    assert "or a reader commits its offsets" in text
    assert "The group is in use" not in text
    assert 'data-figure="lag of spark">1</td>' in await guest.text("/queues/%2F/views")


async def test_a_queue_shows_its_groups(guest, member):
    text = await guest.text("/queues/%2F/views")
    assert f'<a href="{GROUP}">billing</a>' in text
    assert 'data-figure="lag of billing">3</td>' in text
    member.declare("plain")
    assert "Consumer groups</h2>" not in await guest.text("/queues/%2F/plain")
    member.declare("kept", durable=True, arguments={"x-retention": "1d"})
    assert "No consumer group reads this queue" in await guest.text("/queues/%2F/kept")


async def test_a_reset_is_previewed_and_applied(guest, member):
    assert await preview(guest, place="earliest") == (200, ["0", "1", "0"], "earliest")
    said = await guest.submit(f"{GROUP}/reset", to="earliest")
    assert (said.status_code, said.headers["location"]) == (303, GROUP)
    assert "is in use" in (await guest.notices())[0]
    leave(member)
    assert (await preview(guest, place="latest"))[1] == ["0", "1", "4"]
    assert await preview(guest, place="offset", offset="2") == (200, ["0", "1", "2"], "2")
    await guest.submit(f"{GROUP}/reset", to="2")
    assert await guest.notices() == ["Consumer group billing of queue views was reset to 2."]
    assert 'data-figure="lag">2</dd>' in await guest.text(GROUP)


async def test_an_age_is_applied_as_the_time_that_was_shown(site, guest, member):
    member.publish("views", b"4")
    site.stage.now += 7_200_000
    member.publish("views", b"5")
    status, rows, to = await preview(guest, place="age", age="1h")
    assert (status, rows) == (200, ["0", "1", "5"])
    assert to.endswith("+00:00")
    assert (await preview(guest, place="time", time="2000-01-01T00:00"))[1:] == (
        ["0", "1", "0"],
        "2000-01-01T00:00:00+00:00",
    )


async def test_some_partitions_are_previewed_and_reset(site, guest):
    client = Client(site.stage).open()
    arguments = {"x-queue-type": "stream", "x-partitions": 3}
    client.declare("views", durable=True, arguments=arguments)
    for number in range(30):
        client.publish("views", b"0", headers={"x-partition-key": str(number)})
    group = site.broker.groups.create(site.stage.queue("views"), "billing", {})
    status, rows, _ = await preview(guest, place="latest", partitions="0, 2")
    assert (status, rows[0], rows[3], len(rows)) == (200, "0", "2", 6)
    answer = await guest.submit(f"{GROUP}/preview", place="latest", partitions="0, 2")
    assert 'name="partitions" value="0 2"' in answer.text
    await guest.submit(f"{GROUP}/reset", to="latest", partitions="0 2")
    assert [bool(each.lag) for each in group.subscriptions.values()] == [False, True, False]
    for partitions, status, said in (("x", 400, "whole numbers"), ("7", 404, "no partition")):
        answer = await guest.submit(f"{GROUP}/preview", place="latest", partitions=partitions)
        assert (answer.status_code, said in answer.text) == (status, True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "select where the group shall go on"),
        ({"place": "nowhere"}, "select where the group shall go on"),
        ({"place": "offset"}, "enter the offset at which the group shall go on"),
        ({"place": "offset", "offset": "-1"}, "an offset is a whole number"),
        ({"place": "offset", "offset": "9" * 30}, "is no place in a queue"),
        ({"place": "age", "age": "long"}, "an age is a number with a unit"),
        ({"place": "time", "time": "noon"}, "noon is not a time"),
    ],
)
async def test_a_wrong_place_is_said_and_the_form_is_kept(guest, member, fields, said):
    answer = await guest.submit(f"{GROUP}/preview", **fields)
    assert answer.status_code == 400
    assert said in answer.text
    if "offset" in fields:
        assert f'name="offset" value="{fields["offset"]}"' in answer.text


async def test_a_group_is_deleted(site, guest, member):
    assert (await guest.submit(f"{GROUP}/delete")).headers["location"] == GROUP
    assert "is in use" in (await guest.notices())[0]
    leave(member)
    assert (await guest.submit(f"{GROUP}/delete")).headers["location"] == "/consumer-groups"
    assert await guest.notices() == ["Consumer group billing of queue views was deleted."]
    assert (await guest.get(GROUP)).status_code == 404
    assert (await guest.get(f"/live{GROUP}")).status_code == 404
    site.stage.run()


async def test_who_may_not_consume_sees_no_forms(site, guest, member):
    leave(member)
    site.add_user("monica", "monitoring")
    monica = Browser(site)
    await monica.sign_in("monica")
    assert GROUP not in await monica.text("/consumer-groups")
    assert (await monica.get(GROUP)).status_code == 403
    site.permit("monica", "/", "^$", "^$", "^$")
    assert GROUP in await monica.text("/consumer-groups")
    text = await monica.text(GROUP)
    assert "Lag by partition" in text
    assert 'method="post"' not in text.partition("<main")[2]
    for verb, fields in {
        "preview": {"place": "earliest"},
        "reset": {"to": "earliest"},
        "delete": {},
    }.items():
        assert (await monica.submit(f"{GROUP}/{verb}", **fields)).status_code == 403, verb
        answer = await guest.submit(f"{GROUP}/{verb}", **fields, csrf_token="wrong")
        assert answer.status_code == 403


async def test_what_is_done_is_in_the_audit_log(tmp_path, site, guest, member):
    leave(member)
    async with site.running(tmp_path):
        browser = Browser(site)
        await browser.sign_in()
        await browser.submit(f"{GROUP}/reset", to="3")
        [row] = (await site.json("/api/leveret/audit?operation=group."))["rows"]
        assert (row["operation"], row["way"]) == ("group.reset_offsets", "ui")
        assert row["parameters"]["to"] == "3"


async def test_figures_are_live(site, guest, member, monkeypatch):
    monkeypatch.setattr(live, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(live, "STREAM_SECONDS_MAX", 0.01)
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.01)
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await guest.get(f"/live{GROUP}")
    data = re.search(r"^data: (.*)$", answer.text, re.MULTILINE)
    frame = json.loads(data[1])
    assert frame["figures"] == {"lag": "3", "unacked": "3", "members": "1", "partitions": "1"}
    assert frame["points"]["lags"][1:] == [3, 3]


async def test_lag_is_drawn_as_it_was(site, guest, member):
    group = site.broker.groups.of_queue(site.stage.queue("views"))["billing"]
    statistics, start_ms = site.broker.statistics, 1_700_000_000_000
    for at, published in enumerate((0, 0, 2)):
        member.publish("views", *[b"x"] * published)
        statistics.tick_ms = start_ms + at * 60_000
        sample_lag(group, statistics.tick_ms)
    text = html.unescape(await guest.text(f"{GROUP}?period=hour"))
    chart = json.loads(re.search(r'data-chart="(\{.*?\})">', text)[1])
    times, lags, held = chart["data"]
    assert [time - start_ms / 1000 for time in times] == [0, 120]
    assert (lags, held) == ([3, 5], [3, 5])
    answer = await guest.submit(f"{GROUP}/preview", place="latest")
    assert f'href="{GROUP}?period=hour"' in answer.text
