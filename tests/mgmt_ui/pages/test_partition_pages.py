"""Messages, retries and dead letters of queues with several partitions, on pages and over HTTP."""

import re
from html import unescape

import pytest

from tests.support.waiting import wait_until

HERE = "/queues/%2F/q/messages"
TWO = {"x-partitions": 2}
HOUR_MS = 3_600_000
KEYS = "a", "order-42"  # of partition 0, and of partition 1


@pytest.fixture
def guest(visitor):
    visitor.declare("q", **TWO)
    visitor.declare("other", **TWO)
    return visitor


def publish(guest, queue, partition, *bodies):
    for body in bodies:
        guest.publish(queue, body, headers={"x-partition-key": KEYS[partition]})


def fail(guest, queue):
    """Let a consumer reject all messages."""
    asked = {"count": 100, "ackmode": "reject_requeue_false", "encoding": "auto"}
    guest.api.post(f"/queues/%2F/{queue}/get", json=asked)


def bodies(guest, queue, partition):
    told = guest.api.get(f"/leveret/queues/%2F/{queue}/messages?partition={partition}").json()
    assert all(row["partition"] == partition for row in told["messages"])
    return [row["payload"] for row in told["messages"]]


def offsets(text):
    return re.findall(r'type="checkbox" name="offset" value="([\d:]+)"', text)


def ids(text):
    return re.findall(r'type="checkbox" name="id" value="([\d:]+)"', text)


def listed(guest, address, boxes):
    """Return the checkboxes of a list, page by page."""
    found = []
    while address is not None:
        text = guest.text(address)
        found.append(boxes(text))
        following = re.search(r'<a rel="next" href="([^"]+)"', text)
        address = unescape(following[1]) if following else None
    return found


# -- messages


def test_messages_of_all_partitions_are_listed_with_their_partition(guest):
    publish(guest, "q", 0, "first")
    publish(guest, "q", 1, "second", "third")
    text = guest.text(HERE)
    assert offsets(text) == ["1:1", "1:0", "0:0"]
    assert '<option value="">all</option>' in text
    assert '<th scope="col" class="number">Partition</th>' in text
    assert '<td class="number">1</td>' in text
    assert "message 1 of partition 1" in text
    assert "3 scanned, partition by partition" in text
    assert f'<a href="{HERE}/1?partition=1">' in text
    assert f'<a href="{HERE}/0?partition=0">' in text
    assert offsets(guest.text(f"{HERE}?order=forwards&text=r")) == ["0:0", "1:1"]
    assert "There are no messages in this queue" in guest.text("/queues/%2F/other/messages")
    answer = guest.client.get(f"{HERE}/0")
    assert answer.status_code == 400
    assert "has the partitions 0 to 1: state one of them" in unescape(answer.text)


@pytest.mark.parametrize("order", ["", "forwards"])
def test_pages_of_messages_go_on_across_partitions(guest, order, monkeypatch):
    publish(guest, "q", 0, "first", "second")
    publish(guest, "q", 1, "third", "fourth", "fifth")
    every = ["0:0", "0:1", "1:0", "1:1", "1:2"]
    for rows in range(1, 4):
        monkeypatch.setattr("leveret.mgmt_ui.pages.messages.ROWS", rows)
        found = listed(guest, f"{HERE}?order={order}", offsets)
        assert [box for boxes in found for box in boxes] == (every if order else every[::-1])
        assert all(len(boxes) <= rows for boxes in found)
    assert "what an answer before has said" in unescape(guest.text(f"{HERE}?after=1"))


def test_messages_of_several_partitions_are_chosen_at_once(guest):
    publish(guest, "q", 0, "first", "fourth", "fifth")
    publish(guest, "q", 1, "second", "third", "sixth")
    said = guest.done(f"{HERE}/delete", offset=["0:0", "1:0"])
    assert said == ["2 messages of queue q were deleted."]
    where = {"to": "queue", "to_queue": "other"}
    said = guest.done(f"{HERE}/move", offset=["1:1", "0:1"], **where)
    assert said == ["2 messages of queue q were moved."]
    said = guest.done(f"{HERE}/copy", offset=["0:2", "1:2"], **where)
    assert said == ["2 messages of queue q were copied."]
    assert (bodies(guest, "q", 0), bodies(guest, "q", 1)) == (["fifth"], ["sixth"])
    assert bodies(guest, "other", 0) == ["fourth", "fifth"]
    assert bodies(guest, "other", 1) == ["third", "sixth"]
    answer = guest.submit(f"{HERE}/delete", which="matching", text="i")
    assert answer.headers["location"] == f"{HERE}?text=i"
    assert guest.done(f"{HERE}/delete", offset="0:9")[0].startswith("2 messages of queue q were")
    assert offsets(guest.text(HERE)) == []


def test_what_was_done_before_a_refusal_is_said(guest):
    publish(guest, "q", 0, "first", "second")
    said = guest.done(f"{HERE}/delete", offset=["0:0", "7:0"])
    assert "state one of them" in said[0]
    assert said[1] == "1 messages of queue q were deleted."
    for wrong in ("x:0", "0:x", ":0", "0:", "0:0:0"):
        assert "whole number" in guest.done(f"{HERE}/delete", offset=wrong)[0], wrong
    assert bodies(guest, "q", 0) == ["second"]


def test_a_partition_is_chosen_and_links_carry_it(guest):
    publish(guest, "q", 0, "first")
    publish(guest, "q", 1, "second", "third")
    text = guest.text(f"{HERE}?partition=1")
    assert "<option selected>1</option>" in text
    assert offsets(text) == ["1:1", "1:0"]
    assert f'<a href="{HERE}/1?partition=1">' in text
    assert '<input type="hidden" name="partition" value="1">' in text
    text = guest.text(f"{HERE}/1?partition=1")
    assert "third" in text
    for link in (f"{HERE}?partition=1", f"{HERE}/1/edit?partition=1"):
        assert f'href="{link}"' in text
    assert f'href="/api/leveret{HERE}/1/body?partition=1"' in text
    assert "as=hex&amp;partition=1" in text
    assert 'name="partition" value="1"' in text


def test_pages_of_a_long_partition_stay_in_it(guest):
    publish(guest, "q", 1, *[f"body {number}" for number in range(53)])
    text = guest.text(f"{HERE}?partition=1")
    assert len(offsets(text)) == 50
    older = re.search(r'<a rel="next" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert len(offsets(guest.text(older))) == 3
    assert "There are no messages in this partition" in guest.text(f"{HERE}?partition=0")


def test_messages_are_deleted_moved_and_copied_from_their_partition(guest):
    publish(guest, "q", 0, "first")
    publish(guest, "q", 1, "second", "third", "fourth")
    said = guest.submit(f"{HERE}/delete", partition="1", offset="0")
    assert said.headers["location"] == f"{HERE}?partition=1"
    assert bodies(guest, "q", 0) == ["first"]
    assert bodies(guest, "q", 1) == ["third", "fourth"]
    guest.done(f"{HERE}/move", partition="1", offset="1", to="queue", to_queue="other")
    guest.done(f"{HERE}/copy", partition="1", offset="2", to="queue", to_queue="other")
    assert bodies(guest, "q", 1) == ["fourth"]
    assert bodies(guest, "other", 1) == ["third", "fourth"]
    said = guest.done(f"{HERE}/delete", which="matching", text="f", partition="1")
    assert said == ["1 messages of queue q were deleted."]
    assert bodies(guest, "q", 0) == ["first"]


def test_a_message_of_a_partition_is_edited(guest):
    publish(guest, "q", 0, "first")
    publish(guest, "q", 1, "second")
    there = f"{HERE}/0/edit?partition=1"
    text = guest.text(there)
    assert "second</textarea>" in text
    assert f'action="{there}"' in text
    assert "Delete the original" in text
    fields = {"headers": f'{{"x-partition-key": "{KEYS[1]}"}}', "to": "queue", "persistent": "1"}
    answer = guest.submit(there, payload="changed", remove="1", **fields)
    assert answer.headers["location"] == f"{HERE}?partition=1"
    assert bodies(guest, "q", 1) == ["changed"]
    guest.done(f"{HERE}/1/edit?partition=1", payload="copied", **fields)
    assert bodies(guest, "q", 1) == ["changed", "copied"]
    elsewhere = {**fields, "to": "exchange", "routing_key": "other", "remove": "1"}
    said = guest.done(f"{HERE}/2/edit?partition=1", payload="sent", **elsewhere)
    assert "The original was deleted." in said[0]
    assert (bodies(guest, "q", 1), bodies(guest, "other", 1)) == (["changed"], ["sent"])
    assert bodies(guest, "q", 0) == ["first"]


def test_a_partition_that_is_not_there_is_said(guest):
    text = guest.text(f"{HERE}?partition=7")
    assert "has the partitions 0 to 1: state one of them" in text
    assert "7 (removed)" in text
    assert guest.client.get(f"{HERE}?partition=x").status_code == 400
    assert guest.client.get(f"{HERE}/0?partition=7").status_code == 404
    assert guest.client.get(f"{HERE}/0/edit?partition=7").status_code == 404
    assert "state one of them" in guest.done(f"{HERE}/delete", partition="7", offset="0")[0]
    guest.declare("one")
    text = guest.text("/queues/%2F/one/messages")
    assert "<label>Partition" not in text
    assert 'name="partition"' not in text
    assert "There are no messages in this queue" in text


def test_retired_partitions_can_be_chosen_until_they_are_gone(guest):
    publish(guest, "q", 1, "last")
    change = guest.api.put("/leveret/topics/%2F/q/partitions", json={"count": 1})
    assert change.json() == {"active": [0], "retired": [1]}
    assert "last" in guest.text(f"{HERE}?partition=1")
    guest.done(f"{HERE}/delete", partition="1", offset="0")
    topic = "/leveret/topics/%2F/q"
    wait_until(lambda: len(guest.api.get(topic).json()["partition_details"]) == 1)
    assert "1 (removed)" in guest.text(f"{HERE}?partition=1")
    assert 'name="partition"' not in guest.text(HERE)


def test_messages_of_a_partition_over_http(guest):
    publish(guest, "q", 0, "first")
    publish(guest, "q", 1, "second", "third")
    api, here = guest.api, f"/leveret{HERE}"
    answer = api.get(f"{here}/1")
    assert answer.status_code == 400
    assert "has the partitions 0 to 1: state one of them" in answer.json()["reason"]
    assert api.get(f"{here}/1?partition=1").json()["partition"] == 1
    assert "partition 0 of queue 'q'" in api.get(f"{here}/1?partition=0").json()["reason"]
    assert api.get(f"{here}/0/body?partition=1").content == b"second"
    traced = api.get(f"{here}/1/trace?partition=1").json()
    assert (traced["partition"], traced["offset"]) == (1, 1)
    assert api.get(f"{here}/1/trace").status_code == 400
    assert api.patch(f"{here}/0?partition=1", json={"payload": "new"}).json() == {"edited": 1}
    assert api.delete(f"{here}/1?partition=1").status_code == 204
    assert bodies(guest, "q", 1) == ["new"]
    select = {"partition": 1, "text": "n"}
    asked = {"select": select, "to_queue": "other"}
    assert api.post(f"{here}/copy", json=asked).json()["copied"] == 1
    assert api.post(f"{here}/delete", json={"select": select}).json()["deleted"] == 1
    assert api.post(f"{here}/delete", json={"select": {"partition": 0}}).status_code == 400
    assert bodies(guest, "q", 0) == ["first"]


def pages(guest, path, rows, **query):
    """Return the rows of a list, request by request."""
    found, after = [], {}
    while True:
        answer = guest.api.get(path, params={**query, **after})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[rows])
        if answer.json()["after"] is None:
            return found
        after = {"after": answer.json()["after"]}


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_messages_of_all_partitions_are_paged(guest, order):
    publish(guest, "q", 0, "first", "second")
    publish(guest, "q", 1, "third", "fourth", "fifth")
    here = f"/leveret{HERE}"
    every = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    if order == "backwards":
        every.reverse()
    for limit in range(1, 7):
        found = pages(guest, here, "messages", limit=limit, order=order)
        assert [(row["partition"], row["offset"]) for page in found for row in page] == every
        assert all(len(page) <= limit for page in found)
    [found] = pages(guest, here, "messages", order=order, text="r", offset=[0, 2])
    assert sorted(row["payload"] for row in found) == ["first", "third"]
    assert guest.api.get(here, params={"from": 0}).status_code == 400
    for wrong in ("1", "x:1", "1:x", ":", "1:2:3", "-1:0"):
        assert guest.api.get(here, params={"after": wrong}).status_code == 400, wrong


def test_a_request_scans_a_bounded_number_of_messages_of_all_partitions(guest, monkeypatch):
    publish(guest, "q", 0, "first", "second")
    publish(guest, "q", 1, "third", "fourth", "fifth")
    monkeypatch.setattr("leveret.features.browse.commands.SCANNED_MAX", 2)
    found = pages(guest, f"/leveret{HERE}", "messages", text="fifth")
    assert [[row["payload"] for row in page] for page in found] == [[], ["fifth"]]


def test_a_list_goes_on_when_a_partition_was_removed(guest):
    publish(guest, "q", 0, "first", "second")
    here = f"/leveret{HERE}"
    after = guest.api.get(here, params={"limit": 1}).json()["after"]
    assert after == "0:0"
    publish(guest, "q", 1, "third")
    assert [row["payload"] for page in pages(guest, here, "messages") for row in page] == [
        *("first", "second", "third")
    ]
    guest.api.put("/leveret/topics/%2F/q/partitions", json={"count": 1})
    guest.api.delete(f"{here}/0?partition=1")
    topic = "/leveret/topics/%2F/q"
    wait_until(lambda: len(guest.api.get(topic).json()["partition_details"]) == 1)
    answer = guest.api.get(here, params={"after": "1:0"}).json()
    assert (answer["messages"], answer["after"]) == ([], None)
    answer = guest.api.get(here, params={"after": after}).json()
    assert [row["payload"] for row in answer["messages"]] == ["second"]


# -- what waits, and what died


def test_retries_of_a_partition(guest):
    guest.declare("r", **TWO, **{"x-retry-delays": [HOUR_MS]})
    publish(guest, "r", 0, "first")
    publish(guest, "r", 1, "second", "third", "fourth")
    fail(guest, "r")
    here, rest = "/retries/%2F/r", "/leveret/retries/%2F/r"
    assert len(ids(guest.text(f"{here}?partition=1"))) == 3
    found = [id_.removeprefix("1:") for id_ in ids(guest.text(f"{here}?partition=1"))]
    link = f"{here}/messages/{found[0]}?partition=1"
    assert f'<a href="{link}">' in guest.text(f"{here}?partition=1")
    text = guest.text(link)
    assert "second" in text
    assert '<span class="badge">partition 1</span>' in text
    assert f'href="{here}?partition=1"' in text
    assert guest.client.get(f"{here}?partition=7").status_code == 404
    said = guest.submit(f"{here}/now", partition="1", id=found[0])
    assert said.headers["location"] == f"{here}?partition=1"
    assert bodies(guest, "r", 1) == ["second"]
    shown = guest.api.get(f"{rest}/messages/{found[1]}?partition=1").json()
    assert shown["payload"] == "third"
    assert guest.api.get(rest).json()["pending"] == 3
    for limit in range(1, 5):
        rows = [row for page in pages(guest, rest, "rows", limit=limit) for row in page]
        assert [row["partition"] for row in rows] == [0, 1, 1]
        assert len({(row["partition"], row["id"]) for row in rows}) == 3
    [rows] = pages(guest, rest, "rows", id=shown["id"])
    assert (1, shown["id"]) in [(row["partition"], row["id"]) for row in rows]
    assert guest.api.get(rest, params={"after": "1:x"}).status_code == 400
    assert guest.api.get(f"{rest}?partition=1").json()["pending"] == 2
    asked = {"ids": [found[1]], "partition": 1}
    assert guest.api.post(f"{rest}/cancel", json=asked).json() == {"count": 1}
    said = guest.done(f"{here}/cancel", partition="1", which="all")
    assert said[-1] == "1 messages of queue r were deleted."
    assert len(ids(guest.text(here))) == 1  # of partition 0
    assert guest.api.post(f"{rest}/retry", json={"all": True}).status_code == 400
    asked = {"all": True, "partition": 0}
    assert guest.api.post(f"{rest}/retry", json=asked).json() == {"count": 1}


def test_retries_of_several_partitions_are_chosen_at_once(guest, monkeypatch):
    guest.declare("r", **TWO, **{"x-retry-delays": [HOUR_MS]})
    publish(guest, "r", 0, "first", "second", "third")
    publish(guest, "r", 1, "fourth", "fifth", "sixth")
    fail(guest, "r")
    here = "/retries/%2F/r"
    for rows in (1, 2, 4):
        monkeypatch.setattr("leveret.mgmt_ui.pages.retries.ROWS", rows)
        pages = listed(guest, here, ids)
        found = [box for boxes in pages for box in boxes]
        assert [place.partition(":")[0] for place in found] == list("000111")
        assert len(set(found)) == 6
        assert all(len(boxes) <= rows for boxes in pages)
    text = guest.text(here)
    assert '<th scope="col" class="number">Partition</th>' in text
    number = found[0].removeprefix("0:")
    assert f'<a href="{here}/messages/{number}?partition=0">' in text
    assert guest.client.get(f"{here}/messages/{number}").status_code == 400
    said = guest.done(f"{here}/now", id=[found[0], found[3]])
    assert said == ["2 messages of queue r were retried."]
    assert (bodies(guest, "r", 0), bodies(guest, "r", 1)) == (["first"], ["fourth"])
    said = guest.done(f"{here}/cancel", id=[found[1], found[4]])
    assert said == ["2 messages of queue r were deleted."]
    said = guest.done(f"{here}/now", which="all")
    assert said == ["2 messages of queue r were retried."]
    assert (bodies(guest, "r", 0), bodies(guest, "r", 1)) == (
        *(["first", "third"], ["fourth", "sixth"]),
    )


def test_dead_letters_of_several_partitions_are_chosen_at_once(guest, monkeypatch):
    guest.declare("d", **{"x-dead-letter-topic": True})
    guest.declare("d.dlq", **TWO)
    for part in range(2):
        publish(guest, "d", part, *map(str, range(15)))
    fail(guest, "d")
    here, rest = "/dead-letters/%2F/d.dlq", "/leveret/dead-letters/%2F/d.dlq"
    every = [f"{part}:{offset}" for part in range(2) for offset in range(15)]
    for rows in (7, 15, 30):
        monkeypatch.setattr("leveret.mgmt_ui.pages.dead_letters.ROWS", rows)
        assert [box for boxes in listed(guest, here, offsets) for box in boxes] == every
    text = guest.text(here)
    assert "30 ready" in text
    assert '<a href="/queues/%2F/d.dlq/messages/0?partition=1">' in text
    said = guest.done(f"{here}/delete", offset=["0:0", "1:0"])
    assert said == ["2 messages of queue d.dlq were deleted."]
    guest.done(f"{here}/redrive", offset=["0:1", "1:1"], to="back")
    wait_until(lambda: guest.text(here).count("1 moved") == 2)
    left = offsets(guest.text(here))
    assert set(every) - set(left) == {"0:0", "0:1", "1:0", "1:1"}
    assert "Partition 1 <span" in guest.text(here)

    def states():
        asked = [guest.api.get(f"{rest}/redrive?partition={part}").json() for part in range(2)]
        assert [status["rate"] for status in asked] == [0.5, 0.5]
        return [status["phase"] for status in asked]

    guest.done(f"{here}/redrive", which="matching", to="back", rate="1")
    assert states() == ["running", "running"]
    guest.done(f"{here}/redrive/pause", partition="0")
    assert states() == ["paused", "running"]
    said = guest.done(f"{here}/redrive/pause")
    assert said == ["The redrive of queue d.dlq is paused."]
    assert states() == ["paused", "paused"]
    text = guest.text(here)
    assert f"{here}/redrive/pause" not in text
    assert text.count("at most 0.5 per second") == 2
    assert "cannot be paused" in guest.done(f"{here}/redrive/pause")[0]
    guest.done(f"{here}/redrive/resume")
    assert states() == ["running", "running"]
    guest.done(f"{here}/redrive/cancel")
    assert states() == ["cancelled", "cancelled"]


def test_dead_letters_of_a_partition(guest):
    guest.declare("d", **{"x-dead-letter-topic": True})
    guest.declare("d.dlq", **TWO)
    publish(guest, "d", 0, "first")
    publish(guest, "d", 1, "second", "third", "fourth", "fifth")
    fail(guest, "d")
    here, rest = "/dead-letters/%2F/d.dlq", "/leveret/dead-letters/%2F/d.dlq"
    assert len(offsets(guest.text(f"{here}?partition=1"))) == 4
    text = guest.text(f"{here}?partition=1")
    assert '<a href="/queues/%2F/d.dlq/messages/0?partition=1">' in text
    said = guest.submit(f"{here}/delete", partition="1", offset="0")
    assert said.headers["location"] == f"{here}?partition=1"
    for limit in range(1, 6):
        found = [row for page in pages(guest, rest, "rows", limit=limit) for row in page]
        assert [(row["partition"], row["offset"]) for row in found] == [
            *((0, 0), (1, 1), (1, 2), (1, 3))
        ]
    assert guest.api.get(rest).json()["ready"] == 4
    assert guest.api.get(rest, params={"after": "3"}).status_code == 400
    rows = guest.api.get(f"{rest}?partition=1").json()["rows"]
    assert [row["offset"] for row in rows] == [1, 2, 3]
    shown = guest.api.get(f"{rest}/messages/1?partition=1").json()
    assert shown["payload"] == "third"
    guest.submit(f"{here}/redrive", partition="1", offset="1", to="back")
    wait_until(lambda: "1 moved" in guest.text(f"{here}?partition=1"))
    assert "1 moved" not in guest.text(f"{here}?partition=0")
    status = guest.api.get(f"{rest}/redrive?partition=1").json()
    assert (status["partition"], status["moved"]) == (1, 1)
    assert guest.api.get(f"{rest}/redrive?partition=0").status_code == 404
    asked = {"offsets": [2, 3], "partition": 1, "rate": 0.001}
    assert guest.api.post(f"{rest}/redrive", json=asked).json()["partition"] == 1
    guest.submit(f"{here}/redrive/pause", partition="1")
    assert guest.api.get(f"{rest}/redrive?partition=1").json()["phase"] == "paused"
    answer = guest.api.post(f"{rest}/redrive/cancel?partition=1")
    assert answer.json()["phase"] == "cancelled"
    asked = {"reason": "rejected", "partition": 0}
    assert guest.api.post(f"{rest}/delete", json=asked).json() == {"count": 1}
