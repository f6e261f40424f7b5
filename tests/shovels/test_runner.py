"""A shovel at work with fake connections: states, reasons, the order of URIs, delays."""

import asyncio

from pamqp import commands

from leveret.amqp.client import ClientError
from leveret.amqp.client_frames import Content
from leveret.features.shovels.parameters import ShovelDefinition
from leveret.ports.contents import encode_properties
from leveret.shovels.runner import ShovelRunner
from tests.support.waiting import eventually

VALUE = {
    "src-uri": "amqp://u:hush@a",
    "src-queue": "q",
    "dest-uri": ["amqp://down", "amqp://b"],
    "dest-queue": "r",
    "reconnect-delay": 0.01,
}
HEADER = encode_properties({}, 1)


class SaidClient:
    """A connection: what was sent on it, and answers that fit."""

    def __init__(self, events):
        self.events = events
        self.sent = []
        self.is_paused = self.is_closed = False

    async def open_channel(self, channel):
        self.sent.append(("open", channel))

    async def call(self, method, channel=0):
        self.sent.append((method.name, channel))
        return commands.Queue.DeclareOk("q", 2, 0)

    def send(self, method, channel=0):
        self.sent.append((method.name, method.delivery_tag, method.multiple))

    def publish(self, method, header, body, channel):
        self.sent.append(("publish", method.routing_key, body))

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False

    async def close(self):
        self.is_closed = True
        return True

    def deliver(self, tag):
        method = commands.Basic.Deliver("c", tag, False, "", "q")
        self.events.delivered(Content(method, HEADER, b"x"))


class SaidDialer:
    def __init__(self):
        self.clients = {}
        self.asked = []

    async def connect(self, uri, name, events):
        self.asked.append(uri.host)
        if uri.host == "down":
            raise ClientError("connection to target host was refused (ECONNREFUSED)")
        self.clients[uri.host] = client = SaidClient(events)
        return client


class Work:
    """A runner in a task, until the block ends."""

    def __init__(self, **changes):
        self.dialer = SaidDialer()
        self.states = []
        shovel = ShovelDefinition.parse("v", "s", {**VALUE, **changes})
        self.runner = ShovelRunner(
            shovel, self.dialer, lambda: "c", lambda: 5, lambda one: self.states.append(one.state)
        )

    async def __aenter__(self):
        self.task = asyncio.get_running_loop().create_task(self.runner.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])

    async def ends(self):
        await eventually(lambda: self.runner.transfer is not None, "it runs")
        return self.dialer.clients["a"], self.dialer.clients["b"]


async def test_confirmed_messages_are_acknowledged():
    async with Work() as work:
        source, destination = await work.ends()
        assert work.runner.uris == ("amqp://a", "amqp://b")
        source.deliver(7)
        assert destination.sent[-1] == ("publish", "r", b"x")
        destination.events.confirmed(commands.Basic.Ack(1, False))
        assert source.sent[-1] == ("Basic.Ack", 7, False)
        assert work.runner.forwarded == 1
    assert source.is_closed
    assert destination.is_closed


async def test_it_ends_after_the_messages_that_were_there():
    async with Work(**{"src-delete-after": "queue-length"}) as work:
        source, destination = await work.ends()
        source.deliver(1)
        source.deliver(2)
        destination.events.confirmed(commands.Basic.Ack(2, True))
        assert await work.task is True
        assert source.sent[-1] == ("Basic.Ack", 2, True)
        assert source.is_closed


async def test_a_lost_connection_is_made_again():
    async with Work() as work:
        source, destination = await work.ends()
        destination.events.ended("heartbeat timeout")
        again_running = ["starting", "running", "terminated", "starting", "running"]
        await eventually(lambda: work.states == again_running, "it runs again")
        again, _ = await work.ends()
        assert source.is_closed
        assert again is not source


async def test_it_stays_where_it_is_told_not_to_connect_again():
    async with Work(**{"reconnect-delay": 0, "dest-uri": "amqp://down"}) as work:
        assert await work.task is False
        assert (work.runner.state, work.runner.since_ms) == ("terminated", 5)
        assert work.runner.reason == (
            "could not connect to destination: connection to target host was refused (ECONNREFUSED)"
        )
        assert work.dialer.clients["a"].is_closed


async def test_a_blocked_destination_slows_the_source_down():
    async with Work() as work:
        source, destination = await work.ends()
        destination.events.blocked(is_blocked=True)
        assert source.is_paused
        assert work.runner.state == "blocked"
        for tag in range(1, 121):
            source.deliver(tag)
        assert not any(each[0] == "publish" for each in destination.sent)
        destination.events.blocked(is_blocked=False)
        await eventually(lambda: not source.is_paused, "it reads again")
        assert sum(each[0] == "publish" for each in destination.sent) == 120


async def test_a_returned_message_is_not_lost():
    async with Work() as work:
        source, destination = await work.ends()
        source.deliver(1)
        destination.events.returned()
        destination.events.confirmed(commands.Basic.Ack(1, False))
        assert not any(each[0] == "Basic.Ack" for each in source.sent)
        await eventually(lambda: "terminated" in work.states, "it ends")
