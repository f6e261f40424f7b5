"""Reading backlogs in the background, a few at a time."""

from __future__ import annotations

import pytest

from leveret.core.queues.services import FewAtATime
from tests.support.gate import Gate


class Works:
    """Pieces of work that end when their gate is opened."""

    def __init__(self, limit):
        self.spawned = []
        self.begun = []
        self.gates = {}
        self.few = FewAtATime(self.spawned.append, limit)

    def add(self, name, error=None):
        async def work():
            self.begun.append(name)
            await self.gates.setdefault(name, Gate(is_open=False))
            if error is not None:
                raise error

        self.few(work)

    def step(self):
        """Go on with everything that can; what ends is gone."""
        running, self.spawned[:] = list(self.spawned), []
        for task in running:
            try:
                task.send(None)
            except StopIteration:
                continue
            self.spawned.append(task)


def test_no_more_than_the_limit_run_at_once_in_order():
    works = Works(limit=2)
    for name in "abc":
        works.add(name)
    works.step()
    assert works.begun == ["a", "b"]
    works.gates["a"].is_open = True
    works.step()
    works.step()
    assert works.begun == ["a", "b", "c"]
    for gate in works.gates.values():
        gate.is_open = True
    works.step()
    assert works.spawned == []


def test_a_failure_does_not_hold_up_the_line():
    works = Works(limit=1)
    works.add("a", error=OSError("gone"))
    works.add("b")
    works.step()
    works.gates["a"].is_open = True
    with pytest.raises(OSError, match="gone"):
        works.step()
    works.step()
    assert works.begun == ["a", "b"]
    works.gates["b"].is_open = True
    works.step()
