"""pika's acceptance tests against a broker process, all adapters, unchanged but for the port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop_tests.foreign_suite import SUITE_SECONDS_MAX, SourcesMissingError, check, run
from interop_tests.pika_sources import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from interop_tests.brokers import Broker

# Left out of the six files, because no broker takes part in them: io_services_tests.py (sockets
# only; some look up a host on the internet) and twisted_adapter_tests.py (mocks only, and it needs
# nose, which Python 3.10 and later cannot import). test_twisted.py stands in for the latter.
TESTS_MIN = {
    "blocking_adapter_test": 82,
    "enforce_one_basicget_test": 2,
    "async_adapter_tests": 280,
}
# Tests that must fail, by broker, each with the reason. RabbitMQ 3.10 passes them all.
MUST_FAIL: dict[str, dict[str, str]] = {
    "rabbitmq": {},
    "leveret": {
        "TestInvalidExchangeTypeRaisesConnectionClosed.test": (
            "expects the 503 with which RabbitMQ 3 closed the connection; RabbitMQ 4 and Leveret"
            " close the channel with 406"
        )
    },
}


@pytest.fixture(scope="module")
def tree(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return unpack(tmp_path_factory.mktemp("pika"), broker.address.host, broker.address.port)
    except SourcesMissingError as error:
        pytest.skip(f"pika's tests cannot be had: {error}")


@pytest.mark.covers("B-504")
@pytest.mark.timeout(SUITE_SECONDS_MAX + 30)
@pytest.mark.parametrize("suite", TESTS_MIN)
def test_pika_acceptance(suite: str, tree: Path, broker: Broker) -> None:
    outcomes = run(tree, f"tests/acceptance/{suite}.py")
    must_fail = MUST_FAIL[broker.name]
    count = TESTS_MIN[suite] - len(must_fail.keys() & outcomes.keys())
    check(outcomes, must_fail, count)
