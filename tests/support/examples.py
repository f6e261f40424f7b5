"""How many examples tests ask Hypothesis for, and whether these are the same each time.

`make test` has the same examples in each run, so that its result says something about the code
alone; who wants others, as `make check` and the stage "properties" of `make verify` do, names the
profile "random". LEVERET_TEST_EXAMPLES=4 tries four times as many.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine, providers

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData

SCALE = float(os.environ.get("LEVERET_TEST_EXAMPLES", "1"))
SHRINKING_SECONDS_MAX = engine.MAX_SHRINKING_SECONDS  # then Hypothesis tells what it has
USUAL = 100  # examples of a test that names no number


def examples(count: int) -> int:
    """Return how many examples a test tries that wants `count` of them."""
    return max(1, round(count * SCALE))


def register_profiles() -> None:
    """Register "same", which holds unless the command line names another, and "random".

    How long an example takes says something about the machine and its neighbours, not about the
    code: there is no deadline.
    """
    settings.register_profile(
        "random",
        deadline=None,
        max_examples=examples(USUAL),
        suppress_health_check=[HealthCheck.too_slow],
    )
    same = settings(settings.get_profile("random"), derandomize=True)
    settings.register_profile("same", same)
    # For `python -m tests.mutations`: it asks whether a test fails, not with how short an example.
    phases = [phase for phase in Phase if phase is not Phase.shrink]
    settings.register_profile("unshrunk", same, phases=phases)
    settings.load_profile("same")


class ExamplesRecorder:
    """Counts the examples that Hypothesis tries, and sums up what it chose for them."""

    def __init__(self) -> None:
        self._count = 0
        self._choices = hashlib.sha256()

    def install(self) -> None:
        """Look at each example from now on."""
        run = engine.ConjectureRunner.test_function

        def test_function(runner: engine.ConjectureRunner, data: ConjectureData) -> None:
            run(runner, data)
            self._count += 1
            self._choices.update(repr(data.choices).encode())

        engine.ConjectureRunner.test_function = test_function

    def take(self) -> str:
        """Return the number and a digest of the examples since the last call; "" without any."""
        if not self._count:
            return ""
        taken = f"{self._count} {self._choices.hexdigest()[:16]}"
        self._count, self._choices = 0, hashlib.sha256()
        return taken


def forget_constants() -> None:
    """Have Hypothesis try no constants of our modules.

    It reads those that are imported at the moment, which depends on the tests before.
    """
    none = providers._local_constants
    providers._get_local_constants = lambda: none
