"""Which tests start processes: those that use the fixture `processes`, and no others."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

FIXTURE = "processes"
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}


class ProcessStartError(RuntimeError):
    """A test or a fixture starts a process and does not say so."""


class ProcessGuard:
    """Refuses the start of a process to a test, or a fixture, that does not use `processes`.

    A fixture has to use it by itself: a process of a module's fixture serves tests that start none.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._item: pytest.Item | None = None
        self._fixtures: list[str] = []  # those that are being set up, the innermost last
        self._refused: list[str] = []

    def install(self) -> None:
        """Listen to Python's audit events until the process ends: hooks cannot be removed."""
        sys.addaudithook(self._on_event)

    @contextmanager
    def running(self, item: pytest.Item) -> Iterator[None]:
        """Look at what starts while a test runs, its fixtures included."""
        self._item = item
        try:
            yield
        finally:
            self._item = None
            self._refused.clear()

    @contextmanager
    def setting_up(self, fixture: str) -> Iterator[None]:
        """Ask the fixture that is set up, and not the test."""
        self._fixtures.append(fixture)
        try:
            yield
        finally:
            self._fixtures.pop()

    def check(self) -> None:
        """Raise ProcessStartError where a start was refused, and the test went on all the same."""
        if self._refused:
            raise ProcessStartError(self._refused[0])

    def _on_event(self, event: str, _arguments: Sequence[object]) -> None:
        # A forked child inherits the hook; between tests, pytest starts its workers.
        if event not in STARTS or self._item is None or os.getpid() != self._pid:
            return
        if not self._permits(self._item):
            who = f"fixture {self._fixtures[-1]}" if self._fixtures else self._item.nodeid
            text = f'{who} starts a process ({event}): let it use the fixture "{FIXTURE}"'
            self._refused.append(text)
            raise ProcessStartError(text)

    def _permits(self, item: pytest.Item) -> bool:
        if not self._fixtures:
            return starts_processes(item)
        definitions = item._fixtureinfo.name2fixturedefs
        seen: set[str] = set()
        names = [self._fixtures[-1]]
        while names:
            name = names.pop()
            if name == FIXTURE:
                return True
            if name not in seen:
                seen.add(name)
                names += [needed for one in definitions.get(name, ()) for needed in one.argnames]
        return False


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test uses `processes`, by itself or through a fixture."""
    return FIXTURE in getattr(item, "fixturenames", ())
