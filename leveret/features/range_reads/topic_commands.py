"""Questions about topics over AMQP: commands published to `leveret.topics`.

The routing key is the command, which is `offsets`. Headers:

    x-queue     the queue or stream
    x-time      optional: milliseconds since 1970 or a timestamp

The answer goes to the message's reply-to: `{"queue", "log", "partitions": [{"partition", "first",
"end"}]}`, with the first offset stored at `x-time` or later as "offset". The user needs the
permission to read the queue, and to write to the exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.core.command_replies import check_fields
from leveret.core.erlang_terms import field_type
from leveret.core.logs.log_writer import PendingCommit
from leveret.core.publish_interceptors import CommandInterceptor
from leveret.core.routing.message import StoredMessage
from leveret.errors import ChannelError, StorageError
from leveret.features.range_reads.bounds import offset_rows
from leveret.features.range_reads.rules import OFFSET_MAX, check_read_by_offset, log_text
from leveret.ports.tables import Timestamp

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Committing
    from leveret.core.publish_interceptors import PublishContext
    from leveret.ports.definitions import Arguments

__all__ = ["TOPICS_EXCHANGE", "TopicCommands"]

TOPICS_EXCHANGE: Final = b"leveret.topics"
QUEUE, TIME = "x-queue", "x-time"


class TopicCommands(CommandInterceptor):
    """Publish interceptor for commands."""

    def __init__(self, core: CoreServices) -> None:
        self._replies = core.command_replies
        self._spawn = core.spawn
        self._report = core.report

    def intercept(self, context: PublishContext) -> Collection[Committing]:
        """Carry out a command. Raises ChannelError 403, 404, 405 and 406."""
        message = context.message
        stored = StoredMessage(
            message.exchange, message.routing_key, message.header, message.body, message.flags
        )
        self._replies.check(context)
        if message.routing_key != b"offsets":
            name = message.routing_key.decode(errors="replace")
            raise ChannelError(406, f"no command '{name}': there is offsets")
        check_fields(message.headers, {QUEUE, TIME})
        name, time_ms = _name(message.headers), _time_ms(message.headers)
        context.channel.require("read", "queue", name)
        queue = context.vhost.check_queue(name, None)
        check_read_by_offset(queue, name)
        command = PendingCommit(self._report)
        self._spawn(self._perform(command, context, stored, queue, time_ms))
        return (command,)

    async def _perform(
        self,
        command: PendingCommit,
        context: PublishContext,
        message: StoredMessage,
        queue: Any,
        time_ms: int | None,
    ) -> None:
        try:
            rows = await offset_rows(queue, time_ms)
            told = {"queue": queue.name, "log": log_text(queue.definition), "partitions": rows}
            self._replies.answer(context.vhost, message, told)
        except StorageError as error:
            context.channel.close(ChannelError(506, f"the log cannot be read now: {error}"))
            command.finish(failed=True)
        except Exception as error:  # noqa: BLE001  # the publisher must be nacked
            self._report(self, error)
            command.finish(failed=True)
        else:
            command.finish(failed=False)


def _name(headers: Arguments) -> str:
    name = headers.get(QUEUE)
    if not isinstance(name, str):
        problem = "it is needed" if QUEUE not in headers else f"a {field_type(name)} is no name"
        raise ChannelError(406, f"invalid header '{QUEUE}': {problem}")
    return name


def _time_ms(headers: Arguments) -> int | None:
    if TIME not in headers:
        return None
    value: Any = headers[TIME]
    if isinstance(value, Timestamp):
        value = min(value * 1000, OFFSET_MAX)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= OFFSET_MAX:
        raise ChannelError(
            406, f"invalid header '{TIME}': expected milliseconds since 1970, or a timestamp"
        )
    return int(value)
