"""Replies to commands, i.e. to messages published to one of the broker's own exchanges.

A command with a reply-to is answered by a JSON message: to the direct reply consumer of that
address, or by the default exchange, to which its user must then be allowed to write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.core.routing.message import MadeMessage
from leveret.errors import ChannelError
from leveret.ports.declared import undeclared

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from leveret.core.internal_publisher import InternalPublisher
    from leveret.core.publish_interceptors import PublishContext
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost

__all__ = ["CommandReplies", "check_fields"]

# Prefixes, in lower case, of headers that tracing libraries add to every message (W3C, B3, Jaeger,
# Datadog, X-Ray, Google, New Relic, Sentry).
TRACING = (
    *("traceparent", "tracestate", "baggage", "b3", "x-b3-", "uber-trace-id", "uberctx-"),
    *("x-datadog-", "x-amzn-trace-id", "x-cloud-trace-context", "newrelic", "sentry-trace"),
)


def check_fields(headers: Iterable[str], declared: Collection[str]) -> None:
    """Raise ChannelError 406 if a command has an unknown header.

    Ignoring a misspelt filter would make the command apply to more messages.
    """
    given = [name for name in headers if not name.lower().startswith(TRACING)]
    problem = undeclared(given, declared)
    if problem is not None:
        raise ChannelError(406, f"invalid command: {problem}")


class CommandReplies:
    """Sender of replies. `awaited` holds the consumers of direct replies by their addresses."""

    def __init__(self, publisher: InternalPublisher, awaited: Mapping[bytes, Any]) -> None:
        self._publisher = publisher
        self._awaited = awaited

    def check(self, context: PublishContext) -> None:
        """Raise ChannelError 403 if the user may not publish to the command's reply-to."""
        reply_to = context.message.property("reply_to")
        if reply_to and reply_to.encode() not in self._awaited:
            context.channel.require("write", "exchange", "")

    def answer(self, vhost: Vhost, command: Message, told: Mapping[str, object]) -> None:
        """Send the result of a command to its reply-to, if it has one."""
        reply_to = command.property("reply_to")
        if not reply_to:
            return
        answer = MadeMessage(
            b"",
            reply_to.encode(),
            {},
            json.dumps(told).encode(),
            content_type="application/json",
            correlation_id=command.property("correlation_id") or "",
        )
        consumer = self._awaited.get(reply_to.encode())
        if consumer is not None:
            consumer.deliver(answer)
        else:
            self._publisher.publish(vhost, answer)
