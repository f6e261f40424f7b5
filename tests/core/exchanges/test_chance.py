from collections import Counter
from random import Random

import pytest

from leveret.core.exchanges.random_exchange import LocalRandomRouter, RandomRouter
from leveret.errors import ChannelError
from tests.core.exchanges.bound import to_exchange, to_queue


@pytest.mark.covers("B-174")
@pytest.mark.parametrize("router_type", [RandomRouter, LocalRandomRouter])
def test_each_message_goes_to_one_binding_by_lot(router_type):
    router = router_type({}, Random(7).randrange)
    assert not router.key_decides
    assert list(router.match("k", None)) == []
    bindings = [to_queue(name) for name in "abc"]
    for binding in bindings:
        router.check(binding)
        router.add(binding)
    counts = Counter(one for _ in range(3000) for one in router.match("k", None))
    assert all(counts[binding] == pytest.approx(1000, rel=0.1) for binding in bindings)
    router.remove(bindings[1])
    counts = Counter(one for _ in range(100) for one in router.match("k", None))
    assert set(counts) == {bindings[0], bindings[2]}


@pytest.mark.covers("B-228")
@pytest.mark.parametrize(
    ("binding", "explanation"),
    [
        (to_queue("q", "k"), "Non empty binding 'k' key not permitted"),
        (to_exchange("y"), "Destination not found"),
        (
            to_queue("q", queue_arguments={"x-queue-type": "quorum"}),
            "Queue type rabbit_quorum_queue not valid for this exchange type",
        ),
    ],
)
def test_local_random_takes_classic_queues_only(binding, explanation):
    with pytest.raises(ChannelError) as caught:
        LocalRandomRouter({}, Random(7).randrange).check(binding)
    assert caught.value.reply_text == f"PRECONDITION_FAILED - {explanation}"
