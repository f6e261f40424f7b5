import pytest

from leveret.core.exchanges.recent_history import (
    HISTORY_BYTES_MAX,
    LENGTH,
    NO_STORE,
    RecentHistoryRouter,
)
from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from leveret.ports.fields import WireInteger
from tests.core.exchanges.bound import to_queue


def message(number, headers=None, size=0):
    return MadeMessage(b"x", b"k", headers or {}, b"%d" % number + b"." * size)


def kept(router):
    return [int(one.body.rstrip(b".")) for one in router.history()]


@pytest.mark.covers("B-175")
def test_everybody_gets_everything_and_the_last_are_kept():
    router = RecentHistoryRouter({})
    assert not router.key_decides
    first, second = to_queue("a"), to_queue("b", "k")
    router.add(first)
    router.add(second)
    for number in range(30):
        assert list(router.match("any", message(number))) == [first, second]
        router.keep(message(number))
    assert kept(router) == list(range(10, 30))
    router.remove(first)
    assert list(router.match("any", None)) == [second]
    assert kept(router) == list(range(10, 30))  # nothing was published
    router.keep(None)
    assert kept(router) == list(range(10, 30))


@pytest.mark.covers("B-175")
def test_the_length_is_an_argument_and_a_message_may_ask_not_to_be_kept():
    router = RecentHistoryRouter({LENGTH: 3})
    for number in range(5):
        router.keep(message(number))
    router.keep(message(5, {NO_STORE: True}))
    router.keep(message(6, {NO_STORE: "true"}))
    assert kept(router) == [3, 4, 6]


def test_memory_has_a_limit_whatever_the_length():
    router = RecentHistoryRouter({LENGTH: 1 << 40})
    for number in range(40):
        router.keep(message(number, size=1 << 20))
    assert kept(router) == list(range(25, 40))
    assert router.kept_bytes <= HISTORY_BYTES_MAX
    router.keep(message(40, size=HISTORY_BYTES_MAX))
    assert kept(router) == [40]  # the newest is kept however large


@pytest.mark.covers("B-175")
@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0, "0"),
        (-1, "-1"),
        ("5", '<<"5">>'),
        (1.5, "1.5"),
        (True, "true"),
        (WireInteger(5, "unsignedint"), "5"),
    ],
)
def test_a_length_that_is_none(length, shown):
    with pytest.raises(ChannelError) as caught:
        RecentHistoryRouter({LENGTH: length})
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - Invalid argument {shown}, '{LENGTH}' must be a positive integer"
    )
