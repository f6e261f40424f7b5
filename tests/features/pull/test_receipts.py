"""Handles come back from anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from leveret.features.pull.receipts import Receipt, parse_receipt, queue_digest, token_from

words = st.integers(0, 2**64 - 1)


@given(st.binary(min_size=8, max_size=8), words, words)
def test_a_handle_says_what_it_was_made_of(queue, offset, token):
    receipt = Receipt(queue, offset, token)
    assert parse_receipt(receipt.text) == receipt
    assert len(receipt.text) == 32


@given(st.text() | st.text(alphabet="AZaz09-_+/=", min_size=32, max_size=32) | st.none())
def test_anything_is_a_handle_or_none(text):
    receipt = parse_receipt(text)
    assert receipt is None or receipt.text == text


def test_queues_are_told_apart():
    assert (
        len(
            {
                queue_digest(*names)
                for names in [("/", "q", "1", 0), ("/", "q", "2", 0), ("/", "q", "1", 1)]
            }
        )
        == 3
    )
    assert token_from("a") != token_from("b")
