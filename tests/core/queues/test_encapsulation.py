"""Nobody reaches through the state of a queue into what it is made of."""

import re
from pathlib import Path

from leveret.core.queues.state import QueueState

LEVERET = Path(__file__).parents[3] / "leveret"
STATE = LEVERET / "core/queues/state.py"
INNER = "|".join(name for name in QueueState.__slots__ if name.startswith("_"))
LEDGERS = re.compile(r"core\.ledgers(?!\.sizes)")
REACHED = re.compile(rf"\b_?state\.({INNER})\b")


def test_the_inside_of_a_state_is_its_own():
    for path in LEVERET.rglob("*.py"):
        reached = None if path == STATE else REACHED.search(path.read_text())
        assert reached is None, f"{path}: ask the state of a queue, not {reached[0]}"


def test_only_the_state_makes_ledgers():
    for path in LEVERET.rglob("*.py"):
        if path != STATE and LEDGERS.search(path.read_text()):
            assert path.is_relative_to(LEVERET / "core/ledgers"), path
