"""Delayed, replaced, postponed and cancelled messages come once, at their time."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests.support.client import Client
from tests.support.examples import examples
from tests.support.stage import Stage

STEP_MS = 100
IDS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.none() | IDS, st.integers(0, 20)),
        st.tuples(st.just("cancel"), IDS),
        st.tuples(st.just("reschedule"), IDS, st.integers(0, 20)),
        st.tuples(st.just("deliver-now"), IDS),
        st.tuples(st.just("wait"), st.integers(1, 5)),
    ),
    max_size=25,
)


class Model:
    """Expected outcome: when each message is due, and which have a name."""

    def __init__(self) -> None:
        self.now = 0
        self.due: dict[int, int] = {}  # by the message's number, in steps
        self.named: dict[str, int] = {}

    def publish(self, number: int, name: str | None, delay: int) -> None:
        if name is not None:
            self.cancel(name)
            self.named[name] = number
        self.due[number] = self.now + delay

    def pending(self, name: str) -> int | None:
        number = self.named.get(name)
        return number if number in self.due else None

    def cancel(self, name: str) -> int:
        return 0 if self.due.pop(self.named.pop(name, -1), None) is None else 1

    def reschedule(self, name: str, delay: int) -> int:
        number = self.pending(name)
        if number is None:
            return 0
        self.due[number] = self.now + delay
        return 1

    def pass_time(self, steps: int) -> set[int]:
        self.now += steps
        come = {number for number, due in self.due.items() if due <= self.now}
        for number in come:
            del self.due[number]
        return come


def received(client: Client, queue: str) -> list[bytes]:
    found = []
    while True:
        client.send(commands.Basic.Get(queue=queue, no_ack=True))
        frames = [frame for _, frame in client.received()]
        if frames[0].name == "Basic.GetEmpty":
            return found
        found.append(frames[2].value)


def ordered(client: Client, name: str, id_: str, **headers: int) -> int:
    table = {key.replace("_", "-"): value for key, value in headers.items()}
    client.publish(
        name,
        b"",
        exchange="leveret.schedule",
        headers={"x-schedule-id": id_, **table},
        reply_to="answers",
    )
    (answer,) = received(client, "answers")
    return json.loads(answer)["count"]


@settings(max_examples=examples(60))
@given(steps=STEPS)
def test_each_comes_once_at_its_time(steps: list[tuple]) -> None:
    stage, model = Stage(), Model()
    client = Client(stage).open()
    client.declare("q")
    client.declare("answers")

    def wait(count: int) -> None:
        expected, come = model.pass_time(count), []
        for _ in range(max(count, 1)):
            stage.advance(count and STEP_MS / 1000)
            come += received(client, "q")
        assert sorted(map(int, come)) == sorted(expected)

    for number, (kind, *rest) in enumerate([*steps, ("wait", 25)]):
        match kind:
            case "publish":
                name, delay = rest
                headers = {"x-delay": delay * STEP_MS}
                headers |= {} if name is None else {"x-schedule-id": name}
                client.publish("q", b"%d" % number, headers=headers)
                model.publish(number, name, delay)
            case "cancel":
                assert ordered(client, kind, *rest) == model.cancel(*rest)
            case "reschedule":
                name, delay = rest
                count = ordered(client, kind, name, x_delay=delay * STEP_MS)
                assert count == model.reschedule(name, delay)
            case "deliver-now":
                assert ordered(client, kind, *rest) == model.reschedule(*rest, 0)
            case "wait":
                wait(*rest)
                continue
        wait(0)
    assert stage.broker.schedules.pending_count("/") == 0
    assert not stage.reported
