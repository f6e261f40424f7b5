"""The measurement of restarts runs, and its own checks hold: nothing that waits is lost."""

import pytest

from bench.delay_restart import measure


@pytest.mark.usefixtures("processes")
def test_with_ten_thousand_messages(tmp_path):
    found = list(measure(tmp_path, 10_000, "os", rounds=1, soon_ms=3000, down_ms=500))
    assert [restart.name for restart in found] == ["clean stop", "kill -9"]
    for restart in found:
        assert restart.delivered == 101
        assert restart.after == restart.before - restart.delivered
        assert 0 < restart.ready_s <= restart.first_s
