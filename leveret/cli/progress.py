"""Progress of long operations: a bar on a terminal, nothing for files and pipes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ProgressBar", "progress"]


class ProgressBar:
    """A bar on standard error; without `shown` it does nothing."""

    def __init__(self, shown: Any = None, task: Any = None) -> None:
        self._shown = shown
        self._task = task

    def total(self, count: float) -> None:
        """Set the total amount."""
        if self._shown is not None:
            self._shown.update(self._task, total=count)

    def advance(self, count: float) -> None:
        """Add to the amount done."""
        if self._shown is not None:
            self._shown.advance(self._task, count)

    def reach(self, count: float) -> None:
        """Set the amount done."""
        if self._shown is not None:
            self._shown.update(self._task, completed=count)


@contextmanager
def progress(what: str, *, shown: bool = True) -> Iterator[ProgressBar]:
    """Show a progress bar within the context, if standard error is a terminal.

    It is removed at the end. Without a total it only shows activity.
    """
    if not shown or not sys.stderr.isatty():
        yield ProgressBar()
        return
    from rich.console import Console  # imported only if needed
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield ProgressBar(bar, bar.add_task(what, total=None))
