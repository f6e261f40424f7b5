"""Rules on a broker: what is watched, what is told, and what a changed or deleted rule does."""

import asyncio

import pytest
from pamqp import commands

from leveret.broker import alter_queue
from leveret.core.definitions.administration import Administration, AdministrationError
from leveret.features.alerts import alerting
from leveret.features.alerts.alerting import Alerting
from leveret.features.alerts.rules import COMPONENT, AlertCondition, AlertRule
from leveret.ports.definitions import ParameterDefinition, Paused
from tests.support.client import Client
from tests.support.stage import Stage


class Watched:
    """A broker with rules, looked at when the test says so."""

    def __init__(self):
        self.stage = Stage()
        self.broker = self.stage.broker
        self.administration = Administration(
            self.stage.access,
            self.stage.metadata,
            random_name=lambda: self.broker.random_name(""),
            on_vhost_added=self.broker.add_vhost,
            on_vhost_deleted=self.broker.remove_vhost,
        )
        self.administration.restore(self.stage.definitions())
        self.told = []
        self.node = {AlertCondition.MEMORY: 0.0}
        self.alerting = Alerting(
            self.broker.vhosts,
            self.broker.events,
            self.administration.parameters,
            wall_ms=lambda: self.stage.now,
            node_values=lambda: self.node,
            tell=self.told.append,
            breathe=lambda: asyncio.sleep(0),
            lags_of=lambda queue: {
                name: group.lag for name, group in self.broker.groups.of_queue(queue).items()
            },
        )

    def rule(self, name="r", **fields):
        parameter = ParameterDefinition("/", COMPONENT, name, {"for_seconds": 0, **fields})
        self.administration.set_parameter(parameter)

    async def look(self, seconds=0):
        """Return what is told at a look, some seconds later."""
        self.stage.now += int(seconds * 1000)
        self.told.clear()
        await self.alerting.check()
        return [(one.subject, one.is_firing, one.value) for one in self.told]


@pytest.fixture
def watched():
    return Watched()


@pytest.fixture
def client(watched):
    client = Client(watched.stage).open()
    client.declare("q", durable=True)
    return client


async def test_a_backlog_fires_and_is_over(watched, client):
    watched.rule(condition="backlog", above=1)
    client.publish("q", b"1")
    assert await watched.look() == []
    client.publish("q", b"2")
    assert await watched.look() == [("q", True, 2)]
    assert [alert.subject for alert in watched.alerting.firing] == ["q"]
    assert await watched.look(100) == []
    client.consume("q", no_ack=True)
    assert await watched.look() == [("q", False, 0)]
    assert watched.alerting.firing == []
    assert [alert.is_firing for alert in watched.alerting.past] == [True, False]


async def test_a_rule_waits_as_long_as_it_says(watched, client):
    watched.rule(condition="backlog", above=0, for_seconds=10)
    client.publish("q", b"1")
    assert await watched.look() == []
    assert await watched.look(9) == []
    assert await watched.look(1) == [("q", True, 1)]


async def test_only_what_the_pattern_finds_is_watched(watched, client):
    client.declare("other", durable=True)
    watched.rule(condition="backlog", above=0, queues="^oth")
    client.publish("q", b"1")
    client.publish("other", b"1")
    assert await watched.look() == [("other", True, 1)]


async def test_what_is_delivered_and_not_settled(watched, client):
    watched.rule(condition="unacknowledged", above=0)
    client.publish("q", b"1")
    client.consume("q")
    assert await watched.look() == [("q", True, 1)]


async def test_messages_that_nobody_takes(watched, client):
    watched.rule(condition="no_consumers")
    assert await watched.look() == []
    client.publish("q", b"1")
    assert await watched.look() == [("q", True, 1)]
    client.consume("q")
    assert await watched.look() == [("q", False, 0)]


async def test_the_age_of_the_oldest_message(watched, client):
    watched.rule(condition="age_seconds", above=30)
    client.publish("q", b"1")
    assert await watched.look(20) == []
    client.publish("q", b"2")
    assert await watched.look(11) == [("q", True, 31)]
    client.consume("q", no_ack=True)
    client.deliveries()
    assert await watched.look() == [("q", False, 0)]


async def test_rates_are_between_two_looks(watched, client):
    watched.rule(condition="publish_rate", above=1.5)
    watched.rule("slow", condition="deliver_rate", below=1)
    assert await watched.look() == [("q", True, 0)]
    client.publish("q", *[b"x"] * 20)
    client.consume("q", no_ack=True)
    client.deliveries()
    assert sorted(await watched.look(10)) == [("q", False, 2), ("q", True, 2)]


async def test_dead_letters(watched):
    client = Client(watched.stage).open()
    client.declare("q", durable=True, arguments={"x-max-length": 1})
    watched.rule(condition="dead_letters", above=0)
    await watched.look()
    client.publish("q", b"1", b"2", b"3")
    [(subject, is_firing, value)] = await watched.look(60)
    assert (subject, is_firing, value) == ("q", True, 2)
    assert await watched.look(60) == [("q", False, 0)]


async def test_what_dies_in_a_queue_younger_than_the_last_look_is_told(watched):
    watched.rule(condition="dead_letters", above=0)
    assert await watched.look() == []
    watched.stage.now += 1000
    client = Client(watched.stage).open()
    client.declare("q", durable=True, arguments={"x-max-length": 1})
    client.publish("q", b"1", b"2")
    assert await watched.look(4) == [("q", True, 1)]  # one letter is one, however soon
    client.call(commands.Queue.Delete(0, "q"))
    client.declare("q", durable=True, arguments={"x-max-length": 1})
    client.publish("q", b"1", b"2", b"3")
    await watched.look(4)
    assert [alert.value for alert in watched.alerting.firing] == [2]
    assert watched.alerting.firing[0].rule.condition.unit == "messages in the last minute"


async def test_what_died_before_a_rule_was_set_is_not_told(watched):
    client = Client(watched.stage).open()
    client.declare("q", durable=True, arguments={"x-max-length": 1})
    client.publish("q", b"1", b"2")
    watched.stage.now += 1000
    assert await watched.look() == []
    watched.rule(condition="dead_letters", above=0)
    assert await watched.look(5) == []
    client.publish("q", b"3")
    assert await watched.look(5) == [("q", True, 1)]


async def test_the_lag_of_consumer_groups(watched, client):
    client.declare("views", durable=True, arguments={"x-queue-type": "stream"})
    client.prefetch(10)
    for group in ("billing", "search"):
        client.consume("views", group, arguments={"x-consumer-group": group})
    watched.rule(condition="group_lag", above=1, groups="^bill")
    watched.rule("all", condition="group_lag", above=2, queues="^views$")
    client.publish("views", b"1", b"2")
    assert await watched.look() == [("views", True, 2)]
    [alert] = watched.alerting.firing
    assert (alert.rule.name, alert.group) == ("r", "billing")
    client.publish("views", b"3")
    await watched.look()
    assert [(each.rule.name, each.group) for each in watched.alerting.firing] == [
        ("all", "billing"),
        ("all", "search"),
        ("r", "billing"),
    ]
    client.send(commands.Channel.Close(200, "", 0, 0))
    queue = watched.broker.find_queue(watched.broker.vhosts["/"], "views", None)
    groups = watched.broker.groups
    groups.delete(groups.of_queue(queue)["search"])
    watched.stage.run()
    assert await watched.look() == [("views", False, 3)]


async def test_the_node(watched):
    watched.rule(condition="memory_bytes", above=100)
    assert await watched.look() == []
    watched.node[AlertCondition.MEMORY] = 101.0
    assert await watched.look() == [("", True, 101)]


async def test_what_is_gone_is_over(watched, client):
    watched.rule(condition="backlog", above=0)
    client.publish("q", b"1")
    assert await watched.look() == [("q", True, 1)]
    vhost = watched.broker.vhosts["/"]
    watched.broker.delete_queue(vhost, watched.broker.find_queue(vhost, "q", None))
    assert await watched.look() == [("q", False, 1)]
    watched.stage.run()


async def test_a_changed_rule_begins_anew_and_a_deleted_one_is_over(watched, client):
    client.publish("q", b"1", b"2")
    watched.rule(condition="backlog", above=0)
    assert await watched.look() == [("q", True, 2)]
    watched.rule(condition="backlog", above=1)
    assert await watched.look() == [("q", False, 2), ("q", True, 2)]
    watched.rule(condition="backlog", above=1, enabled=False)
    assert await watched.look() == [("q", False, 2)]
    watched.rule(condition="backlog", above=1)
    assert await watched.look() == [("q", True, 2)]
    watched.administration.clear_parameter("/", COMPONENT, "r")
    assert await watched.look() == [("q", False, 2)]


async def test_many_rules_on_many_queues_let_others_have_their_turn(watched, client, monkeypatch):
    checks, between = [], 0

    def concerns(rule, queue):
        nonlocal between
        between += 1
        return concerned(rule, queue)

    async def breathe():
        nonlocal between
        checks.append(between)
        between = 0

    concerned = AlertRule.concerns
    monkeypatch.setattr(AlertRule, "concerns", concerns)
    monkeypatch.setattr(watched.alerting, "_breathe", breathe)
    for number in range(20):
        client.declare(f"many {number}", durable=True)
    for number in range(300):
        watched.rule(f"r{number}", condition="backlog", above=0, queues=f"^many {number}$")
    await watched.look()
    assert sum(checks) + between == 300 * 21
    assert max(checks) <= alerting.SLICE_CHECKS
    checks.clear()
    between = 0
    await watched.look()
    assert sum(checks) + between == 0  # who is concerned is known by now
    client.declare("many 20", durable=True)
    client.publish("many 20", b"1")
    assert await watched.look() == [("many 20", True, 1)]
    watched.rule("r20", condition="backlog", above=0, queues="^q$")
    assert await watched.look() == [("many 20", False, 1)]


async def test_what_flaps_is_told_in_its_order_and_leaves_nothing_behind(watched, client):
    watched.rule(condition="backlog", above=0)
    client.consume("q", no_ack=True)
    vhost = watched.broker.vhosts["/"]
    queue = watched.broker.find_queue(vhost, "q", None)
    told = []
    for number in range(2 * alerting.PAST_MAX):
        (alter_queue.pause if number % 2 == 0 else alter_queue.resume)(
            watched.broker, queue, *[Paused.DELIVERIES] * (number % 2 == 0)
        )
        if number % 2 == 0:
            client.publish("q", b"1")
        watched.stage.run()
        told += [firing for _, firing, _ in await watched.look(5)]
        client.received()
    assert told == [True, False] * alerting.PAST_MAX
    assert len(watched.alerting.past) == alerting.PAST_MAX
    assert not watched.alerting.firing
    assert not watched.alerting._watches


async def test_what_is_too_much_to_remember_is_counted(watched, client, monkeypatch):
    monkeypatch.setattr(alerting, "WATCHES_MAX", 2)
    client.publish("q", b"1")
    for name in "abc":
        watched.rule(name, condition="backlog", above=0)
    assert len(await watched.look()) == 2
    assert watched.alerting.overlooked == 1
    watched.administration.clear_parameter("/", COMPONENT, "a")
    assert [firing for _, firing, _ in await watched.look()] == [False]
    assert [firing for _, firing, _ in await watched.look()] == [True]
    assert watched.alerting.overlooked == 0


async def test_what_is_no_rule_is_refused_when_it_is_set(watched):
    with pytest.raises(AdministrationError, match="condition is one of"):
        watched.rule(condition="boredom")


async def test_events_tell_of_alerts_and_not_of_secrets(watched, client):
    client.declare("events", durable=True)
    client.send(bind("events", "alert.*"))
    client.received()
    watched.rule(condition="backlog", above=0, queues="^q$", summary="too much", secret="hush")
    client.publish("q", b"1")
    await watched.look()
    client.consume("events", no_ack=True)
    [(_, deliver), (_, header), *_] = client.received()
    assert deliver.routing_key == "alert.firing"
    headers = header.properties.headers
    assert (headers["name"], headers["queue"], headers["value"]) == ("r", "q", 1.0)
    assert "hush" not in str(headers)


def bind(queue, key):
    from pamqp.commands import Queue  # noqa: PLC0415

    return Queue.Bind(queue=queue, exchange="amq.rabbitmq.event", routing_key=key)
