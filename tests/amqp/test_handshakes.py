"""Admission of handshakes, and waiting for it: without sockets."""

import random
from collections import Counter

import pytest

from leveret.amqp.handshakes import Handshakes
from leveret.config import Configuration


class Gate:
    """Handshakes with a clock that a test turns."""

    def __init__(self, under_way=4, per_address=2, waiting=6):
        settings = Configuration(
            handshakes_max=under_way,
            handshakes_per_address_max=per_address,
            handshakes_waiting_max=waiting,
        )
        self.now_ns = 0
        self.scheduled = []
        self.admitted = []
        self.turned_away = []
        self.refused = []  # their addresses, as told
        self.served = []
        self.handshakes = Handshakes(
            settings, self.scheduled.append, lambda: self.now_ns, 1000, self.refused.append
        )

    def come(self, address, count=1):
        made = [Newcomer(self, f"{address}{i}") for i in range(count)]
        for one in made:
            self.handshakes.begin(one, address)
        return made

    def run(self):
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for callback in scheduled:
            callback()


class Newcomer:
    def __init__(self, gate, name):
        self.gate, self.name = gate, name

    def admit(self):
        self.gate.admitted.append(self.name)

    def turn_away(self):
        self.gate.turned_away.append(self.name)

    def serve(self):
        self.gate.served.append(self.name)
        self.gate.now_ns += 400


def test_so_many_are_under_way_of_an_address_and_in_all():
    gate = Gate()
    gate.come("a", 3)
    gate.come("b", 2)
    gate.come("c", 1)
    assert gate.admitted == ["a0", "a1", "b0", "b1"]
    assert (len(gate.handshakes), gate.handshakes.waiting_count) == (4, 2)


def test_a_line_is_served_in_its_order():
    gate = Gate()
    first, *_ = gate.come("a", 4)
    gate.handshakes.end(first)
    assert gate.admitted[2:] == ["a2"]
    gate.come("a", 1)  # must not overtake who waits
    assert gate.handshakes.waiting_count == 2


def test_addresses_take_turns():
    gate = Gate(under_way=1, per_address=1, waiting=100)
    running = gate.come("a", 4) + gate.come("b", 2) + gate.come("c", 1)
    by_name = {one.name: one for one in running}
    for _ in range(6):
        gate.handshakes.end(by_name[gate.admitted[-1]])
    assert gate.admitted == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_a_fleet_behind_one_address_gets_in_and_others_do_not_wait_for_it():
    gate = Gate(under_way=4, per_address=2, waiting=5000)
    fleet = gate.come("balancer", 5000)
    (other,) = gate.come("other")
    assert gate.admitted == ["balancer0", "balancer1", "other0"]
    gate.handshakes.end(other)
    for one in fleet:
        gate.handshakes.end(one)
    assert len(gate.admitted) == 5001
    assert gate.turned_away == []


def test_where_nobody_can_wait_the_longest_line_gives_way():
    gate = Gate()
    gate.come("a", 8)
    assert gate.turned_away == []
    gate.come("a", 1)
    assert gate.turned_away == ["a0"]  # the ninth is its line's own fault
    gate.come("b", 2)
    gate.come("b", 1)
    assert gate.turned_away == ["a0", "a7"]
    assert gate.refused == ["a", "a"]
    assert gate.handshakes.waiting_count == 6


def test_who_hangs_up_leaves_the_line():
    gate = Gate()
    strangers = gate.come("a", 5)
    gate.handshakes.end(strangers[3])
    gate.handshakes.end(strangers[3])
    assert gate.handshakes.waiting_count == 2
    gate.handshakes.end(strangers[0])
    gate.handshakes.end(strangers[1])
    assert gate.admitted == ["a0", "a1", "a2", "a4"]


def test_strangers_are_worked_for_by_turns_and_not_for_long():
    gate = Gate(under_way=10, per_address=10)
    strangers = gate.come("a", 5)
    for one in strangers:
        gate.handshakes.hear(one)
    assert gate.served == []
    gate.run()
    assert gate.served == ["a0", "a1", "a2"]
    gate.run()
    assert gate.served == ["a0", "a1", "a2", "a3", "a4"]
    assert gate.scheduled == []


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_while_there_is_room(seed):
    draw = random.Random(seed)
    gate = Gate(under_way=5, per_address=3, waiting=20)
    known = {}
    address_of = {}
    for _ in range(500):
        if draw.random() < 0.55 or not known:
            address = draw.choice("abcd")
            name = f"{address}-{len(address_of)}"
            one = known[name] = Newcomer(gate, name)
            address_of[name] = address
            gate.handshakes.begin(one, address)
        else:
            gate.handshakes.end(known.pop(draw.choice(sorted(known))))
        for name in gate.turned_away:
            known.pop(name, None)
        running = [name for name in known if name in gate.admitted]
        waiting = [name for name in known if name not in gate.admitted]
        counts = Counter(address_of[name] for name in running)
        assert len(running) == len(gate.handshakes) <= 5
        assert len(waiting) == gate.handshakes.waiting_count <= 20
        assert max(counts.values(), default=0) <= 3
        if len(running) < 5:
            assert all(counts[address_of[name]] == 3 for name in waiting)
