"""How far something long has come: a bar for whoever watches, nothing for files and pipes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Bar", "progress"]


class Bar:
    """A bar on standard error; without `shown` nothing is seen."""

    def __init__(self, shown: Any = None, task: Any = None) -> None:
        self._shown = shown
        self._task = task

    def total(self, count: float) -> None:
        """How much there is to do."""
        if self._shown is not None:
            self._shown.update(self._task, total=count)

    def advance(self, count: float) -> None:
        """So much more is done."""
        if self._shown is not None:
            self._shown.advance(self._task, count)

    def reach(self, count: float) -> None:
        """So much is done altogether."""
        if self._shown is not None:
            self._shown.update(self._task, completed=count)


@contextmanager
def progress(what: str, *, shown: bool = True) -> Iterator[Bar]:
    """A bar for as long as this lasts, if standard error is a terminal; it leaves no trace.

    Without a total it only says that something goes on.
    """
    if not shown or not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console  # only who watches waits for it
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield Bar(bar, bar.add_task(what, total=None))
