"""Whatever the API's description allows to be asked is answered, and never by a mistake of ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

SECONDS_MAX = 240.0  # on a busy machine; all of it takes less than one minute on an idle one
EXAMPLES = 4
ANSWER_SECONDS_MAX = 30


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_no_request_is_our_mistake(leveret_http: LeveretBroker) -> None:
    url = f"http://127.0.0.1:{leveret_http.http_port}"
    described = schemathesis.openapi.from_url(f"{url}/api/openapi.json")
    ends, tried = time.monotonic() + SECONDS_MAX, 0
    for result in described.get_all_operations():
        operation = result.ok()
        if time.monotonic() > ends:
            break
        _try(operation)
        tried += 1
    assert tried > 50


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
