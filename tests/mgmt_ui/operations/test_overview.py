"""Activity of a node, measured while somebody waits."""

import pytest

from leveret.core.definitions.administration import AdministrationError
from leveret.mgmt_ui.operations.overview import measure, quantile
from tests.support.client import Client
from tests.support.site import Site


@pytest.fixture
def site():
    return Site()


async def test_the_queues_that_come_first(site):
    client = Client(site.stage).open()
    for count, name in enumerate(("b", "c", "a")):
        client.declare(name)
        client.publish(name, *[b"m"] * count)
    by_name = await measure(site.broker, 1, 2, "name")
    assert [row["name"] for row in by_name["queues_shown"]] == ["a", "b"]
    fullest = await measure(site.broker, 1, 1, "ready")
    assert [row["name"] for row in fullest["queues_shown"]] == ["a"]
    assert fullest["rates"] == {
        "messages_in": 0,
        "bytes_in": 0,
        "messages_out": 0,
        "bytes_out": 0,
    }
    assert fullest["window_ms"] >= 1


async def test_what_cannot_be_measured(site):
    for window_ms in (0, 60_001):
        with pytest.raises(AdministrationError, match="window"):
            await measure(site.broker, window_ms, 1, "name")
    with pytest.raises(AdministrationError, match="sorted by one of in, out"):
        await measure(site.broker, 1, 1, "shape")


@pytest.mark.parametrize(
    ("counts", "median", "last"),
    [
        ([0, 0, 0, 0], None, None),
        ([10, 0, 0, 0], 1, 1),
        ([5, 4, 1, 0], 1, 5),
        ([0, 0, 0, 3], None, None),
        ([0, 9, 0, 1], 2, None),
    ],
)
def test_latency_is_a_bound_that_was_kept(counts, median, last):
    assert quantile((1, 2, 5), counts, 0.5) == median
    assert quantile((1, 2, 5), counts, 0.99) == last
