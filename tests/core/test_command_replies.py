"""Replies to commands that come as messages."""

import pytest

from leveret.core.command_replies import check_fields
from leveret.errors import ChannelError
from tests.support.client import Client
from tests.support.stage import Stage


def test_headers_of_tracing_libraries_are_no_fields():
    given = ["traceparent", "tracestate", "X-B3-TraceId", "x-datadog-trace-id", "x-all"]
    check_fields(given, {"x-all"})


@pytest.mark.parametrize("given", ["x-al", "all", "x-trace"])
def test_other_headers_that_are_not_declared_are_refused(given):
    with pytest.raises(ChannelError, match=f"unknown field '{given}'") as refused:
        check_fields(["x-all", given], {"x-all"})
    assert refused.value.code == 406


def test_a_decision_about_a_prepared_message_says_which_and_nothing_else():
    client = Client(Stage()).open()
    headers = {"x-prepare-id": "a", "x-id": "b"}
    client.publish("commit", b"", exchange="leveret.prepare", headers=headers)
    ((closed, code, text, *_),) = client.methods()
    assert (closed, code) == ("Channel.Close", 406)
    assert "unknown field 'x-id'" in text
