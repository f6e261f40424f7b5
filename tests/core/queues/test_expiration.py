"""Validity of expirations, in the words that RabbitMQ 3.10 was seen to use."""

import pytest

from leveret.core.queues.expiration import EXPIRATION_MS_MAX, expiration_fault


@pytest.mark.parametrize("text", [b"0", b"5", b"+5", b"-0", b"007", b"%d" % EXPIRATION_MS_MAX])
def test_milliseconds(text):
    assert expiration_fault(text) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"soon", "no_integer"),
        (b" 5", "no_integer"),
        (b"-", "no_integer"),
        (b"10s", '{leftover_string,"s"}'),
        (b'1"\n', '{leftover_string,"\\"\\n"}'),
        (b"1\x00\x01", "{leftover_string,[0,1]}"),
        (b"-1", "{value_negative,-1}"),
        (b"%d" % (EXPIRATION_MS_MAX + 1), "{value_too_large,4294967296}"),
    ],
)
def test_other_texts(text, fault):
    assert expiration_fault(text) == fault
