"""How a page becomes text."""

from leveret.mgmt_ui.pages import rendering
from leveret.mgmt_ui.pages.rendering import RUN_SECONDS, YieldingFinalizer


def test_who_renders_rests_time_and_again(monkeypatch):
    now = [1000.0]
    rests = []
    monkeypatch.setattr(rendering.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(rendering.time, "sleep", rests.append)
    shown = YieldingFinalizer()
    values = ["a", 1, None, 2.5, b"", [], object(), "b"]
    for value in values:
        now[0] += RUN_SECONDS * 0.6
        assert shown(value) is value
    assert rests == [rendering.REST_SECONDS] * 4  # before the first, and with each second one


async def test_pages_are_made_with_rests(guest, monkeypatch):
    rests = []
    monkeypatch.setattr(rendering.time, "sleep", rests.append)
    monkeypatch.setattr(rendering, "RUN_SECONDS", 0.0)
    assert (await guest.get("/overview")).status_code == 200
    assert rests.count(rendering.REST_SECONDS) > 10
