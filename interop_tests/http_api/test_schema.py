"""Requests that the API's description allows are answered, and never with a 500."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

SECONDS_MAX = 900  # on a busy machine; all of it takes less than one minute on an idle one
EXAMPLES = 4  # of each operation: with more, a busy machine would not come to the end
ANSWER_SECONDS_MAX = 30


# Chunks are bytes: what is made for them is sent as it is.
schemathesis.serializer.alias("application/vnd.leveret.chunk", "application/octet-stream")


@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.filterwarnings("ignore")
def test_no_request_is_our_mistake(leveret_http: LeveretBroker) -> None:
    url = f"http://127.0.0.1:{leveret_http.http_port}/api/openapi.json"
    tried = set()
    for result in schemathesis.openapi.from_url(url).get_all_operations():
        operation = result.ok()
        _try(operation)
        tried.add((operation.method.lower(), operation.path))
    assert tried == _described(url)


def _described(url: str) -> set[tuple[str, str]]:
    """All that can be asked, as (method, path)."""
    paths = httpx.get(url, timeout=60).json()["paths"]
    return {(method, path) for path, operations in paths.items() for method in operations}


def _try(operation: object) -> None:
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    @settings
    @hypothesis.given(case=operation.as_strategy())  # type: ignore[attr-defined]
    def ask(case: object) -> None:
        answer = case.call(auth=("guest", "guest"), timeout=ANSWER_SECONDS_MAX)  # type: ignore[attr-defined]
        assert answer.status_code < 500 or answer.status_code == 503, answer.text

    ask()
