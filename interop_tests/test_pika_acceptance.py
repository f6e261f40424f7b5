"""pika's acceptance tests against a broker process, all adapters, unchanged but for the port."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from interop_tests.pika_sources import SourcesMissingError, unpack

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
SUITE_SECONDS_MAX = 300


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
    outcomes = _run(suite, tree)
    failed = {name: said for name, said in outcomes.items() if said not in (None, "skipped")}
    must_fail = MUST_FAIL[broker.name].keys() & outcomes.keys()
    unexpected = {name: said for name, said in failed.items() if name not in must_fail}
    assert not unexpected, "\n\n".join(f"{name}\n{said}" for name, said in unexpected.items())
    assert must_fail <= failed.keys(), "a test that must fail passes: take it off the list"
    passed = sum(said is None for said in outcomes.values())
    assert passed + len(must_fail) >= TESTS_MIN[suite]


def _run(suite: str, tree: Path) -> dict[str, str | None]:
    """Run one file in a process of its own; every test with what it said when it failed."""
    report = tree / f"{suite}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(tree), "--junitxml", str(report), f"tests/acceptance/{suite}.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command,
        cwd=tree,
        env=environment,
        timeout=SUITE_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return {
        f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": _said(case)
        for case in ET.parse(report).iter("testcase")
    }


def _said(case: ET.Element) -> str | None:
    if case.find("skipped") is not None:
        return "skipped"
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            return (found.text or "")[-1500:]
    return None
