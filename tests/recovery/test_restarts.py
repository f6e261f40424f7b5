"""Each feature, ended at each step, starts with what it knew; damage costs what it hits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

import pytest

from tests.recovery.node import Node
from tests.recovery.scenarios import SCENARIOS

LATER_SECONDS = 20  # everything that waits comes, or expires
KILLS = 30  # at points spread over all changes of files


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def steps_of(scenario, loop):
    node = Node(loop)
    count = sum(1 for _ in scenario(node))
    node.kill()
    return count


def played(scenario, loop, steps, **limits):
    """A node that has come to a step."""
    node = Node(loop, **limits)
    for _ in islice(scenario(node), steps):
        pass
    node.flush()
    return node


def later(node):
    node.advance(LATER_SECONDS)
    return node.observe()


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_state_survives_an_end_at_any_step(loop, scenario, end):
    for steps in range(1, 1 + steps_of(scenario, loop)):
        unended = played(scenario, loop, steps)
        expected = later(unended)
        unended.kill()
        node = played(scenario, loop, steps)
        before = node.observe()
        end(node)
        again = node.next_life()
        assert again.observe().difference(before) == [], steps
        assert later(again).difference(expected) == [], steps
        assert again.reported == []
        again.kill()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_kill_within_a_write_leaves_a_state_that_restarts_keep(loop, scenario):
    node = played(scenario, loop, None, segment_bytes_max=300)
    changes = node.files.calls
    node.kill()
    for fail_at in range(1, changes, 1 + changes // KILLS):
        node = Node(loop, segment_bytes_max=300)
        node.files.fail_at = fail_at
        with suppress(Exception):  # what clients are told by a node whose disk is dead
            for _ in scenario(node):
                pass
        node.kill()
        first = node.next_life()
        first.flush()
        found = first.observe()
        assert first.reported == [], fail_at
        first.kill()
        second = first.next_life()
        assert second.observe().difference(found) == [], fail_at
        second.kill()


@pytest.mark.parametrize("keeps_state", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_everything_around_damage_is_restored(loop, scenario, keeps_state):
    node = played(scenario, loop, None, segment_bytes_max=300)
    before = node.observe()
    node.close()
    # Without the state store, damage in a last file looks like the end of a crash.
    lost = node.damage_middle(sealed_only=not keeps_state)
    assert lost
    again = node.next_life(keeps_state=keeps_state)
    assert again.observe().difference(before.without(lost)) == []
    again.kill()
