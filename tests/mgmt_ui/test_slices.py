import asyncio
import json

import pytest

from leveret.mgmt_ui import yielding
from leveret.mgmt_ui.yielding import (
    OwnRows,
    in_chunks,
    in_pieces,
    in_yielding_chunks,
    made,
    picked,
    sorted_by,
)


def test_a_slice_holds_what_fits_into_its_time():
    assert yielding.chunk_size(100, yielding.CHUNK_SECONDS) == 100
    assert yielding.chunk_size(100, 10 * yielding.CHUNK_SECONDS) == 10
    assert yielding.chunk_size(100, yielding.CHUNK_SECONDS / 10) == 200  # not too fast
    assert yielding.chunk_size(100, 0) == 200
    assert yielding.chunk_size(5, 1000) == yielding.ITEMS_MIN
    assert yielding.chunk_size(2000, 0) == yielding.ITEMS_MAX


async def test_other_work_goes_on_between_slices():
    passes = 0
    done = False

    async def other():
        nonlocal passes
        while not done:
            passes += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(other())
        parts = [part async for part in in_yielding_chunks(range(10 * yielding.FIRST_ITEMS))]
        done = True
    assert [item for part in parts for item in part] == list(range(10 * yielding.FIRST_ITEMS))
    assert passes >= len(parts) > 1


async def test_who_makes_many_pieces_at_once_rests(monkeypatch):
    now = [0.0]
    rests = 0

    async def rest(_seconds):
        nonlocal rests
        rests += 1

    async def pieces(share, count):
        for _ in range(count):
            now[0] += yielding.CHUNK_SECONDS * share
            yield "piece"

    monkeypatch.setattr(yielding.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(yielding.asyncio, "sleep", rest)
    assert [chunk async for chunk in in_chunks(pieces(0.4, 6))] == [b"piece" * 6]
    assert rests == 2  # with each third
    assert [chunk async for chunk in in_chunks(pieces(1.1, 3))] == [b"piece" * 3]
    assert rests == 5


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
async def test_pieces_are_sent_in_few_chunks(monkeypatch, count):
    async def pieces():
        for number in range(count):
            yield f"piece {number} ü\n"

    monkeypatch.setattr(yielding, "CHUNK_CHARACTERS", 100)
    chunks = [chunk async for chunk in in_chunks(pieces(), "end")]
    made = [piece async for piece in pieces()]
    assert b"".join(chunks).decode() == "".join([*made, "end"])
    assert all(100 <= len(chunk) < 130 for chunk in chunks[:-1])
    assert len(chunks[-1]) < 130


VALUES = [
    {},
    [],
    None,
    {"a": 1, "b": [], "c": {"d": [1, {"e": []}], "f": {}}, "g": "ü"},
    {"a": [{"n": n} for n in range(1000)], "z": None},
    ["x"] * 1000,
]


@pytest.mark.parametrize("value", VALUES)
async def test_a_value_is_encoded_in_pieces(value):
    assert "".join([piece async for piece in in_pieces(value)]) == json.dumps(value)


async def test_only_rows_made_for_the_answer_are_dropped():
    value = {"kept": [1, 2], "own": OwnRows([3, 4])}
    assert "".join([piece async for piece in in_pieces(value)]) == '{"kept": [1, 2], "own": [3, 4]}'
    assert value == {"kept": [1, 2], "own": []}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [0, 1, yielding.RUN_ITEMS, 5 * yielding.RUN_ITEMS + 1])
async def test_slices_sort_as_one_list_does(count, reverse):
    items = [(number * 7919 % 101, object()) for number in range(count)]  # many are equal
    ordered = await sorted_by(items, lambda item: item[0], reverse=reverse)
    assert ordered == sorted(items, key=lambda item: item[0], reverse=reverse)


async def test_items_are_picked_and_made_into_rows_in_order():
    assert await picked(range(100), lambda number: number % 40 == 0) == [0, 40, 80]
    assert await made(range(3), str) == ["0", "1", "2"]
