"""Names in the code: a class name means one class, and words that were replaced stay replaced."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "leveret").rglob("*.py"))
TESTS = [
    path for root in ("tests", "interop_tests", "bench") for path in (ROOT / root).rglob("*.py")
]
COMPILED = sorted((ROOT / "leveret").rglob("*.pyx"))
COMPILED_CLASS = re.compile(r"^[ \t]*(?:cdef |cpdef )?class (\w+)", re.MULTILINE)
COMPILED_FUNCTION = re.compile(
    r"^[ \t]*(?:async def|def|(?:cdef|cpdef)\b[^=\n]*?) ?\b(\w+)\(", re.MULTILINE
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Words of our own that gave way to the field's. Each is looked for among the words of a name:
# `Lane` is found in `_Lane` and in `make_lane`, and not in `plane`.
BANNED = {
    "Administered": "AdminContext",
    "Appender": "LogWriter",
    "Arrival": "PendingConnection, or handshake",
    "Burial": "DeadLetterPublish",
    "Complaints": "ErrorThrottle, or data-loss report",
    "Concern": "PublishInterceptor",
    "DiscardHandler": "DeadLetterWorker",
    "Homecoming": "retry re-enqueue",
    "Idleness": "QueueExpiry",
    "Inflow": "publish statistics",
    "InnerClient": "InProcessClient",
    "InnerClients": "InProcessClients",
    "Intake": "publish interceptors, PublishContext",
    "KeptOrder": "KeyOrder",
    "Lane": "read queue, outbox",
    "LooseLetter": "StoredDeadLetter",
    "Oblivion": "null store",
    "OnceWriter": "DedupWriter",
    "Origins": "publish tags of the records",
    "Outflow": "delivery statistics",
    "SeenTopic": "exchange de-duplication log",
    "SendingOnce": "idempotent publish, DedupInterceptor",
    "Submission": "PublishContext",
    "Tally": "feature counters",
    "Toll": "dead-letter counters",
    "Upkeep": "ExpiryAndLimits",
    "WaitingRoom": "DelayedMessageStore",
    "asked_in": "feature flags",
    "breathe": "cooperative yielding",
    "chance": "random exchange",
    "checkup": "health checks",
    "diagnosis": "health checks",
    "distrust": "suspect",
    "doubtful": "suspect",
    "finding": "CheckResult",
    "hand_back": "retry later",
    "is_lonely": "single-reader mode",
    "journey": "message trace",
    "journeys": "message traces",
    "ladder": "retry policy",
    "lone_reads": "single-reader mode",
    "mind_alarms": "check alarms",
    "performing": "dispatcher",
    "rests": "yielding",
    "well_formed": "validated",
}
# Names that are banned as they stand, as they are ordinary words within others.
BANNED_CLASSES = {
    "Batch": {"leveret/ports/records.pyx"},
    "Flow": set(),  # delivery statistics, publish statistics
    "Letter": set(),  # dead letter
    "Part": set(),  # of what?
    "Plan": set(),
    "Seen": set(),  # browsed message
    "Stage": set(),  # prefetch buffer
    "Step": set(),
    "Told": set(),  # recovered state
    "Walk": set(),  # browse cursor
    "Window": set(),
}
NAMELESS = ("What", "Who", "Whoever", "Whatever", "It", "Nobody", "Somebody")


def words(name: str) -> str:
    """Return the words of a name, in small letters, with an underscore around each."""
    return f"_{'_'.join(WORD.findall(name)).lower()}_"


@cache
def classes(path: Path) -> tuple[str, ...]:
    return tuple(_classes(path))


@cache
def named(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the names of a file, each with its words."""
    return tuple((name, words(name)) for name in _names(path))


def _classes(path: Path) -> Iterator[str]:
    if path.suffix != ".py":
        yield from COMPILED_CLASS.findall(path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield node.name


def _names(path: Path) -> Iterator[str]:
    yield from path.relative_to(ROOT).with_suffix("").parts
    yield from classes(path)
    if path.suffix != ".py":
        yield from COMPILED_FUNCTION.findall(path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def docstrings(path: Path) -> Iterator[str]:
    if path.suffix not in (".py", ".pyi"):
        yield from re.findall(r'"""(.*)', path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_no_class_name_is_defined_twice():
    defined = defaultdict(list)
    for path in SOURCES + COMPILED:
        for name in classes(path):
            defined[name].append(str(path.relative_to(ROOT)))
    assert not {name: places for name, places in defined.items() if len(places) > 1}


@pytest.mark.parametrize("banned", BANNED)
def test_a_word_that_was_replaced_stays_replaced(banned):
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES + COMPILED
        for name, its_words in named(path)
        if words(banned) in its_words
    }
    assert not found, f"instead of {banned}, write: {BANNED[banned]}"


@pytest.mark.parametrize("banned", BANNED_CLASSES)
def test_a_class_says_what_it_is_of(banned):
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES + COMPILED
        if banned in (name.strip("_") for name in classes(path))
    }
    assert found <= BANNED_CLASSES[banned], f"{banned} of what?"


def test_a_docstring_begins_with_a_verb_or_with_its_subject():
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in [*SOURCES, *COMPILED, *(ROOT / "leveret").rglob("*.pyi"), *TESTS]
        for text in docstrings(path)
        if re.match(rf"({'|'.join(NAMELESS)})\b", text.lstrip())
    ]
    assert not wrong


def test_the_words_of_a_name():
    assert words("SendingOnce") == words("sending_once") == "_sending_once_"
    assert words("_HTTPLane2") == "_http_lane_2_"
    assert words("lane") not in words("plane")
