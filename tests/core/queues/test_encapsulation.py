"""The state of a queue keeps its ledger and lines to itself."""

import re
from pathlib import Path

from leveret.core.queues.state import QueueState
from leveret.core.queues.stream_state import StreamState

LEVERET = Path(__file__).parents[3] / "leveret"
STATE = LEVERET / "core/queues/state.py"
STATES = (STATE, LEVERET / "core/queues/stream_state.py")
SLOTS = (*QueueState.__slots__, *StreamState.__slots__)
INNER = "|".join(name for name in SLOTS if name.startswith("_"))
LEDGERS = re.compile(r"core\.ledgers(?!\.sizes)")
REACHED = re.compile(rf"\b_?state\.({INNER})\b")


def test_the_inside_of_a_state_is_its_own():
    for path in LEVERET.rglob("*.py"):
        reached = None if path in STATES else REACHED.search(path.read_text())
        assert reached is None, f"{path}: ask the state of a queue, not {reached[0]}"


def test_only_the_state_makes_ledgers():
    for path in LEVERET.rglob("*.py"):
        if path != STATE and LEDGERS.search(path.read_text()):
            assert path.is_relative_to(LEVERET / "core/ledgers"), path
