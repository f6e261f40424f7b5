"""Figures that are sent while a page is looked at."""

import json
from itertools import count
from types import SimpleNamespace

import pytest

from leveret.mgmt_ui.pages import live


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pauses of nearly no time, on a clock that is a second later whenever a stream looks."""
    monkeypatch.setattr(live, "INTERVAL_SECONDS", 0.002)
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=count().__next__))
    monkeypatch.setattr(live, "STREAM_SECONDS_MAX", 4)


def frames(text):
    return [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ")
    ]


async def test_figures_come_again_and_again_until_the_browser_is_to_come_back(guest):
    answer = await guest.get("/live/overview")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith("retry: ")
    assert len(frames(answer.text)) == 3  # looked at after one, two and three seconds
    assert frames(answer.text)[0]["figures"]["queues"] == "0"


async def test_stream_ends_with_the_node(site, guest):
    site.serving = False
    assert len(frames((await guest.get("/live/overview")).text)) == 1


async def test_strangers_see_no_figures(browser):
    assert (await browser.get("/live/overview")).status_code == 303


async def test_nobody_has_too_many(guest, monkeypatch):
    monkeypatch.setattr(live, "STREAMS_PER_SESSION_MAX", 0)
    assert (await guest.get("/live/overview")).status_code == 204


async def test_all_together_have_not_too_many(guest, monkeypatch):
    monkeypatch.setattr(live, "STREAMS_MAX", 0)
    assert (await guest.get("/live/overview")).status_code == 204


async def test_place_is_free_again_when_a_stream_has_ended(guest, monkeypatch):
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    for _ in range(2):
        assert (await guest.get("/live/overview")).status_code == 200


async def test_stream_ends_with_its_queue(site, guest, monkeypatch):
    site.broker.vhosts["/"].declare_queue(
        "q", durable=False, exclusive=False, auto_delete=False, arguments={}, owner=None
    )

    async def pause(_viewer):
        del site.broker.vhosts["/"].queues["q"]
        return True

    monkeypatch.setattr(live, "_pause", pause)
    assert len(frames((await guest.get("/live/queues/%2F/q")).text)) == 1
