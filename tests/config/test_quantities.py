import pytest

from leveret.config.quantities import parse_quantity, unit_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1GB", 10**9),
        ("1 GiB", 2**30),
        ("1g", 2**30),
        ("64mib", 64 * 2**20),
        ("128k", 128 * 1024),
        ("1.5kB", 1500),
        ("4096", 4096),
        ("9007199254740993", 9007199254740993),
        ("1XB", None),
        ("GB", None),
        ("-1GB", None),
        ("tcp://10.0.0.1", None),
    ],
)
def test_sizes_are_read_as_rabbitmq_reads_them(text, number):
    assert parse_quantity(text, "bytes") == number


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("30s", "milliseconds", 30_000),
        ("500ms", "seconds", 0.5),
        ("2h", "seconds", 7200),
        ("1d", "days", 1),
        ("50us", "microseconds", 50),
        ("7", "milliseconds", 7),
        ("7 parsecs", "milliseconds", None),
    ],
)
def test_durations_come_in_the_unit_of_their_setting(text, unit, number):
    assert parse_quantity(text, unit) == number


def test_unit_is_in_the_name():
    assert unit_of("disk_free_bytes_min") == "bytes"
    assert unit_of("consumer_timeout_ms") == "milliseconds"
    assert unit_of("usage_days_max") == "days"
    assert unit_of("channel_max") == ""
