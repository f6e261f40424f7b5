import pytest

from leveret.core.routing.routes import ROUTES_MAX, Route, RouteCache


class Resolver:
    def __init__(self):
        self.asked = []

    def __call__(self, key):
        self.asked.append(key)
        return Route(())


def test_a_key_is_resolved_once():
    resolver = Resolver()
    cache = RouteCache("x", resolver)
    route = cache.lookup(b"k")
    assert cache.lookup(b"k") is route
    assert resolver.asked == [b"k"]


def test_forgetting_is_for_one_key_and_clearing_for_all():
    resolver = Resolver()
    cache = RouteCache("x", resolver)
    for key in (b"a", b"b"):
        cache.lookup(key)
    cache.forget(b"a")
    cache.forget(b"never seen")
    assert list(cache.routes) == [b"b"]
    cache.clear()
    assert cache.routes == {}


def test_nothing_is_remembered_while_the_key_alone_does_not_decide():
    resolver = Resolver()
    cache = RouteCache("x", resolver)
    cache.lookup(b"k")
    cache.set_cacheable(False)
    cache.lookup(b"k")
    cache.lookup(b"k")
    assert (cache.cacheable, cache.routes, len(resolver.asked)) == (False, {}, 3)
    cache.set_cacheable(True)
    cache.lookup(b"k")
    assert list(cache.routes) == [b"k"]


def test_a_full_cache_starts_anew():
    cache = RouteCache("x", Resolver())
    for number in range(ROUTES_MAX + 1):
        cache.lookup(str(number).encode())
    assert list(cache.routes) == [str(ROUTES_MAX).encode()]


def test_a_key_that_cannot_be_resolved_is_not_remembered():
    def refuse(_key):
        raise ValueError

    cache = RouteCache("x", refuse)
    for _ in range(2):
        with pytest.raises(ValueError):
            cache.lookup(b"k")
    assert cache.routes == {}
