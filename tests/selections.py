"""The tests that `make test` runs, in two calls of pytest, as its arguments.

A mark given here replaces the one in pyproject.toml, so that the long forms are left out once more.
"""

from __future__ import annotations

import os

IN_PROCESS = (
    *("-n", str(os.cpu_count() or 1), "--dist", "loadfile"),
    *("-m", "not processes and not soak and not hostile and not clean_root"),
)
WITH_PROCESSES = ("-m", "smoke")
