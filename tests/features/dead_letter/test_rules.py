"""The history of a message's deaths, in plain values."""

from leveret.features.dead_letter.rules import (
    Death,
    dead_headers,
    further_keys,
    history_of,
    is_cycle,
    record,
)
from leveret.ports.tables import Timestamp, decode_raw_table, decode_table, encode_table


def death(queue=b"q", reason="rejected", **known):
    return Death(queue, reason, known.pop("time", 100), b"x", known.pop("keys", [b"k"]), **known)


def raw(**headers):
    return decode_raw_table(encode_table(headers))


def test_an_entry_has_its_fields_in_order():
    entry = death(keys=[b"k", b"cc"], original_expiration=b"60000").entry()
    assert list(entry.items()) == [
        ("original-expiration", "60000"),
        ("count", 1),
        ("reason", "rejected"),
        ("queue", b"q"),
        ("time", Timestamp(100)),
        ("exchange", b"x"),
        ("routing-keys", [b"k", b"cc"]),
    ]


def test_without_an_expiration_none_is_remembered():
    assert next(iter(death().entry())) == "count"


def test_an_original_expiration_is_a_plain_number():
    assert death(original_expiration=b"+007").entry()["original-expiration"] == "7"


def test_fields_are_of_rabbitmqs_wire_types():
    encoded = encode_table({"x-death": [death().entry()]})
    assert b"\x05countl" in encoded
    assert b"\x04timeT" in encoded
    assert b"\x05queueS" in encoded
    assert b"\x0crouting-keysA" in encoded


def test_the_latest_death_comes_first():
    history = record(record([], death(b"one")), death(b"two"))
    assert [entry["queue"] for entry in history] == [b"two", b"one"]


def test_a_repeated_death_is_counted_and_comes_to_the_front():
    history = record(record([], death(b"one", time=1)), death(b"two", time=2))
    again = record(history, death(b"one", time=3, keys=[b"other"]))
    assert [(entry["queue"], entry["count"]) for entry in again] == [(b"one", 2), (b"two", 1)]
    assert again[0]["time"] == 1  # of the first death, as are the keys
    assert again[0]["routing-keys"] == [b"k"]


def test_another_reason_is_another_entry():
    history = record(record([], death(reason="expired")), death(reason="rejected"))
    assert [entry["reason"] for entry in history] == ["rejected", "expired"]


def test_a_history_is_read_back_as_it_was_written():
    history = record(record([], death(b"one")), death(b"two", original_expiration=b"5"))
    headers = decode_raw_table(encode_table(dead_headers({}, history, death(b"two"))))
    assert encode_table({"x-death": history_of(headers)}) == encode_table({"x-death": history})
    assert history_of({}) == []
    assert history_of(raw(**{"x-death": "nonsense"})) == []


def test_no_rejection_since_the_last_death_there_makes_a_cycle():
    expired = record(record([], death(b"one", "expired")), death(b"two", "maxlen"))
    assert is_cycle(expired, b"one")
    assert is_cycle(expired, b"two")
    assert not is_cycle(expired, b"three")


def test_a_rejection_in_between_makes_no_cycle():
    rejected = record(record([], death(b"one", "expired")), death(b"two", "rejected"))
    assert not is_cycle(rejected, b"one")
    assert not is_cycle(rejected, b"two")
    later = record(rejected, death(b"three", "expired"))
    assert is_cycle(later, b"three")
    assert not is_cycle(later, b"one")


def test_first_and_last_death_are_told():
    first = death(b"one", "expired")
    headers = dead_headers(raw(mine="kept"), record([], first), first)
    last = death(b"two", "rejected")
    kept = decode_raw_table(encode_table(headers))
    headers = dead_headers(kept, record(history_of(kept), last), last)
    told = decode_table(encode_table(headers))
    del told["x-death"]
    assert told == {
        "mine": "kept",
        "x-first-death-reason": "expired",
        "x-first-death-queue": "one",
        "x-first-death-exchange": "x",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "two",
        "x-last-death-exchange": "x",
    }


def test_further_keys_are_the_strings_in_cc_and_bcc():
    headers = raw(CC=["one", 2, "two"], BCC=["three"])
    assert further_keys(headers, "CC") == [b"one", b"two"]
    assert further_keys(headers, "BCC") == [b"three"]
    assert further_keys(raw(CC="not a list"), "CC") == []
    assert further_keys({}, "BCC") == []
