"""The same requests to both brokers: statuses, errors and the names in what is shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest

from interop_tests.http_api.asking import Answer, Step, ask
from interop_tests.http_api.differences import DIFFERENCES, NO_OBJECT, UNLIKE, missing
from interop_tests.http_api.steps import STEPS

if TYPE_CHECKING:
    from interop_tests.brokers import LeveretBroker, RabbitBroker

STABLE = ("name", "vhost", "durable", "auto_delete", "arguments", "tags", "pattern", "value")


@pytest.mark.covers("B-441", "B-443")
def test_both_answer_alike(rabbitmq_http: RabbitBroker, leveret_http: LeveretBroker) -> None:
    _await_management(rabbitmq_http)
    complaints, used = [], set()
    for step in STEPS:
        wanted, found = ask(rabbitmq_http.http_port, step), ask(leveret_http.http_port, step)
        difference = DIFFERENCES.get(str(step))
        if difference is not None:
            used.add(str(step))
            said = ((wanted.status, wanted.reason), (found.status, found.reason))
            if said != difference[:2]:
                complaints.append(f"{step}: {said} is not the difference that was meant")
        else:
            complaints += _complaints(step, wanted, found)
    assert not complaints, "\n".join(complaints)
    assert used == DIFFERENCES.keys()


def _complaints(step: Step, wanted: Answer, found: Answer) -> list[str]:
    if wanted.status != found.status:
        return [f"{step}: {wanted.status} {wanted.reason} but {found.status} {found.reason}"]
    if wanted.status == 404 and (wanted.error, wanted.reason) == NO_OBJECT:
        return [] if found.error == "not_found" else [f"{step}: {found.error}"]
    if (wanted.error, wanted.reason) != (found.error, found.reason):
        return [f"{step}: {wanted.error} {wanted.reason} but {found.error} {found.reason}"]
    if step.path in UNLIKE:
        return []
    absent = wanted.keys - found.keys - missing(step.path)
    if absent:
        return [f"{step}: without {sorted(absent)}"]
    if isinstance(wanted.value, dict) and isinstance(found.value, dict):
        for name in STABLE:
            if step.path != "overview" and wanted.value.get(name) != found.value.get(name):
                return [f"{step}: {name} {wanted.value.get(name)} but {found.value.get(name)}"]
    return []


def test_what_is_declared_without_a_word_is_transient(
    rabbitmq_http: RabbitBroker, leveret_http: LeveretBroker
) -> None:
    """The default of `durable` is AMQP's."""
    for broker in (rabbitmq_http, leveret_http):
        for kind in ("queues", "exchanges"):
            path = f"{kind}/%2F/transient-by-default"
            assert ask(broker.http_port, Step("PUT", path, {})).status == 201
            assert ask(broker.http_port, Step("GET", path)).value["durable"] is False


def _await_management(broker: RabbitBroker) -> None:
    """RabbitMQ answers AMQP before it answers HTTP."""
    for _ in range(100):
        try:
            ask(broker.http_port, Step("GET", "whoami"))
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
