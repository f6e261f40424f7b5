"""Operations on dead letters and on what waits to be tried again."""

import json
from types import SimpleNamespace

import pytest

from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from tests.features.dead_letter.test_redrive import Yard, bodies
from tests.support.client import Client

ANY = {
    "vhost": "/",
    "queue": "q.dlq",
    "offsets": [],
    "message_ids": [],
    "reason": None,
    "source": None,
    "headers": {},
    "since": None,
    "until": None,
}
THERE = {**ANY, "exchange": None, "routing_key": None, "routed": False, "rate": None}
DLQ = {"vhost": "/", "queue": "q.dlq"}
Q = {"vhost": "/", "queue": "q"}
RETRIES = {**Q, "headers": {}}


class Console:
    """Asks a node, as the control socket does."""

    def __init__(self, **arguments):
        self.yard = Yard(**arguments)
        self.told = []
        self.yard.redrives.emit = lambda event, headers: self.told.append((event, headers))
        administration = SimpleNamespace(store=self.yard.stage.metadata)
        self.node = SimpleNamespace(
            audit=None,
            administration=administration,
            forwarding=None,
            redrives=self.yard.redrives,
        )

    def answer(self, operation, **parameters):
        answers = []

        async def work():
            request = {"operation": operation, "parameters": parameters}
            answers.append(await perform(self.node, json.loads(json.dumps(request)), COMMAND_LINE))

        self.yard.stage.spawn(work())
        while not answers:  # whoever searches lets others have a turn
            self.yard.stage.run()
        return json.loads(json.dumps(answers[0]))

    def ask(self, operation, **parameters):
        answer = self.answer(operation, **parameters)
        assert answer["ok"], answer
        return answer["result"]

    def refusal(self, operation, **parameters):
        answer = self.answer(operation, **parameters)
        assert not answer["ok"]
        return answer["error"]


@pytest.fixture
def console():
    return Console()


@pytest.mark.covers("C-206")
def test_dead_letters_are_listed_page_by_page(console):
    console.yard.die(5)
    page = console.ask("dlq.list", **ANY, limit=3, after=None)
    assert [row["message_id"] for row in page["rows"]] == ["id0", "id1", "id2"]
    headers = page["rows"][0].pop("headers")
    assert headers["x-death"][0]["queue"] == "q"
    now_ms = console.yard.stage.broker.timers.wall_ms()
    assert page["rows"][0] == {
        "offset": 0,
        "message_id": "id0",
        "reason": "rejected",
        "queue": "q",
        "exchange": "x",
        "routing_keys": ["key"],
        "died_at": now_ms // 1000 * 1000,
        "attempts": 1,
        "last_failure": "rejected",
        "payload_bytes": 1,
    }
    page = console.ask("dlq.list", **ANY, limit=3, after=page["after"])
    assert [row["message_id"] for row in page["rows"]] == ["id3", "id4"]
    assert page["after"] is None
    selected = {**ANY, "message_ids": ["id4"], "since": 0}
    assert len(console.ask("dlq.list", **selected, limit=9, after=None)["rows"]) == 1


@pytest.mark.covers("C-206")
def test_one_dead_letter_is_shown_with_its_payload(console):
    console.yard.die(2, headers={"own": "x"})
    shown = console.ask("dlq.show", **DLQ, offset=1)
    assert (shown["offset"], shown["payload"], shown["payload_encoding"]) == (1, "1", "string")
    assert shown["properties"]["headers"]["own"] == "x"
    assert console.refusal("dlq.show", **DLQ, offset=9) == "not_found"


@pytest.mark.covers("C-206")
def test_a_redrive_is_watched_paused_and_cancelled(console):
    console.yard.die(9)
    assert console.ask("dlq.redrive", **{**THERE, "rate": 1})["phase"] == "running"
    assert console.refusal("dlq.redrive", **THERE) == "already_exists"
    assert console.ask("dlq.pause", **DLQ)["phase"] == "paused"
    assert console.ask("dlq.resume", **DLQ)["phase"] == "running"
    assert console.ask("dlq.cancel", **DLQ)["phase"] == "cancelled"
    assert console.refusal("dlq.cancel", **DLQ) == "invalid"
    assert console.ask("dlq.status", **DLQ)["total"] == 9
    assert [event for event, _ in console.told][-1] == "dead_letters.redrive_cancelled"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rate": -1},
        {"rate": True},
        {"rate": "fast"},
        {"rate": 1e9},
        {"routing_key": "k"},
        {"exchange": "", "routed": True},
        {"headers": {"a": 1}},
        {"since": -1},
        {"until": "now"},
        {"message_ids": ["1"] * 10_001},
        {"offsets": [1] * 10_001},
        {"offsets": ["1"]},
        {"offsets": 1},
    ],
)
def test_a_redrive_that_makes_no_sense_is_refused(console, wrong):
    console.yard.die()
    assert console.refusal("dlq.redrive", **{**THERE, **wrong}) == "invalid"


def test_what_is_not_there_is_not_found(console):
    console.yard.die()
    assert console.refusal("dlq.redrive", **{**THERE, "queue": "?"}) == "not_found"
    assert console.refusal("dlq.redrive", **{**THERE, "vhost": "?"}) == "not_found"
    assert console.refusal("dlq.redrive", **{**THERE, "exchange": "?"}) == "not_found"
    assert console.refusal("dlq.status", **DLQ) == "not_found"
    console.yard.declare("s", {"x-queue-type": "stream"})
    assert console.refusal("dlq.redrive", **{**THERE, "queue": "s"}) == "invalid"
    console.node.redrives = None
    assert console.refusal("dlq.status", **DLQ) == "invalid"
    assert console.refusal("retry.list", **RETRIES, limit=1, after=None) == "invalid"


def test_deleting_says_which(console):
    console.yard.die(3)
    assert console.refusal("dlq.delete", **ANY) == "invalid"
    assert console.ask("dlq.delete", **{**ANY, "message_ids": ["id1"]}) == 1
    assert console.ask("dlq.purge", **DLQ) == 2
    assert console.told[-1] == (
        "dead_letters.deleted",
        {"queue": "q.dlq", "vhost": "/", "deleted": 2},
    )


def test_messages_that_wait_are_listed_brought_back_and_deleted():
    console = Console(**{"x-retry-delays": [60_000]})
    assert console.ask("retry.list", **RETRIES, limit=9, after=None)["rows"] == []
    assert console.ask("retry.retry_now", **Q, ids=[], all=True) == 0
    console.yard.die(4)
    page = console.ask("retry.list", **RETRIES, limit=3, after=None)
    assert [row["id"] for row in page["rows"]] == ["0", "1", "2"]
    row = page["rows"][0]
    assert row["first_failure_at"] == console.yard.stage.broker.timers.wall_ms() // 1000 * 1000
    assert (row["retry_count"], row["last_failure"], row["routing_key"]) == (1, "rejected", "key")
    page = console.ask("retry.list", **RETRIES, limit=3, after=page["after"])
    assert [row["id"] for row in page["rows"]] == ["3"]
    assert console.ask("retry.show", **Q, id="2")["payload"] == "2"
    assert console.refusal("retry.show", **Q, id="x") == "not_found"
    assert console.ask("retry.retry_now", **Q, ids=["1"], all=False) == 1
    assert console.ask("retry.cancel", **Q, ids=["1", "2", "77"], all=False) == 1
    assert bodies(console.yard.drain("q")) == [b"1"]
    assert console.ask("retry.retry_now", **Q, ids=[], all=True) == 2
    assert bodies(console.yard.drain("q")) == [b"0", b"3"]
    console.yard.stage.advance(1)
    assert console.ask("retry.list", **RETRIES, limit=3, after=None)["pending"] == 0
    assert console.refusal("retry.cancel", **Q, ids=[], all=False) == "invalid"
    assert console.refusal("retry.cancel", **Q, ids=["x"], all=False) == "invalid"
    assert console.refusal("retry.list", **RETRIES, limit=3, after=[1]) == "invalid"


def test_retries_are_searched():
    console = Console(**{"x-retry-delays": [60_000]})
    console.yard.die(3, headers={"color": "blue"})

    def found(**asked):
        parameters = {**RETRIES, "limit": 9, "after": None, **asked}
        return [row["message_id"] for row in console.ask("retry.list", **parameters)["rows"]]

    assert found() == ["id0", "id1", "id2"]
    assert found(message_id="id1") == ["id1"]
    assert found(id="2") == ["id2"]
    assert found(id="2", message_id="id1") == []
    assert found(headers={"color": "blue"}, routing_key="key") == ["id0", "id1", "id2"]
    assert found(headers={"color": "red"}) == []
    now_ms = console.yard.stage.now
    assert found(due_before_ms=now_ms) == []
    assert found(due_from_ms=now_ms) == ["id0", "id1", "id2"]


@pytest.mark.parametrize("retries", [False, True])
def test_blind_copies_are_shown_and_found_by_nobody(retries):
    console = Console(**{"x-retry-delays": [60_000]})
    client = Client(console.yard.stage).open()
    client.publish("q", b"1", headers={"BCC": ["secret"], "x": "y"}, message_id="id")
    if retries:
        offset, _ = console.yard.queue.get()
        console.yard.queue.discard([(offset, offset + 1)])
        console.yard.stage.run()
        [row] = console.ask("retry.list", **RETRIES, limit=9, after=None)["rows"]
        shown = console.ask("retry.show", **Q, id=row["id"])
    else:
        here = {**ANY, **Q, "limit": 9, "after": None}
        assert console.ask("dlq.list", **{**here, "headers": {"BCC": "['secret']"}})["rows"] == []
        [row] = console.ask("dlq.list", **here)["rows"]
        shown = console.ask("dlq.show", **Q, offset=row["offset"])
    for headers in (row["headers"], shown["headers"], shown["properties"]["headers"]):
        assert headers["x"] == "y"
        assert "BCC" not in headers
