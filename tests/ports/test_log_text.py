import pytest

from leveret.ports.log_text import one_line, quoted


@pytest.mark.parametrize("text", ["a\nb", "a\r\x1b[31mb", "\u2028", "\x00", "\ud800"])
def test_text_of_others_stays_on_its_line(text):
    shown = one_line(text)
    assert shown.isprintable()
    assert shown.isascii()


def test_name_is_quoted_and_bounded():
    assert quoted("o'brien") == "'o'brien'"
    assert len(quoted("x" * 10_000)) == 257
