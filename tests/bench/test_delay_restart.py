"""The measurement of restarts runs, and its own checks hold: nothing that waits is lost."""

from bench.delay_restart import measure


def test_with_ten_thousand_messages(tmp_path):
    found = list(measure(tmp_path, 10_000, "os", rounds=1, soon_ms=12_000, down_ms=6000))
    assert [restart.name for restart in found] == ["clean stop", "kill -9"]
    for restart in found:
        assert restart.delivered == 101
        assert restart.after == restart.before - restart.delivered
        assert 0 < restart.ready_s <= restart.first_s
