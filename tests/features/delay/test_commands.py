"""Operations on delayed messages, as the command line asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pamqp import commands

from leveret.core.definitions.model import Model
from leveret.errors import DiskFullError
from leveret.features.delay import search
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.definitions import Definitions
from tests.memory_metadata import MemoryMetadataStore
from tests.support.client import Client
from tests.support.stage import Stage
from tests.support.waiting import eventually

COMMON = {
    "vhost": "/",
    "exchange": None,
    "routing_key": None,
    "headers": {},
    "due_from_ms": None,
    "due_before_ms": None,
}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Its broker goes on while it is asked."""
    stage = Stage()

    async def run() -> None:
        while True:
            stage.run()
            await asyncio.sleep(0)

    running = asyncio.get_running_loop().create_task(run())
    yield stage
    running.cancel()


@pytest.fixture
def client(stage: Stage) -> Client:
    client = Client(stage).open()
    client.declare("q")
    for number in range(10):
        headers = {"x-delay": 1000 * (number + 1), "n": number, "even": number % 2 == 0}
        if number == 7:
            headers["x-schedule-id"] = "seven"
        client.publish("q" if number < 5 else "other", b"%d" % number, headers=headers)
    return client


@pytest.fixture
async def node(stage: Stage, client: Client) -> AdminContext:
    model = Model(Definitions(), MemoryMetadataStore(), lambda: "random")
    await create_defaults(model.administration)
    return AdminContext(model.administration, model.vhosts, broker=stage.broker)


async def ask(node: AdminContext, operation: str, **parameters: object) -> Any:
    answer = await perform(node, {"operation": operation, "parameters": parameters}, COMMAND_LINE)
    return answer["result"] if answer["ok"] else (answer["error"], answer["explanation"])


async def listed(node: AdminContext, limit: int = 100, **parameters: object) -> list[str]:
    answer = await ask(
        node, "schedule.list", **{**COMMON, "limit": limit, "after": None, **parameters}
    )
    return [row["id"] for row in answer["rows"]]


async def change(node: AdminContext, operation: str, **parameters: object) -> Any:
    return await ask(
        node, f"schedule.{operation}", **{**COMMON, "id": None, "all": False, **parameters}
    )


@pytest.mark.covers("C-202")
async def test_the_next_one_that_is_due_comes_first(node: AdminContext) -> None:
    assert await listed(node) == [f"@{n}" if n != 7 else "seven" for n in range(10)]


async def test_pages(node: AdminContext) -> None:
    rows, after = [], None
    while True:
        page = await ask(node, "schedule.list", **COMMON, limit=3, after=after)
        assert page["pending"] == 10
        rows += page["rows"]
        after = page["after"]
        if after is None:
            break
    assert [row["headers"]["n"] for row in rows] == list(range(10))


@pytest.mark.covers("C-202")
async def test_what_messages_have_in_common(node: AdminContext, stage: Stage) -> None:
    assert len(await listed(node, routing_key="q")) == 5
    assert len(await listed(node, exchange="none")) == 0
    assert await listed(node, headers={"n": "3"}) == ["@3"]
    assert await listed(node, headers={"n": 3, "even": "false"}) == ["@3"]
    assert await listed(node, headers={"even": "true"}, routing_key="other") == ["@6", "@8"]
    now = stage.now
    assert await listed(node, due_from_ms=now + 2000, due_before_ms=now + 4000) == ["@1", "@2"]


@pytest.mark.covers("C-202")
async def test_one_message(node: AdminContext, stage: Stage) -> None:
    shown = await ask(node, "schedule.show", vhost="/", id="seven")
    assert shown["payload"] == "7"
    assert shown["due_ms"] == stage.now + 8000
    assert (shown["user"], shown["broker_id"]) == ("guest", "@7")
    assert await ask(node, "schedule.show", vhost="/", id="@7") == shown
    error, text = await ask(node, "schedule.show", vhost="/", id="@77")
    assert (error, text) == ("not_found", "no message with id '@77' waits in vhost '/'")


async def test_messages_are_found_by_their_ids(node: AdminContext, client: Client) -> None:
    client.publish("q", b"x", headers={"x-delay": 500}, message_id="m1", app_id="shop", priority=2)
    assert await listed(node, message_id="m1") == ["@10"]
    assert await listed(node, message_id="m2") == []
    assert await listed(node, id="seven") == ["seven"]
    assert await listed(node, id="seven", routing_key="q") == []
    assert await listed(node, id="none") == []
    page = await ask(node, "schedule.list", **COMMON, limit=1, after=None)
    assert page["rows"][0]["message_id"] == "m1"
    shown = await ask(node, "schedule.show", vhost="/", id="@10")
    told = shown["properties"]
    assert (told["message_id"], told["app_id"], told["priority"]) == ("m1", "shop", 2)
    assert told["headers"] == shown["headers"] == {"x-delay": -500}
    assert await change(node, "cancel", message_id="m1") == 1


async def test_bytes_are_shown_as_base64(node: AdminContext, client: Client, stage: Stage) -> None:
    client.publish("q", b"\xff\0", headers={"x-delay": 100})
    shown = await ask(node, "schedule.show", vhost="/", id="@10")
    assert (shown["payload"], shown["payload_encoding"]) == ("/wA=", "base64")


@pytest.mark.covers("C-202")
async def test_cancelling(node: AdminContext, stage: Stage) -> None:
    assert await change(node, "cancel", id="seven") == 1
    assert await change(node, "cancel", id="seven") == (
        "not_found",
        "no message with id 'seven' waits in vhost '/'",
    )
    assert await change(node, "cancel", routing_key="q") == 5
    assert await listed(node) == ["@5", "@6", "@8", "@9"]
    assert await change(node, "cancel", all=True) == 4
    assert stage.broker.schedules.pending_count("/") == 0


@pytest.mark.covers("C-202")
async def test_rescheduling_keeps_the_id(node: AdminContext, stage: Stage, client: Client) -> None:
    assert await change(node, "reschedule", id="@0", due_ms=None, delay_ms=60_000) == 1
    stage.run()
    assert (await listed(node))[-1] == "@0"
    assert await change(node, "reschedule", id="@0", due_ms=stage.now + 500, delay_ms=None) == 1
    stage.run()
    assert (await listed(node))[0] == "@0"
    stage.advance(0.5)
    assert client.count("q") == 1
    for _ in range(100):
        stage.advance(1)
    assert client.count("q") == 5


@pytest.mark.covers("C-202")
async def test_all_at_once(node: AdminContext, stage: Stage, client: Client) -> None:
    client.declare("other")
    assert await change(node, "deliver_now", all=True) == 10
    stage.run()
    stage.advance(0)
    assert client.count("q") + client.count("other") == 10
    stage.advance(30)
    assert client.count("q") + client.count("other") == 10


async def test_what_was_put_off_is_not_met_again(node: AdminContext, stage: Stage) -> None:
    count = await change(node, "reschedule", all=True, due_ms=None, delay_ms=90_000)
    assert count == 10
    stage.run()
    assert stage.broker.schedules.pending_count("/") == 10


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "state either an id, or what messages have in common"),
        ({"id": "a", "all": True}, "state either an id, or what messages have in common"),
        ({"id": "a", "routing_key": "q"}, "state either an id, or what messages have in common"),
        ({"due_from_ms": -1}, "due_from_ms is a whole number"),
        ({"due_from_ms": True}, "due_from_ms is a whole number"),
        ({"vhost": "none", "all": True}, "no vhost 'none'"),
    ],
)
async def test_bad_requests(node: AdminContext, parameters: dict[str, object], text: str) -> None:
    _, explanation = await change(node, "cancel", **parameters)
    assert text in explanation, explanation


async def test_a_time_is_stated_once(node: AdminContext, stage: Stage) -> None:
    for times in ({"due_ms": None, "delay_ms": None}, {"due_ms": 1, "delay_ms": 1}):
        error, _ = await change(node, "reschedule", id="@0", **times)
        assert error == "invalid"
    far = stage.now + 367 * 86_400_000
    error, text = await change(node, "reschedule", id="@0", due_ms=far, delay_ms=None)
    assert "366 days" in text


async def test_a_stopped_node_knows_of_none(node: AdminContext) -> None:
    stopped = AdminContext(node.administration, node.vhosts)
    _, text = await ask(stopped, "schedule.show", vhost="/", id="a")
    assert "only a running one knows" in text


async def test_changes_are_events(node: AdminContext, stage: Stage, client: Client) -> None:
    client.declare("events")
    client.call(
        commands.Queue.Bind(queue="events", exchange="amq.rabbitmq.event", routing_key="schedule.#")
    )
    await change(node, "cancel", id="@0")
    await change(node, "reschedule", id="@1", due_ms=None, delay_ms=60_000)
    stage.run()
    told = []
    for _ in range(2):
        client.send(commands.Basic.Get(queue="events", no_ack=True))
        frames = [frame for _, frame in client.received()]
        told.append((frames[0].routing_key, frames[1].properties.headers["id"]))
    assert told == [("schedule.cancelled", "@0"), ("schedule.rescheduled", "@1")]


async def test_a_disk_that_refuses_is_told(node: AdminContext, stage: Stage) -> None:
    stage.log("leveret.delayed").append_error = DiskFullError("no space left")
    error, explanation = await change(node, "reschedule", id="seven", delay_ms=1)
    assert error == "storage"
    assert explanation.startswith("the disk refused it, and what it refused has not changed")
    assert (await change(node, "deliver_now", id="seven"))[0] == "storage"
    stage.log("leveret.delayed").append_error = None
    assert await change(node, "reschedule", id="seven", delay_ms=1) == 1
    assert await listed(node, 1) == ["seven"]


async def test_a_disk_that_refused_the_first_page_is_told(
    node: AdminContext, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PAGE_RECORDS", 2)
    log = stage.log("leveret.delayed")
    log.append_error = DiskFullError("no space left")
    change_of_all = change(node, "reschedule", all=True, delay_ms=60_000)
    changing = asyncio.get_running_loop().create_task(change_of_all)
    await eventually(lambda: stage.reported)
    log.append_error = None
    error, explanation = await changing
    assert error == "storage"
    assert explanation.startswith("the disk refused it, and what it refused has not changed")
    assert await listed(node, 2) == ["@0", "@1"]


async def test_blind_copies_are_shown_and_found_by_nobody(
    node: AdminContext, client: Client
) -> None:
    headers = {"x-delay": 100, "BCC": ["other"], "kind": "blind"}
    client.publish("q", b"m", headers=headers)
    common = {**COMMON, "headers": {"kind": "blind"}, "limit": 9, "after": None}
    [row] = (await ask(node, "schedule.list", **common))["rows"]
    assert "BCC" not in row["headers"]
    shown = await ask(node, "schedule.show", vhost="/", id=row["id"])
    assert "BCC" not in shown["headers"]
    assert await listed(node, headers={"BCC": "['other']"}) == []
