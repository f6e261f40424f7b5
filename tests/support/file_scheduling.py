"""Schedules files of tests, also where a process that runs some of them dies.

A plugin of every run of pytest here (pyproject.toml). A test that hangs ends its process, and so
does one that crashes. With `--dist loadfile` pytest-xdist 3.8 hands a dead worker's finished files
to its successor, which waits for ever for tests to run; and the deadly test, which ends that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class LastingFileScheduling(LoadFileScheduling):
    """Files one by one to each worker; those that a dead one has not finished go to others."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker. Returns the test during which it died; that is not run again."""
        files = self.assigned_work.pop(node)
        left = ((file, test) for file in files for test, done in files[file].items() if not done)
        file, crashed = next(left, ("", None))
        if crashed is not None:
            files[file][crashed] = True
            self.workqueue.update((file, files[file]) for file, _ in left)
            for other in self.nodes:
                self._reschedule(other)
        return crashed

    def schedule(self) -> None:
        """Give work to the workers, the first time or because there is another one.

        A worker begins a test when it knows the next one, or that there is none: a single file of
        one test would not be begun.
        """
        has_begun = self.collection is not None
        super().schedule()
        if has_begun:
            super().schedule()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Schedule files so; None for other distributions, which are pytest-xdist's own."""
    return LastingFileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
