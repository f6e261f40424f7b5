"""Pages of topics: their partitions drawn, and a form that changes how many there are."""

import asyncio
import json
import re

import pytest
from pamqp import commands

from leveret.core.settings.partitioning import PARTITIONS_MAX
from leveret.mgmt_ui.pages import live
from leveret.ports import LogFile
from tests.support.browser import Browser
from tests.support.client import Client, message
from tests.support.memory_log import MemoryTopicLog
from tests.support.waiting import LIMIT_SECONDS

TOPIC = "/topics/%2F/orders"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def client(site):
    return Client(site.stage).open()


@pytest.fixture
def orders(client):
    """A queue with three partitions, of which each has messages."""
    client.declare("orders", durable=True, arguments={"x-partitions": 3})
    publish(client, 30)
    return client


def publish(client, count):
    client.feed(
        b"".join(
            message("orders", b"%d" % number, headers={"x-partition-key": str(number)})
            for number in range(count)
        )
    )


def partitions(text):
    """Return (number, state, ready) of each partition that a page shows."""
    part = text.partition('aria-label="Partitions"')[2].partition("</table>")[0]
    rows = part.split("<tr")[2:]
    return [
        (
            int(re.search(r">(\d+)</a>", row)[1]),
            re.search(r'class="state (\w+)"', row)[1],
            int(re.findall(r'<td class="number[^"]*">(\d+)</td>', row)[0]),
        )
        for row in rows
    ]


async def preview(browser, count):
    """Return the status and the effect on each partition."""
    answer = await browser.submit(f"{TOPIC}/preview", count=count)
    part = answer.text.partition('aria-label="Preview')[2].partition("</table>")[0]
    found = re.findall(r'<td class="number">(\d+)</td><td>(.*?)</td>', part, re.DOTALL)
    return answer.status_code, [(int(number), effect) for number, effect in found]


async def test_without_topics_the_list_says_how_to_make_one(guest):
    text = await guest.text("/topics")
    assert "x-partitions" in text
    assert "<table>" not in text


async def test_a_topic_that_only_groups_read_has_a_warning(site, guest, client, monkeypatch):
    kept = {"x-retention-messages": 1}
    client.declare("orders", durable=True, arguments=kept)
    publish(client, 3)
    files = [LogFile(0, 2, 100, None, True), LogFile(2, 3, 50, None, False)]
    monkeypatch.setattr(MemoryTopicLog, "list_files", lambda _log: files)
    warning = "2 messages are kept for longer than the retention says"
    for read, expected in ((1, False), (3, True)):
        place = "/api/leveret/consumer-groups/%2F/orders/g/offsets"
        await site.ask("PUT", place, {"offsets": {"0": read}})
        assert (warning in await guest.text(TOPIC)) is expected


async def test_topics_are_listed_and_filtered(guest, orders):
    orders.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    placed = {"x-partitions": 2, "x-partition-by": HOSTILE}
    orders.declare("evil", durable=True, arguments=placed)
    kept = {"x-retention": "2h", "x-retention-messages": 1000}
    orders.declare("kept", durable=True, arguments=kept)
    orders.declare("plain", durable=True)
    text = await guest.text("/topics")
    assert f'<a href="{TOPIC}">orders</a>' in text
    assert "/topics/%2F/plain" not in text
    assert "2\u00a0h, 1\u202f000 messages" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert '<a href="/topics" aria-current="page">' in text
    assert "<script>alert" not in await guest.text("/topics/%2F/evil")
    for query, found in {
        "name=ord": 1,
        "type=stream": 1,
        "type=classic": 3,
        "partitions=several": 2,
        "partitions=one": 2,
        "partitions=some+retired": 0,
        "vhost=other": 0,
        "sort=partitions&sort_reverse=true": 4,
    }.items():
        text = await guest.text(f"/topics?{query}")
        assert text.count('href="/topics/') == found, query


async def test_a_topic_shows_its_partitions(site, guest, orders):
    text = await guest.text(TOPIC)
    found = partitions(text)
    assert [(number, state) for number, state, _ in found] == [
        (0, "active"), (1, "active"), (2, "active"),
    ]  # fmt: skip
    assert sum(ready for *_, ready in found) == 30
    assert 'data-figure="messages">30</dd>' in text
    assert f"{found[0][2]} ready, 0 unacknowledged" in text
    assert "the same x-partition-key" in text
    assert '<a href="/queues/%2F/orders/messages?partition=1"' in text
    orders.prefetch(2)
    orders.consume("orders")
    orders.deliveries()
    assert 'data-figure="unacked">2</dd>' in await guest.text(TOPIC)
    answer = await guest.get("/topics/%2F/none")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("round-robin", "placed in turn"),
        ("random", "placed at random"),
        ("x-customer", "the same header x-customer"),
    ],
)
async def test_how_messages_are_placed_is_said(guest, client, by, said):
    arguments = {"x-partitions": 2, "x-partition-by": by}
    client.declare("orders", durable=True, arguments=arguments)
    assert said in await guest.text(TOPIC)
    answer = await guest.submit(f"{TOPIC}/preview", count="3")
    assert ("messages of a key may go to another" in answer.text) == (by == "x-customer")


async def test_a_topic_shows_its_groups(guest, client):
    client.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    assert "No consumer group reads this topic" in await guest.text("/topics/%2F/views")
    client.publish("views", b"0", b"1", b"2")
    client.prefetch(10)
    arguments = {"x-consumer-group": "billing", "x-stream-offset": "first"}
    client.consume("views", "c", arguments=arguments)
    client.deliveries()
    client.send(commands.Basic.Ack(1))
    text = await guest.text("/topics/%2F/views")
    assert '<a href="/consumer-groups/%2F/views/billing">billing</a>' in text
    assert '<td class="number">2</td>' in text
    assert "one log for good" in text
    assert "Change partitions" not in text


async def test_a_queue_that_is_a_topic_leads_to_its_page(guest, orders):
    orders.declare("plain", durable=True)
    assert f'href="{TOPIC}">Topic</a>' in await guest.text("/queues/%2F/orders")
    assert ">Topic</a>" not in await guest.text("/queues/%2F/plain")


async def test_the_page_of_a_queue_shows_the_partitions_that_it_has_now(site, guest, orders):
    assert "Its partitions now: 0 to 2." in await guest.text("/queues/%2F/orders")
    await guest.submit(f"{TOPIC}/partitions", count=5)
    assert "Its partitions now: 0 to 4." in await guest.text("/queues/%2F/orders")
    orders.declare("plain")
    assert "Its partitions now" not in await guest.text("/queues/%2F/plain")


async def test_a_change_is_previewed_and_applied(guest, orders):
    stays = '<span class="muted">stays</span>'
    status, rows = await preview(guest, "4")
    assert (status, rows) == (200, [*((n, stays) for n in range(3)), (3, "new, begins empty")])
    assert len(partitions(await guest.text(TOPIC))) == 3
    said = await guest.submit(f"{TOPIC}/partitions", count="4")
    assert (said.status_code, said.headers["location"]) == (303, TOPIC)
    assert await guest.notices() == ["Queue orders has 4 partitions now."]
    status, rows = await preview(guest, "1")
    assert [effect.startswith("takes no more") for _, effect in rows] == [False, True, True, True]
    await guest.submit(f"{TOPIC}/partitions", count="1")
    assert await guest.notices() == ["Queue orders has 1 partition now."]
    found = partitions(await guest.text(TOPIC))
    assert [state for _, state, _ in found] == ["active", "retired", "retired", "retired"]
    assert '<tr class="retired">' in await guest.text(TOPIC)
    text = await guest.text("/topics?partitions=some+retired")
    assert f'<a href="{TOPIC}">' in text
    status, rows = await preview(guest, "2")
    assert [effect for _, effect in rows] == [
        stays,
        "takes messages again",
        *['<span class="muted">stays retired</span>'] * 2,
    ]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("", "enter how many partitions"),
        ("many", "enter how many partitions"),
        ("0", f"1 to {PARTITIONS_MAX} partitions"),
        (str(PARTITIONS_MAX + 1), f"1 to {PARTITIONS_MAX} partitions"),
    ],
)
async def test_a_wrong_number_is_said_and_the_form_is_kept(guest, orders, count, said):
    answer = await guest.submit(f"{TOPIC}/preview", count=count)
    assert answer.status_code == 400
    assert said in answer.text
    assert f'name="count" value="{count}"' in answer.text
    assert "Give orders" not in answer.text


async def test_who_may_not_configure_sees_no_form(site, guest, orders):
    site.add_user("monica", "monitoring")
    monica = Browser(site)
    await monica.sign_in("monica")
    assert TOPIC not in await monica.text("/topics")
    assert (await monica.get(TOPIC)).status_code == 403
    site.permit("monica", "/", "^$", "^$", "^$")
    assert TOPIC in await monica.text("/topics")
    text = await monica.text(TOPIC)
    assert 'aria-label="Partitions"' in text
    assert 'method="post"' not in text.partition("<main")[2]
    assert "/messages" not in text.partition("<main")[2]
    for verb in ("preview", "partitions"):
        assert (await monica.submit(f"{TOPIC}/{verb}", count="4")).status_code == 403, verb
        answer = await guest.submit(f"{TOPIC}/{verb}", count="4", csrf_token="wrong")
        assert answer.status_code == 403
    assert len(partitions(await guest.text(TOPIC))) == 3


async def test_a_change_is_in_the_audit_log(tmp_path, site, orders):
    async with site.running(tmp_path):
        browser = Browser(site)
        await browser.sign_in()
        await browser.submit(f"{TOPIC}/preview", count="2")
        await browser.submit(f"{TOPIC}/partitions", count="2")
        rows = (await site.json("/api/leveret/audit?operation=topic."))["rows"]
        assert [row["parameters"]["dry_run"] for row in rows] == [False, True]
        assert {row["way"] for row in rows} == {"ui"}


async def test_figures_are_live(guest, orders, monkeypatch):
    monkeypatch.setattr(live, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(live, "STREAM_SECONDS_MAX", 0.01)
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.01)
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await guest.get(f"/live{TOPIC}")
    data = re.search(r"^data: (.*)$", answer.text, re.MULTILINE)
    assert json.loads(data[1])["figures"] == {
        "partitions": "3",
        "retired": "0",
        "messages": "30",
        "unacked": "0",
        "consumers": "0",
        "groups": "0",
    }
    assert (await guest.get("/live/topics/%2F/none")).status_code == 404
