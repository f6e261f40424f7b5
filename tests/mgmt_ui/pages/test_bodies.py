"""Bodies, times and histograms as pages show them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.pages.bodies import hex_dump, pretty_json, shown_as
from leveret.mgmt_ui.pages.drawing import BARS, HEIGHT, WIDTH, histogram
from leveret.mgmt_ui.pages.formats import epoch_ms, field_time


@pytest.mark.parametrize(
    ("body", "wanted", "form"),
    [
        (b"hello", "", "text"),
        (b'{"a": 1}', "", "json"),
        (b'{"a": 1}', "text", "text"),
        (b'{"a": 1}', "hex", "hex"),
        (b"{broken", "json", "text"),
        (b"17", "json", "text"),
        (b"\xff\x00", "text", "hex"),
        (b"a\x00b", "text", "hex"),
        (b"[" * 50_000, "json", "text"),
        (b'{"n": ' + b"9" * 5000 + b"}", "json", "text"),
        (b"", "", "text"),
    ],
)
def test_the_form_of_a_body(body, wanted, form):
    assert shown_as(body, wanted)[0] == form


def test_hex_dump():
    assert hex_dump(b"{\x00") == (
        "00000000  7b 00                                             |{.|"
    )
    assert hex_dump(bytes(range(17))).splitlines()[1].startswith("00000010  10 ")


@given(st.binary(max_size=200), st.sampled_from(["", "text", "json", "hex", "?"]))
def test_every_body_is_shown(body, wanted):
    form, text = shown_as(body, wanted)
    if form == "text":
        assert text.encode() == body
    elif form == "json":
        assert json.loads(text) == json.loads(body)
    else:
        lines = text.splitlines()
        assert bytes.fromhex("".join(line[10:58] for line in lines)) == body


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_json_keeps_its_meaning(value):
    assert json.loads(pretty_json(json.dumps(value))) == value


@given(st.integers(0, 4_000_000_000))
def test_times_come_back(seconds):
    assert epoch_ms(field_time(seconds * 1000)) == seconds * 1000


@pytest.mark.parametrize("text", ["", "now", "1969-12-31", "2026-13-01", "9999999999"])
def test_what_is_no_time(text):
    with pytest.raises(ApiError):
        epoch_ms(text)


@given(st.lists(st.integers(-10_000, 10**10), min_size=1), st.integers(0, 10**12))
def test_bars_stay_in_the_drawing(offsets, now_ms):
    drawn = histogram([now_ms + max(offset, -now_ms) for offset in offsets], now_ms)
    assert 0 < len(drawn.bars) <= BARS
    for bar in drawn.bars:
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH
        assert 0 <= bar.y <= bar.y + bar.height <= HEIGHT + 0.2
    assert histogram([], now_ms) is None
