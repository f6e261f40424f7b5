"""Records that a filter lets through, against the same question asked of Python's values."""

from contextlib import nullcontext
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from leveret.features.filters.filters import TagCondition
from leveret.features.filters.rules import record_filter
from leveret.features.filters.sql import ParsedSql, parse_sql
from leveret.features.filters.tags import TagOperation
from leveret.ports import picking
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch, BatchBuilder, RecordFlag
from leveret.ports.tags import tag_bit_of
from tests.features.filters.test_sql import HEADERS, conditions
from tests.features.filters.test_tags import TAGS, expressions
from tests.support.contents import encode_properties

MESSAGES = st.lists(
    st.tuples(st.none() | st.lists(st.sampled_from(TAGS), max_size=3), HEADERS), max_size=12
)


def headers_of(tags, headers):
    carried = {name: value for name, value in headers.items() if not isinstance(value, bytes)}
    return carried if tags is None else {**carried, "x-tags": tags}


def batches_of(messages, sizes=(3,), base=0):
    found, at = [], 0
    while at < len(messages):
        builder = BatchBuilder()
        for tags, headers in messages[at : at + sizes[len(found) % len(sizes)]]:
            properties = commands.Basic.Properties(headers=headers_of(tags, headers))
            header = encode_properties(properties, 0)
            builder.add(RecordFlag.HAS_HEADERS, 1, b"", b"k", header, b"")
        at += builder.count
        found.append(builder.seal(base + at - builder.count))
    return found


def wanted_offsets(messages, tags_oracle, sql, base=0):
    return [
        base + i
        for i, (tags, headers) in enumerate(messages)
        if (tags_oracle is None or tags_oracle(set(tags or ())))
        and (sql is None or parse_sql(sql).holds(headers_of(tags, headers), {}))
    ]


def offsets(runs):
    return [offset for first, stop in runs for offset in range(first, stop)]


@given(
    MESSAGES,
    st.none() | expressions(),
    st.none() | conditions(),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.data(),
)
def test_finds_what_is_wanted_of_what_is_ready(messages, tags, sql, sizes, data):
    arguments = {}
    if tags is not None:
        arguments["x-filter-tags"] = tags[0]
    if sql is not None:
        arguments["x-filter-sql"] = sql[0]
    wanted = record_filter(arguments)
    if wanted is None or not messages:
        return
    batches = batches_of(messages, sizes, base=10)
    expected = wanted_offsets(messages, tags and tags[1], sql and sql[0], base=10)
    stop = 10 + len(messages)

    holes = data.draw(st.lists(st.integers(10, stop), max_size=4))
    ready = RangeSet([(10, stop)])
    for hole in holes:
        ready.remove(hole, hole + 1)
    left = [offset for offset in expected if offset in ready]
    limit = data.draw(st.integers(1, len(messages) + 1))
    runs, reached = wanted.find(batches, ready, 10, stop, limit)
    assert offsets(runs) == left[:limit]
    assert all(first < stop for first, stop in runs)
    assert all(one[1] < other[0] for one, other in pairwise(runs))
    assert [offset for offset in left if offset < reached] == left[:limit]

    at, found = 10, []
    while at < stop:
        first, end = wanted.run(batches, at, stop)
        found += range(first, end)
        assert end > at
        at = end
    assert found == expected

    for i, (tags_of, headers) in enumerate(messages):
        properties = commands.Basic.Properties(headers=headers_of(tags_of, headers))
        assert wanted.matches(encode_properties(properties, 0)) == (10 + i in expected)


def test_untagged_messages_are_found_among_tagged_ones():
    batches = batches_of([(["a"], {}), (None, {})], [2])
    wanted = record_filter({"x-filter-tags": "!*"})
    assert wanted.run(batches, 0, 2) == (1, 2)
    assert wanted.find(batches, RangeSet([(0, 2)]), 0, 2, 2) == ([(1, 2)], 2)


class Clock:
    """Says that time is over once it was looked at so often, as each judgement takes some."""

    def __init__(self, looks):
        self.looks = looks

    def is_over(self):
        self.looks -= 1
        return self.looks <= 0


def test_a_call_ends_when_its_time_is_over_and_the_next_goes_on():
    messages = [(None, {"a": i}) for i in range(300)]
    batches = batches_of(messages, [100])
    clock = Clock(250)
    wanted = record_filter({"x-filter-sql": "a < 0"}, clock.is_over)
    ready = RangeSet([(0, len(messages))])
    assert wanted.find(batches, ready, 0, 300, 10) == ([], 250)
    assert (wanted.judgements, wanted.tired) == (250, True)
    clock.looks = 5
    assert wanted.run(batches, 250, 300) == (255, 255)
    assert wanted.tired
    clock.looks = 100
    assert wanted.find(batches, ready, 255, 300, 10) == ([], 300)
    assert (wanted.judgements, wanted.tired) == (45, False)


def test_whoever_has_no_time_left_judges_one_record_all_the_same():
    batches = batches_of([(None, {"a": i}) for i in range(3)])
    wanted = record_filter({"x-filter-sql": "a < 0"}, lambda: True)
    assert wanted.find(batches, RangeSet([(0, 3)]), 0, 3, 10) == ([], 1)
    assert wanted.run(batches, 1, 3) == (2, 2)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [("h9 = 'x' and h77 is null", True), ("p.message_id = 'm'", True), ("h1 = 'x'", False)],
)
def test_only_what_is_asked_for_is_read_of_many_headers(sql, expected, monkeypatch):
    read = []
    decode = picking.decode_value
    monkeypatch.setattr(
        picking, "decode_value", lambda octets: read.append(octets) or decode(octets)
    )
    headers = {**{f"g{i}": i for i in range(2000)}, "h9": "x", "h1": "y"}
    properties = commands.Basic.Properties(headers=headers, message_id="m", content_type="text")
    assert (
        record_filter({"x-filter-sql": sql}).matches(encode_properties(properties, 0)) == expected
    )
    assert len(read) <= 1


@pytest.mark.parametrize("sql", ["b = 1", "a = 'x'", "a = 'y' and b is not null"])
def test_python_does_not_judge_what_cannot_match(sql, monkeypatch):
    asked = []
    monkeypatch.setattr(ParsedSql, "holds", lambda *arguments: asked.append(arguments) or True)
    messages = [(None, {"a": "z"}), (None, {}), (["t"], {"c": 1, "a": 1}), (None, {"c": "x"})]
    wanted = record_filter({"x-filter-sql": sql})
    assert wanted.find(batches_of(messages), RangeSet([(0, 4)]), 0, 4, 9) == ([], 4)
    assert not asked
    assert wanted.judgements == 0


def test_a_mask_that_collides_decides_nothing():
    bit = tag_bit_of(b"a")
    other = next(f"t{i}" for i in range(10_000) if tag_bit_of(b"t%d" % i) == bit)
    batches = batches_of([([other], {}), (["a"], {}), (["a", other], {})])
    assert record_filter({"x-filter-tags": "a"}).find(batches, RangeSet([(0, 3)]), 0, 3, 9) == (
        [(1, 3)],
        3,
    )
    assert record_filter({"x-filter-tags": "!a"}).find(batches, RangeSet([(0, 3)]), 0, 3, 9) == (
        [(0, 1)],
        3,
    )


@given(st.binary(max_size=60), st.data())
def test_headers_that_make_no_sense_do_no_harm(damage, data):
    header = encode_properties(
        commands.Basic.Properties(headers={"x-tags": ["a", "b"], "n": "1", "m": 2}), 0
    )
    at = data.draw(st.integers(12, len(header)))
    broken = header[:at] + damage + header[at + len(damage) :]
    builder = BatchBuilder()
    builder.add(RecordFlag.HAS_HEADERS, 1, b"", b"k", broken, b"")
    batch = builder.seal(0)
    wanted = record_filter({"x-filter-tags": "a || !b || *", "x-filter-sql": "n = '1' or m = 2"})
    found, stop = wanted.find([batch], RangeSet([(0, 1)]), 0, 1, 1)
    assert (found, stop) in (([], 1), ([(0, 1)], 1))
    wanted.run([Batch.parse(bytes(batch))], 0, 1)
    assert wanted.matches(broken) in {True, False}


def is_program(program, tag_count):
    """Whether its operations find their operands, and one result is left."""
    depths = list(
        accumulate(
            1 if step >= TagOperation.ANY else -1 if step <= TagOperation.AND else 0
            for step in program
        )
    )
    known = all(TagOperation.OR <= step < tag_count for step in program)
    return known and bool(depths) and min(depths) >= 1 and depths[-1] == 1


@given(st.lists(st.binary(max_size=3), max_size=3), st.lists(st.integers(-6, 4), max_size=8))
@example(
    [b"a", b"b"], [0, TagOperation.NOT, 1, TagOperation.AND, TagOperation.ANY, TagOperation.OR]
)
def test_only_a_program_is_run(tags, program):
    refused = nullcontext() if is_program(program, len(tags)) else pytest.raises(ValueError)
    with refused:
        TagCondition(tags, program)


def test_a_look_that_ends_within_a_batch_leaves_its_place_right():
    (batch,) = batches_of([(["a"], {"n": number}) for number in range(6)], [6])
    wanted = record_filter({"x-filter-tags": "!a"})
    assert wanted.find([batch], RangeSet([(0, 2)]), 0, 4, 9) == ([], 4)
    headers = [batch.record(offset)[4] for offset in (4, 5)]
    assert headers == [record[5] for record in batch.records()][4:]
