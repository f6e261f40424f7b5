"""Answers to commands, which are messages to one of the broker's own exchanges.

A command that names a reply-to gets a JSON message there: on the direct reply consumer of that
address, or by the default exchange, to which its user must then be allowed to write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.core.routing.message import MadeMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.intake import Submission
    from leveret.core.routing.message import Message
    from leveret.core.routing.publishing import InternalPublisher
    from leveret.core.vhost import Vhost

__all__ = ["CommandReplies"]


class CommandReplies:
    """Where commands are answered. `awaited`: who awaits direct replies, by their addresses."""

    def __init__(self, publisher: InternalPublisher, awaited: Mapping[bytes, Any]) -> None:
        self._publisher = publisher
        self._awaited = awaited

    def check(self, submission: Submission) -> None:
        """Raise ChannelError 403 where a command may not be answered as it asks."""
        reply_to = submission.message.property("reply_to")
        if reply_to and reply_to.encode() not in self._awaited:
            submission.channel.require("write", "exchange", "")

    def answer(self, vhost: Vhost, command: Message, told: Mapping[str, object]) -> None:
        """Tell whoever asked to be told."""
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
