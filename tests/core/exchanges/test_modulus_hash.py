from collections import Counter
from itertools import permutations

import pytest

from leveret.core.exchanges.modulus_hash import ModulusHashRouter
from tests.core.exchanges.bound import to_exchange, to_queue

KEYS = [f"order.{number}" for number in range(3000)]


@pytest.mark.covers("B-174")
def test_equal_keys_go_to_one_binding_and_all_get_their_part():
    router = ModulusHashRouter({})
    assert router.key_decides
    assert list(router.match("k", None)) == []
    for name in "abc":
        router.add(to_queue(name))
    found = {key: router.match(key, None)[0].definition.destination for key in KEYS}
    assert found == {key: router.match(key, None)[0].definition.destination for key in KEYS}
    counts = Counter(found.values())
    assert all(counts[name] == pytest.approx(1000, rel=0.1) for name in "abc")


def test_the_order_in_which_bindings_were_made_does_not_matter():
    bindings = [to_queue("a"), to_queue("a", "k"), to_queue("b"), to_exchange("a")]
    routes = set()
    for order in permutations(bindings):
        router = ModulusHashRouter({})
        for binding in order:
            router.add(binding)
        routes.add(tuple(router.match(key, None)[0] for key in KEYS[:20]))
    assert len(routes) == 1


def test_equal_places_are_told_apart_when_one_goes():
    router = ModulusHashRouter({})
    first, second = to_queue("a", "k"), to_queue("a", "k", n=2)
    for binding in (first, second):
        router.add(binding)
    router.remove(second)
    assert {router.match(key, None)[0] for key in KEYS[:20]} == {first}
