"""Placement of messages in partitions: the hash, what the key is, and the other ways."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.encode import field_table

from leveret.ports.contents import encode_properties
from leveret.ports.partitioner import RANDOM, ROUND_ROBIN, Partitioner, hash_key, place_of
from leveret.ports.records import BatchBuilder, RecordFlag

# The test vectors of docs/storage-format.md: they never change.
VECTORS = {
    b"": 0xC6757D56,
    b"a": 0x40C5855A,
    b"hello1": 0x10F9983A,
    b"order-42": 0x212AFEFB,
    b"customer/0001/invoices": 0x9748DF1C,
    "größe".encode(): 0x9721387E,
    bytes(range(255)): 0xCEAA62DC,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_the_hash_is_that_of_the_test_vectors(key, expected):
    assert hash_key(key) == expected


def rotated(value, by):
    return (value << by | value >> (32 - by)) & 0xFFFFFFFF


def murmur3(key, seed=104729):
    """MurmurHash3 (x86, 32 bits) as its description says it."""

    def mixed(block):
        return rotated(block * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF

    h, whole = seed, len(key) // 4 * 4
    for at in range(0, whole, 4):
        h ^= mixed(int.from_bytes(key[at : at + 4], "little"))
        h = (rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= mixed(int.from_bytes(key[whole:], "little")) ^ len(key)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def test_the_description_is_that_of_the_published_hash():
    assert murmur3(b"hello", 0) == 0x248BFA47
    assert murmur3(b"hello, world", 0) == 0x149BBB7F
    assert murmur3(b"aaaa", 0x9747B28C) == 0x5A97808A


@given(st.binary(max_size=300))
def test_the_hash_is_murmur3(key):
    assert hash_key(key) == murmur3(key)


def placed(count=4, by="key", seed=1):
    partitioner = Partitioner("owner", by, seed)
    partitioner.set_builders([BatchBuilder(number) for number in range(count)])
    return partitioner


def chosen(partitioner, key, headers=None, number=None, header=None):
    if header is None:
        header = encode_properties({"headers": headers} if headers else {}, 0)
    flags = RecordFlag.HAS_HEADERS if headers or header else 0
    return partitioner.for_message(flags, key, header, number).owner


def test_the_key_is_the_routing_key_unless_a_header_has_it():
    partitioner = placed(1000)
    assert chosen(partitioner, b"order-42") == hash_key(b"order-42") % 1000
    headers = {"other": 1, "x-partition-key": "order-42", "last": "x"}
    assert chosen(partitioner, b"any", headers) == hash_key(b"order-42") % 1000


def test_the_key_may_be_in_a_header_that_the_queue_names():
    partitioner = placed(1000, "customer")
    headers = {"x-partition-key": "no", "customer": "c-1"}
    assert chosen(partitioner, b"any", headers) == hash_key(b"c-1") % 1000
    assert chosen(partitioner, b"order-42", {"x-partition-key": "no"}) == (
        hash_key(b"order-42") % 1000
    )


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_counts_as_its_text_in_whichever_size_it_is_sent(value):
    partitioner = placed(100_003)
    expected = hash_key(b"%d" % value) % 100_003
    sizes = {"b": 1, "s": 2, "I": 4, "l": 8, "B": 1, "u": 2, "i": 4}
    for letter, size in sizes.items():
        try:
            packed = value.to_bytes(
                size, "big", signed=(letter.islower() and letter not in "ui") or letter == "I"
            )
        except OverflowError:
            continue
        field = b"\x0fx-partition-key" + letter.encode() + packed
        table = len(field).to_bytes(4, "big") + field
        header = bytes(12) + (1 << 13).to_bytes(2, "big") + table
        assert chosen(partitioner, b"any", header=header) == expected, letter


@pytest.mark.parametrize("value", [1.5, True, None, {"a": 1}, [1]])
def test_another_type_of_value_is_no_key(value):
    headers = {"x-partition-key": value}
    assert chosen(placed(1000), b"order-42", headers) == hash_key(b"order-42") % 1000


@given(st.binary(max_size=60))
def test_a_damaged_header_does_no_harm(header):
    assert 0 <= chosen(placed(7), b"k", header=header) < 7


def test_round_robin_takes_them_in_turn():
    partitioner = placed(3, ROUND_ROBIN)
    assert [chosen(partitioner, b"k") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_placement_is_even_and_differs_by_seed():
    counts = Counter(
        chosen(partitioner, b"k") for partitioner in [placed(4, RANDOM)] for _ in range(4000)
    )
    assert all(850 < counts[number] < 1150 for number in range(4))
    sequences = [
        [chosen(each, b"k") for _ in range(20)]
        for each in (placed(4, RANDOM, 2), placed(4, RANDOM, 3))
    ]
    assert sequences[0] != sequences[1]


@pytest.mark.parametrize("by", ["key", ROUND_ROBIN, RANDOM])
def test_a_message_with_a_number_goes_to_the_same_place_again(by):
    partitioner = placed(4, by)
    first = [chosen(partitioner, b"k%d" % number, number=number) for number in range(50)]
    assert [chosen(partitioner, b"k%d" % number, number=number) for number in range(50)] == first
    assert len(set(first)) == 4


def test_a_place_is_another_one_after_the_partitions_have_changed():
    plain = BatchBuilder()
    assert place_of(plain) is plain
    partitioner = placed(2)
    builder = partitioner.builders[0]
    before = place_of(builder)
    assert place_of(builder) == before
    partitioner.set_builders(partitioner.builders)
    assert place_of(builder) != before


def test_a_partitioned_queue_has_partitions():
    with pytest.raises(ValueError, match="at least one"):
        Partitioner(None).set_builders([])


def test_field_tables_of_clients_are_read():
    table = field_table({"x-partition-key": "order-42"})
    header = bytes(12) + (1 << 13).to_bytes(2, "big") + table
    assert chosen(placed(1000), b"any", header=header) == hash_key(b"order-42") % 1000
