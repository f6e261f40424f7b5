"""The table of keys against a dictionary, and the keys against their definition."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.features.dedup.keys import SeenKeys, message_key, text_key
from leveret.ports.records import BatchBuilder, RecordFlag
from tests.support.examples import examples

FLAGS = RecordFlag.HAS_HEADERS


def content_header(**properties):
    return header.ContentHeader(0, 1, commands.Basic.Properties(**properties)).marshal()


def key_of(**properties):
    flags = FLAGS if "headers" in properties else 0
    return message_key(flags, content_header(**properties))


def test_it_is_siphash():
    # The first vectors of the reference implementation, with 128 bits.
    assert text_key(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert text_key(bytes([0])).hex() == "da87c1d86b99af44347659119b22fc45"


@pytest.mark.covers("C-207")
def test_the_header_wins_over_the_message_id():
    assert key_of(message_id="a") == text_key(b"a")
    assert key_of(headers={"x-dedup-id": "b"}, message_id="a") == text_key(b"b")
    assert key_of(headers={"y": 1, "x-dedup-id": "b", "z": True}) == text_key(b"b")
    assert key_of(headers={"x-other": "b"}, message_id="a") == text_key(b"a")


def test_what_says_nothing_has_no_key():
    assert key_of() is None
    assert key_of(message_id="") is None
    assert key_of(headers={"x-dedup-id": ""}) is None
    assert key_of(headers={"x-dedup-id": None}) is None


def test_a_number_is_not_its_text():
    keys = {key_of(headers={"x-dedup-id": value}) for value in (1, "1", 2, True, 1 << 40)}
    assert len(keys) == 5
    assert None not in keys


WINDOW = 100
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.lists(st.integers(0, 12), min_size=1, max_size=6)),
        st.tuples(st.just("time"), st.integers(-150, 150)),
        st.tuples(st.just("cut"), st.integers(0, 8)),
        st.tuples(st.just("forget"), st.integers(0, 12)),
        st.tuples(st.just("reload"), st.just(0)),
    ),
    max_size=60,
)


class Naive:
    def __init__(self):
        self.entries = []  # [key, time, offset], oldest first

    def admit(self, keys, now, end):
        kept = []
        for key in keys:
            self.entries = [e for e in self.entries if e[1] + WINDOW > now]
            if any(e[0] == key for e in self.entries):
                continue
            for entry in self.entries:
                entry[1] = min(entry[1], now)
            self.entries.append([key, now, end + len(kept)])
            kept.append(key)
        return kept

    def cut(self, end):
        self.entries = [e for e in self.entries if e[2] < end]

    def forget(self, key):
        self.entries = [e for e in self.entries if e[0] != key]


def batch_of(keys, now, end):
    builder = BatchBuilder()
    for key in keys:
        builder.add(0, now, b"", b"q", content_header(message_id=f"m{key}"), b"")
    return builder, builder.preview(end)


@settings(max_examples=examples(300))
@given(EVENTS)
def test_it_behaves_as_a_list(events):
    seen, naive, now, end = SeenKeys(), Naive(), 1000, 0
    for kind, value in events:
        if kind == "batch":
            builder, batch = batch_of(value, now, end)
            duplicates = seen.admit(batch, WINDOW)
            if duplicates is not None:
                builder.drop(duplicates)
            kept = naive.admit(value, now, end)
            stored = [] if not builder.count else list(builder.preview(end).records())
            assert [text_key(f"m{key}".encode()) for key in kept] == [
                message_key(flags, head) for _, flags, _, _, _, head, _ in stored
            ]
            end += len(kept)
        elif kind == "time":
            now = max(now + value, 0)
        elif kind == "cut":
            end = max(end - value, 0)
            seen.truncate(end)
            naive.cut(end)
        elif kind == "forget":
            found = seen.forget(text_key(f"m{value}".encode()))
            assert (found is not None) == any(e[0] == value for e in naive.entries)
            naive.forget(value)
        else:
            # Whatever is packed in parts is the same when it is read again.
            again = SeenKeys()
            middle = end // 2
            again.load(seen.pack(0, middle), end)
            again.load(seen.pack(middle, end), end)
            seen = again
        expected = {text_key(f"m{k}".encode()): (t, o) for k, t, o in naive.entries}
        assert len(seen) == len(expected)
        assert {key: seen.find(key) for key in expected} == expected


def test_many_keys_come_and_go():
    seen = SeenKeys()
    keys = [text_key(struct.pack("<Q", n)) for n in range(5000)]
    for n, key in enumerate(keys):
        seen.add(key, n, n)
    assert len(seen) == 5000
    seen.expire(3000, 1000)
    assert len(seen) == 2999
    assert seen.oldest_ms == 2001
    assert [seen.find(key) for key in keys[:2001]] == [None] * 2001
    assert all(seen.find(key) == (n, n) for n, key in enumerate(keys) if n > 2000)
    seen.drop_below(4000)
    assert len(seen) == 1000
    seen.clear()
    assert len(seen) == 0
    assert seen.find(keys[4999]) is None


def test_a_cut_off_pack_is_refused():
    seen = SeenKeys()
    seen.add(text_key(b"a"), 1, 1)
    with pytest.raises(ValueError):
        seen.load(seen.pack(0, 2)[:-1], 2)
    with pytest.raises(ValueError):
        seen.add(b"short", 1)


def test_flags_that_are_not_checked_pass_unseen():
    builder = BatchBuilder()
    for flags in (0, RecordFlag.DEAD_LETTERED, 0):
        builder.add(flags, 1, b"", b"q", content_header(message_id="a"), b"")
    duplicates = SeenKeys().admit(builder.preview(0), WINDOW, RecordFlag.DEAD_LETTERED)
    assert list(duplicates) == [(2, 3)]


def test_older_keys_are_asked_for():
    seen, asked = SeenKeys(), []

    def older(key):
        asked.append(key)
        return 950 if key == text_key(b"m1") else 900 if key == text_key(b"m2") else None

    _, batch = batch_of([1, 2, 3], 1000, 0)
    assert list(seen.admit(batch, WINDOW, 0, older)) == [(0, 1)]
    assert len(asked) == 3
    assert len(seen) == 2


def test_keys_that_were_chosen_to_meet_in_one_place_do_not():
    # What identifiers become is known, so that anybody can look for some whose lower bits agree.
    seen = SeenKeys()
    chosen = [struct.pack("<QQ", 0xABC, number) for number in range(1, 4096)]
    chosen += [struct.pack("<QQ", number << 32, 7) for number in range(1, 4096)]
    for at, key in enumerate(chosen):
        seen.add(key, at)
    assert all(seen.find(key) == (at, 0) for at, key in enumerate(chosen))
    assert seen.probes_max < 100
