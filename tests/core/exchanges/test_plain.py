import pytest

from leveret.core.exchanges.direct import DirectRouter
from leveret.core.exchanges.fanout import FanoutRouter
from leveret.ports.definitions import BindingDefinition


class Bound:
    """As much of a binding as a router looks at."""

    def __init__(self, key):
        self.definition = BindingDefinition("/", "x", "q", "queue", key)


@pytest.mark.covers("B-170")
def test_direct_takes_the_key_literally():
    router = DirectRouter({})
    star, first, second = Bound("*"), Bound("k"), Bound("k")
    for binding in (star, first, second):
        router.check(binding)
        router.add(binding)
    assert list(router.match("k", None)) == [first, second]
    assert list(router.match("", None)) == []
    router.remove(first)
    assert list(router.match("k", None)) == [second]
    router.remove(second)
    router.remove(star)
    assert router.by_key == {}


@pytest.mark.covers("B-170")
def test_fanout_ignores_the_key():
    router = FanoutRouter({})
    first, second = Bound("a"), Bound("b")
    router.add(first)
    router.add(second)
    assert list(router.match("c", None)) == [first, second]
    router.remove(first)
    assert list(router.match("a", None)) == [second]
