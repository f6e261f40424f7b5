"""Nobody reaches through the state of a queue into what it is made of."""

import ast
from pathlib import Path

import pytest

from leveret.core.queues.state import QueueState

LEVERET = Path(__file__).parents[3] / "leveret"
STATE = LEVERET / "core/queues/state.py"
INNER = {name for name in QueueState.__slots__ if name.startswith("_")}


@pytest.mark.parametrize("path", sorted(LEVERET.rglob("*.py")), ids=lambda path: path.name)
def test_the_inside_of_a_state_is_its_own(path):
    if path == STATE:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute):
            continue
        of = node.value
        name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        reached = name in {"state", "_state"} and node.attr in INNER
        assert not reached, f"{path}:{node.lineno}: ask the state, not its {node.attr}"


def test_only_the_state_makes_ledgers():
    for path in LEVERET.rglob("*.py"):
        if path != STATE and "core.ledgers" in path.read_text():
            assert path.is_relative_to(LEVERET / "core/ledgers"), path
