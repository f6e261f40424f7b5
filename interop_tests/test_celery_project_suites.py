"""The integration tests that py-amqp and kombu carry themselves, unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from interop_tests.foreign_suite import (
    SUITE_SECONDS_MAX,
    SourcesMissingError,
    check,
    run,
    unpack_distribution,
)

if TYPE_CHECKING:
    from pathlib import Path

    from interop_tests.brokers import Broker

# Left out of py-amqp's: what needs TLS with its own certificates (tests/ has that with ours), and
# hosts on the internet.
CLASSES = ["-o", "python_classes=test_*"]  # as both projects are configured
PY_AMQP = ["t/integration/test_rmq.py", "-k", "plain", *CLASSES]
PY_AMQP_PASSED_MIN = 10
KOMBU = ["t/integration/test_py_amqp.py", *CLASSES]
KOMBU_PASSED_MIN = 30

pytest.importorskip("kombu", reason="py-amqp and kombu are not installed (make interop)")


def _sources(name: str, directory: Path) -> Path:
    try:
        return unpack_distribution(name, directory)
    except SourcesMissingError as error:
        pytest.skip(f"the tests of {name} cannot be had: {error}")


def _environment(broker: Broker) -> dict[str, str]:
    address = broker.address
    return {"RABBITMQ_HOST": address.host, "RABBITMQ_5672_TCP": str(address.port)}


@pytest.mark.covers("B-502")
@pytest.mark.timeout(SUITE_SECONDS_MAX + 30)
def test_py_amqp_integration(broker: Broker, tmp_path: Path) -> None:
    outcomes = run(_sources("amqp", tmp_path), *PY_AMQP, environment=_environment(broker))
    check(outcomes, {}, PY_AMQP_PASSED_MIN)


@pytest.mark.covers("B-500", "B-502")
@pytest.mark.timeout(SUITE_SECONDS_MAX + 30)
def test_kombu_integration(broker: Broker, tmp_path: Path) -> None:
    outcomes = run(_sources("kombu", tmp_path), *KOMBU, environment=_environment(broker))
    check(outcomes, {}, KOMBU_PASSED_MIN)
