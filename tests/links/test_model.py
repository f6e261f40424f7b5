"""A link driven at random, beside a model that only knows lists: seeds repeat a run."""

import random

import pytest

from leveret.links.errors import RefusalCode
from leveret.links.events import (
    Answered,
    MessageCame,
    RequestCame,
    RequestCancelled,
    RequestRefused,
    StreamEnded,
    StreamFailed,
    StreamMessage,
    StreamOpened,
)
from tests.links.pipes import SMALL, Pipe, events

SIZES = (0, 1, 100, 5_000, 16_384, 16_385, 40_000, 90_000)
STEPS = 400


class StreamModel:
    """One direction of a stream: what was sent, what has come, and how it ended."""

    def __init__(self):
        self.sent = []
        self.received = []
        self.unconsumed = []
        self.has_ended = False  # by its sender
        self.is_over = False  # at its receiver


class LinkModel:
    """Both sides of a link, and what each of them must see."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.pipe = Pipe()
        self.outcomes = {}  # of requests: None until they end
        self.answers = {}
        self.handled = {}  # requests at the acceptor
        self.cancelled = set()
        self.sent_messages, self.received_messages = [], []
        self.streams = {}  # by id: both directions, True from the dialer
        self.opened = set()  # at the acceptor
        self.failed = {}  # by id: sides that know of it

    def machine(self, side):
        return self.pipe.dialer if side else self.pipe.acceptor

    def payload(self):
        return self.random.randbytes(self.random.choice(SIZES))

    # -- what happens

    def step(self):
        actions = [self.request, self.cancel, self.answer, self.send, self.open, self.message,
                   self.message, self.end, self.fail, self.consume, self.ping]  # fmt: skip
        self.random.choice(actions)()
        for _ in range(self.random.randrange(4)):
            side = self.random.random() < 0.5
            self.pipe.send(side, self.random.choice((1, 10_000, 100_000)))
            self.pipe.carry(side, self.random.randrange(1, 30_000))
            self.look()

    def request(self):
        if self.pipe.dialer.may_request:
            self.outcomes[self.pipe.dialer.request(1, self.payload())] = None

    def cancel(self):
        waiting = [each for each, outcome in self.outcomes.items() if outcome is None]
        if waiting:
            chosen = self.random.choice(waiting)
            self.pipe.dialer.cancel(chosen)
            self.outcomes[chosen] = "cancelled"

    def answer(self):
        if self.handled:
            chosen = self.random.choice(list(self.handled))
            del self.handled[chosen]
            if self.random.random() < 0.2:
                self.pipe.acceptor.refuse(chosen, 100, "no")
                self.answers[chosen] = 100
            else:
                self.answers[chosen] = self.payload()
                self.pipe.acceptor.answer(
                    chosen, [self.answers[chosen]], is_checked=self.random.random() < 0.5
                )

    def send(self):
        if not self.pipe.dialer.is_full:
            payload = self.payload()
            self.pipe.dialer.send(2, payload)
            self.sent_messages.append(payload)

    def open(self):
        if self.pipe.dialer.may_open:
            opened = self.pipe.dialer.open(3, self.payload())
            self.streams[opened] = {True: StreamModel(), False: StreamModel()}

    def _chosen(self):
        """Choose a stream and a side that may still send on it."""
        side = self.random.random() < 0.5
        known = [
            each
            for each, both in self.streams.items()
            if not both[side].has_ended
            and side not in self.failed.get(each, ())
            and (side or each in self.opened)
        ]
        return (self.random.choice(known), side) if known else (None, side)

    def message(self):
        chosen, side = self._chosen()
        if chosen is not None and self.machine(side).is_writable(chosen):
            payload = self.payload()
            self.machine(side).send_message(chosen, payload)
            self.streams[chosen][side].sent.append(payload)

    def end(self):
        chosen, side = self._chosen()
        if chosen is not None:
            self.machine(side).end(chosen)
            self.streams[chosen][side].has_ended = True

    def fail(self):
        chosen, side = self._chosen()
        if chosen is not None and self.random.random() < 0.5:
            self.machine(side).fail(chosen, 9, "model")
            self.failed.setdefault(chosen, set()).add(side)

    def consume(self):
        for each, both in self.streams.items():
            for from_dialer, direction in both.items():
                if direction.unconsumed and self.random.random() < 0.7:
                    size = direction.unconsumed.pop(0)
                    self.machine(not from_dialer).consumed(each, size)

    def ping(self):
        self.machine(self.random.random() < 0.5).ping(1)

    # -- what is seen

    def look(self):
        for side in (True, False):
            for event in events(self.machine(side)):
                self.see(side, event)

    def see(self, side, event):
        if isinstance(event, RequestCame):
            self.handled[event.id] = event.payload
        elif isinstance(event, RequestCancelled):
            self.handled.pop(event.id, None)
        elif isinstance(event, Answered):
            assert self.outcomes[event.id] is None, "it ends once"
            assert event.payload == self.answers[event.id]
            self.outcomes[event.id] = "answered"
        elif isinstance(event, RequestRefused):
            assert self.outcomes[event.id] is None, "it ends once"
            assert event.code in (RefusalCode.BUSY, self.answers.get(event.id))
            self.outcomes[event.id] = "refused"
        elif isinstance(event, MessageCame):
            self.received_messages.append(event.payload)
            assert self.received_messages == self.sent_messages[: len(self.received_messages)]
        elif isinstance(event, StreamOpened):
            self.opened.add(event.id)
        elif isinstance(event, StreamMessage):
            direction = self.streams[event.id][not side]
            direction.received.append(event.payload)
            direction.unconsumed.append(len(event.payload))
            assert not direction.is_over, "the end is the last"
            assert direction.received == direction.sent[: len(direction.received)]
        elif isinstance(event, StreamEnded):
            direction = self.streams[event.id][not side]
            direction.is_over = True
            assert direction.has_ended or side not in self.failed.get(event.id, ())
        elif isinstance(event, StreamFailed):
            assert side not in self.failed.get(event.id, ()), "it fails once"
            assert event.id in self.failed
            self.failed[event.id].add(side)

    # -- how it ends

    def finish(self):
        """Answer and end everything, and let it arrive."""
        while True:
            for side in (True, False):
                self.pipe.send(side)
                self.pipe.carry(side)
            self.look()
            before = (len(self.handled), sum(map(len, self._unconsumed())))
            while self.handled:
                self.answer()
            for each, both in self.streams.items():
                for side, direction in both.items():
                    knows = side or each in self.opened
                    if knows and not direction.has_ended and side not in self.failed.get(each, ()):
                        self.machine(side).end(each)
                        direction.has_ended = True
                    while direction.unconsumed:
                        self.machine(not side).consumed(each, direction.unconsumed.pop(0))
            is_quiet = not any(self.pipe.under_way.values()) and before == (0, 0)
            if is_quiet and not (self.pipe.dialer.has_output or self.pipe.acceptor.has_output):
                return

    def _unconsumed(self):
        return [each.unconsumed for both in self.streams.values() for each in both.values()]

    def check_end(self):
        assert None not in self.outcomes.values(), "every request ends"
        assert self.received_messages == self.sent_messages
        for each, both in self.streams.items():
            if each not in self.failed:
                for direction in both.values():
                    assert direction.received == direction.sent
                    assert direction.is_over
        for machine in (self.pipe.dialer, self.pipe.acceptor):
            assert machine.requests_count == machine.streams_count == machine.queued_bytes == 0
            assert not machine._partials
            assert machine._handled_bytes == 0


@pytest.mark.parametrize("seed", range(100))
def test_a_link_does_what_the_model_says(seed):
    model = LinkModel(seed)
    for _ in range(STEPS):
        model.step()
    model.finish()
    model.check_end()


@pytest.mark.parametrize("seed", range(100, 130))
def test_a_link_that_is_cut_has_shown_a_prefix_of_everything(seed):
    model = LinkModel(seed)
    for _ in range(model.random.randrange(STEPS)):
        model.step()
    ended = sum(outcome is not None for outcome in model.outcomes.values())
    assert len(model.outcomes) - ended <= model.pipe.dialer.requests_count
    bound = SMALL.queued_bytes_max + max(SIZES)
    assert model.pipe.dialer.queued_bytes <= bound + 3 * SMALL.stream_queued_bytes_max
