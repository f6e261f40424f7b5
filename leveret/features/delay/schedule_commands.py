"""Management of delayed messages over AMQP: commands published to `leveret.schedule`.

The routing key is the command: `cancel`, `reschedule` or `deliver-now`. Headers select messages:

    x-schedule-id                 one, by its id; or all that match the following:
    x-exchange, x-routing-key     their exchange and routing key
    x-due-from, x-due-before      when they are due: milliseconds since 1970 or a timestamp
    x-headers                     a table of their headers
    x-all                         true: no filter, every message is meant

An id means the message of the command's own user, if that has one. A user must have write
permission on the exchanges of all selected messages; else nothing is changed, and the channel is
closed with 403.
`reschedule` takes the new time as a publish does: `x-delay`, `x-deliver-at` or `x-delay-level`. The
answer `{"count": …}` goes to the message's reply-to, and the confirm comes when the work is done.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from leveret.core.command_replies import check_fields
from leveret.core.definitions.validation import AdministrationError
from leveret.core.events import acting_as
from leveret.core.logs.log_writer import PendingCommit
from leveret.core.publish_interceptors import CommandInterceptor
from leveret.core.routing.message import StoredMessage, raw_headers
from leveret.errors import ChannelError
from leveret.features.delay.rules import (
    DELAY,
    DELAY_LEVEL,
    DELIVER_AT,
    SCHEDULE_ID,
    read_schedule,
)
from leveret.features.delay.schedules import DelayedMessageFilter
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from collections.abc import Set as AbstractSet
    from typing import TypeAlias

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Committing
    from leveret.core.publish_interceptors import PublishContext
    from leveret.core.vhost import Vhost
    from leveret.features.delay.delayed_messages import DelayedMessages
    from leveret.features.delay.schedules import Schedules

    # Takes the exchanges permitted to the user; returns the number of messages changed.
    Work: TypeAlias = Callable[[AbstractSet[str]], Awaitable[int]]

__all__ = ["SCHEDULE_EXCHANGE", "ScheduleCommands"]

SCHEDULE_EXCHANGE: Final = b"leveret.schedule"
EXCHANGE, ROUTING_KEY, HEADERS, ALL = "x-exchange", "x-routing-key", "x-headers", "x-all"
DUE_FROM, DUE_BEFORE = "x-due-from", "x-due-before"
COMMANDS = ("cancel", "reschedule", "deliver-now")
CHOOSING = {SCHEDULE_ID, EXCHANGE, ROUTING_KEY, HEADERS, ALL, DUE_FROM, DUE_BEFORE}
NEW_TIME = {DELAY, DELIVER_AT, DELAY_LEVEL}


class ScheduleCommands(CommandInterceptor):
    """Publish interceptor for commands; `find` is that of `DelayedDelivery`."""

    def __init__(
        self,
        core: CoreServices,
        schedules: Schedules,
        find: Callable[[str], DelayedMessages | None],
    ) -> None:
        self._schedules = schedules
        self._find = find
        self._replies = core.command_replies
        self._wall_ms = core.timers.wall_ms
        self._spawn = core.spawn
        self._report = core.report

    def intercept(self, context: PublishContext) -> Collection[Committing]:
        """Carry out a command. Raises ChannelError 403 and 406."""
        message = context.message
        stored = StoredMessage(
            message.exchange, message.routing_key, message.header, message.body, message.flags
        )
        self._replies.check(context)
        is_timed = message.routing_key == b"reschedule"
        check_fields(message.headers, CHOOSING | (NEW_TIME if is_timed else set()))
        chosen = _chosen(message.headers)
        work = self._understood(context, stored, chosen)
        command = PendingCommit(self._report)
        self._spawn(self._perform(command, chosen, work, context, stored))
        return (command,)

    def _understood(
        self, context: PublishContext, message: StoredMessage, chosen: str | DelayedMessageFilter
    ) -> Work:
        """Return the work that a command asks for. Raises ChannelError 406."""
        name, vhost = message.routing_key.decode(errors="replace"), context.vhost.name
        owner, schedules = context.user, self._schedules
        match name:
            case "cancel":
                return lambda exchanges: schedules.cancel(
                    vhost, chosen, owner=owner, exchanges=exchanges
                )
            case "deliver-now" | "reschedule":
                due_ms = self._wall_ms() if name == "deliver-now" else self._due_ms(message)
                return lambda exchanges: schedules.reschedule(
                    vhost, chosen, due_ms, owner=owner, exchanges=exchanges
                )
        raise ChannelError(406, f"no command '{name}': there are {', '.join(COMMANDS)}")

    def _due_ms(self, message: StoredMessage) -> int:
        stated = {
            name: value for name, value in raw_headers(message.header).items() if name in NEW_TIME
        }
        if not stated:
            raise ChannelError(406, f"no new time: state '{DELAY}' or '{DELIVER_AT}'")
        return read_schedule(stated, self._wall_ms()).due_ms

    async def _perform(
        self,
        command: PendingCommit,
        chosen: str | DelayedMessageFilter,
        work: Work,
        context: PublishContext,
        message: StoredMessage,
    ) -> None:
        try:
            await self._committed(context.vhost)
            exchanges = await self._permitted(context, chosen)
            with acting_as(context.user):
                count = await work(exchanges)
            self._replies.answer(context.vhost, message, {"count": count})
        except ChannelError as error:
            context.channel.close(error)
            command.finish(failed=True)
        except AdministrationError as error:
            context.channel.close(ChannelError(406, str(error)))
            command.finish(failed=True)
        except Exception as error:  # noqa: BLE001  # the publisher must be nacked
            self._report(self, error)
            command.finish(failed=True)
        else:
            command.finish(failed=False)

    async def _permitted(
        self, context: PublishContext, chosen: str | DelayedMessageFilter
    ) -> set[str]:
        """Return the exchanges of the selected messages. Raises ChannelError 403."""
        exchanges = await self._schedules.exchanges(context.vhost.name, chosen, owner=context.user)
        while True:
            try:
                for exchange in exchanges:
                    context.channel.require("write", "exchange", exchange)
            except UnansweredError as question:
                await question.ask()
            else:
                return exchanges

    async def _committed(self, vhost: Vhost) -> None:
        """Wait for earlier messages: a client may cancel what it has just published."""
        messages = self._find(vhost.name)
        if messages is not None:
            await messages.committed()


def _chosen(headers: Mapping[str, Any]) -> str | DelayedMessageFilter:
    """Return the messages that a command selects. Raises ChannelError 406."""
    id_ = _text(headers, SCHEDULE_ID)
    table = headers.get(HEADERS, {})
    if not isinstance(table, dict):
        raise _expected(HEADERS, "a table")
    selection = DelayedMessageFilter(
        _text(headers, EXCHANGE),
        _text(headers, ROUTING_KEY),
        table,
        _time(headers, DUE_FROM),
        _time(headers, DUE_BEFORE),
    )
    everything = headers.get(ALL, False)
    if not isinstance(everything, bool):
        raise _expected(ALL, "true or false")
    stated = (id_ is not None) + (not selection.is_everything) + everything
    if stated != 1:
        text = f"which messages? State '{SCHEDULE_ID}', or what they have in common, or '{ALL}'"
        raise ChannelError(406, text)
    return selection if id_ is None else id_


def _text(headers: Mapping[str, Any], name: str) -> str | None:
    value = headers.get(name)
    if name in headers and not isinstance(value, str):
        raise _expected(name, "text")
    return value


def _time(headers: Mapping[str, Any], name: str) -> int | None:
    value = headers.get(name)
    if isinstance(value, datetime):
        return int(value.timestamp()) * 1000
    if name in headers and (not isinstance(value, int) or isinstance(value, bool)):
        raise _expected(name, "milliseconds since 1970, or a timestamp")
    return value


def _expected(name: str, what: str) -> ChannelError:
    return ChannelError(406, f"invalid header '{name}': expected {what}")
