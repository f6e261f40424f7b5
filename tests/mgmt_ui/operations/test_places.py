"""Where commands are performed in a cluster: of each that changes something it is said."""

from __future__ import annotations

import asyncio

import pytest

from leveret.core.access.permissions import AccessControl
from leveret.core.admin.commands import COMMANDS, AdminCommand
from leveret.core.admin.node import LedElsewhereError, check_led_here
from leveret.core.definitions.administration import Administration
from leveret.core.definitions.model import NullStore
from leveret.features.browse import commands as browse
from leveret.mgmt_ui.operations import dispatcher, places
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import MODULES, perform
from leveret.mgmt_ui.operations.places import ForwardedCommand, is_of_controller
from leveret.ports.audit import Actor, Way

VHOST = {"name": "v", "description": "", "tags": []}
LISTS = (places.OF_DEFINITIONS, places.OF_MESSAGES, places.OF_NODE)


def test_it_is_said_of_each_command_that_changes_something():
    found = {
        held.name
        for module in MODULES
        for held in vars(module).values()
        if isinstance(held, AdminCommand) and held.changes
    }
    told = [name for names in LISTS for name in names]
    assert found == set(told)
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("user.add", True), ("queue.purge", False), ("node.stop", False), ("user.list", False)],
)
def test_who_changes_definitions(name, expected):
    assert is_of_controller(COMMANDS[name]) is expected


class Controller:
    """Another node, which answers for a while."""

    def __init__(self):
        self.performed = []
        self.is_elsewhere = True

    async def perform(self, command):
        self.performed.append(command)
        return {"ok": True, "result": "of another"} if self.is_elsewhere else None


async def test_the_controller_performs_what_changes_definitions():
    controller = Controller()
    ignored = {"on_vhost_added": lambda _: None, "on_vhost_deleted": lambda _: None}
    administration = Administration(AccessControl(), NullStore(), **ignored)
    node = AdminContext(administration, {}, forwarding=controller)
    request = {"operation": "vhost.add", "parameters": VHOST}
    actor = Actor("u", "", Way.COMMAND_LINE)
    assert (await perform(node, request, actor))["result"] == "of another"
    assert not administration.vhosts()
    (command,) = controller.performed
    assert command == ForwardedCommand("vhost.add", command.values, "u")
    assert command.values["name"] == "v"
    controller.is_elsewhere = False
    assert (await perform(node, request, actor))["ok"]
    assert [vhost.name for vhost in administration.vhosts()] == ["v"]
    await perform(node, {"operation": "vhost.list", "parameters": {}}, actor)
    assert len(controller.performed) == 2


class Place:
    """A partition that is led here or elsewhere."""

    number = 0

    def __init__(self):
        self.is_led_here = False
        self.leading_node = None


class LedQueue:
    """A queue with one partition."""

    name = "q"

    def __init__(self):
        self.places = [Place()]


class Leader:
    """The node that leads, as the node that is asked finds it out."""

    def __init__(self, queue, answers):
        self.queue = queue
        self.answers = answers
        self.asked = []

    async def perform_at(self, leader, command):
        self.asked.append((leader, command.name))
        return self.answers.pop(0)


ELSEWHERE = {"ok": False, "error": "elsewhere", "explanation": "partition 0 is led by node 3"}
SHOWN = {"ok": True, "result": "of the leader"}


async def at_leader(queue, answers, monkeypatch, *, patience=60.0):
    monkeypatch.setattr(dispatcher, "LEADER_POLL_SECONDS", 0.001)
    monkeypatch.setattr(dispatcher, "LEADER_SECONDS_MAX", patience)
    monkeypatch.setattr(browse, "queue_of", lambda *_: queue)
    leader = Leader(queue, answers)
    ignored = {"on_vhost_added": lambda _: None, "on_vhost_deleted": lambda _: None}
    administration = Administration(AccessControl(), NullStore(), **ignored)
    node = AdminContext(administration, {}, forwarding=leader)
    parameters = {"vhost": "/", "queue": "q", "offset": 7}
    request = {"operation": "message.show", "parameters": parameters}
    answer = await perform(node, request, Actor("u", "", Way.COMMAND_LINE))
    return answer, leader.asked


async def test_the_leader_performs_what_is_about_its_messages(monkeypatch):
    queue = LedQueue()
    queue.places[0].leading_node = 2
    answer, asked = await at_leader(queue, [ELSEWHERE, SHOWN], monkeypatch)
    assert answer == SHOWN
    assert asked == [(2, "message.show")] * 2, "once more: it had ceased to lead"


async def test_the_next_leader_is_waited_for(monkeypatch):
    queue = LedQueue()

    async def elect():
        await asyncio.sleep(0.01)
        queue.places[0].leading_node = 1

    async with asyncio.TaskGroup() as group:
        group.create_task(elect())
        answer, asked = await at_leader(queue, [SHOWN], monkeypatch)
    assert answer == SHOWN
    assert asked == [(1, "message.show")]


async def test_without_a_leader_it_is_refused_in_the_end(monkeypatch):
    answer, asked = await at_leader(LedQueue(), [], monkeypatch, patience=0.01)
    assert answer["error"] == "elsewhere"
    assert answer["explanation"] == "partition 0 of queue 'q' is led by no node, at the moment"
    assert not asked


async def test_what_another_node_answers_is_not_asked_again(monkeypatch):
    queue = LedQueue()
    queue.places[0].leading_node = 2
    refused = {"ok": False, "error": "storage", "explanation": "it may have performed the command"}
    answer, asked = await at_leader(queue, [refused], monkeypatch)
    assert answer == refused
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("leaders", "elsewhere"),
    [([None], False), ([2], True), ([2, 2], True), ([2, 3], False), ([None, 2], False)],
)
def test_a_queue_that_one_other_node_leads(leaders, elsewhere):
    """None stands for this node."""
    queue = LedQueue()
    queue.places = [Place() for _ in leaders]
    for place, leader in zip(queue.places, leaders, strict=True):
        place.is_led_here, place.leading_node = leader is None, leader
    if elsewhere:
        with pytest.raises(LedElsewhereError) as caught:
            check_led_here(queue)
        assert caught.value.node == 2
    else:
        check_led_here(queue)
