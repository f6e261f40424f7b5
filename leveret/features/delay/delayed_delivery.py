"""Delayed messages of a node: the publish interceptor for those on any exchange.

A message that is due at once and has no id takes the usual path (see
leveret.core.publish_interceptors). `of(vhost)` returns a virtual host's delayed messages; its topic
is created with the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.exchanges import DELAYED_MESSAGE
from leveret.core.names import not_found
from leveret.core.publish_interceptors import REFUSED
from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.features.dedup.exchange_log import key_in
from leveret.features.delay.delayed_messages import DELAYED_TOPIC, DelayedMessages
from leveret.features.delay.plain_delay import plain_delay
from leveret.features.delay.rules import kept_headers, read_schedule
from leveret.features.delay.schedule_commands import SCHEDULE_EXCHANGE, ScheduleCommands
from leveret.features.delay.scheduled import MARKED, Draft, ScheduleKey
from leveret.features.delay.schedules import Schedules
from leveret.ports.contents import headers_table, with_properties
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table, encode_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Committing
    from leveret.core.publish_interceptors import PublishContext
    from leveret.core.routing.exchange import Exchange
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.features.delay.store import DelayedMessageStores

__all__ = ["DelayedDelivery"]


class DelayedDelivery:
    """Delayed messages of a node, by virtual host; adds itself and its commands to the core.

    `forget_key(vhost, key)` removes a de-duplication key.
    """

    def __init__(
        self,
        core: CoreServices,
        stores: DelayedMessageStores,
        forget_key: Callable[[str, bytes | None], None],
    ) -> None:
        self._core = core
        self._stores = stores
        self._forget_key = forget_key
        self._kept: dict[str, DelayedMessages] = {}
        self.schedules = Schedules(core, self.find)
        commands = ScheduleCommands(core, self.schedules, self.find)
        core.publish_interceptors.interceptors.append((RecordFlag.WANTS_DELAY, self))
        core.publish_interceptors.commands[SCHEDULE_EXCHANGE] = commands

    # -- as a publish interceptor

    def intercept(self, context: PublishContext) -> Collection[Committing] | None:
        """Store a delayed message, unless a queue that it is for lacks copies now.

        Raises ChannelError 404, 406, 506, ConnectionClosingError 501.
        """
        draft = _draft(context)
        if draft is None:
            return None
        if self._core.publish_interceptors.lacks_copies(context):
            return REFUSED
        try:
            messages = self.of(context.vhost)
        except StorageError as error:
            raise ChannelError(506, f"cannot keep delayed messages: {error}") from error
        messages.add(draft, context.channel if context.mandatory else None)
        return (messages.store,)

    def would_take(self, context: PublishContext) -> bool:
        """Whether a message is delayed. Raises ChannelError, ConnectionClosingError."""
        return _draft(context) is not None

    # -- stored messages

    def of(self, vhost: Vhost) -> DelayedMessages:
        """Return the delayed messages of a virtual host, opening its topic. Raises StorageError."""
        messages = self._kept.get(vhost.name)
        if messages is None:
            is_new = not self._stores.exists(vhost.name, DELAYED_TOPIC, vhost.incarnation)
            messages = DelayedMessages(
                vhost, self._core, self._stores, self._unrouted, is_new=is_new
            )
            self._kept[vhost.name] = messages
        return messages

    def find(self, vhost: str) -> DelayedMessages | None:
        """Return the delayed messages of a virtual host; None if there never were any."""
        return self._kept.get(vhost)

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Open the topics that an earlier run has left. Raises StorageError."""
        for vhost in vhosts:
            if self._stores.exists(vhost.name, DELAYED_TOPIC, vhost.incarnation):
                self.of(vhost)

    def _unrouted(self, vhost: str, message: Message) -> None:
        """Forget the de-duplication key of an unroutable due message, which may come again."""
        self._forget_key(vhost, key_in(message.exchange, message))

    def forget(self, vhost: str) -> None:
        """Close the delayed messages of a virtual host that is being deleted.

        Its topic goes with it.
        """
        messages = self._kept.pop(vhost, None)
        if messages is not None:
            messages.close()


def _exchange(context: PublishContext) -> Exchange:
    name = context.message.exchange.decode()
    exchange = context.vhost.exchanges.get(name)
    if exchange is None:  # deleted since the reader's lookup
        raise not_found("exchange", name, context.vhost.name)
    return exchange


def _check_keys(keys: Collection[bytes]) -> None:
    """Refuse routing keys that could not be routed later."""
    try:
        for key in keys:
            key.decode()
    except UnicodeDecodeError as error:
        raise ConnectionClosingError(501, "cannot decode the routing key") from error


def _draft(context: PublishContext) -> Draft | None:
    """Return the message to store; None if it is due at once. Raises as `intercept`."""
    message, exchange, now_ms = context.message, _exchange(context), context.now_ms
    _check_keys(context.keys)
    flags = message.flags | context.requests & RecordFlag.SELECTS_KEYS
    plain = plain_delay(message.header)
    if plain is None:
        return _scheduled(context, exchange, flags, now_ms)
    delay_ms, header = plain
    return Draft(
        now_ms + delay_ms, flags, message.exchange, message.routing_key, header, message.body, None
    )


def _scheduled(
    context: PublishContext, exchange: Exchange, flags: int, now_ms: int
) -> Draft | None:
    """Return the same as `_draft` for a message with more than a plain `x-delay`."""
    message = context.message
    try:
        headers = decode_raw_table(headers_table(message.header))
    except MalformedFieldError as error:
        raise ConnectionClosingError(501, "cannot decode the headers") from error
    like_plugin = exchange.definition.type == DELAYED_MESSAGE
    schedule = read_schedule(headers, now_ms, like_plugin=like_plugin)
    if not schedule.is_kept(now_ms):
        return None
    if schedule.id is not None or schedule.repetition is not None:
        flags |= MARKED
    owner = context.user
    table = encode_table(kept_headers(headers, schedule, owner))
    return Draft(
        schedule.due_ms,
        flags,
        message.exchange,
        message.routing_key,
        with_properties(message.header, table=table),
        message.body,
        None if schedule.id is None else ScheduleKey(schedule.id, owner),
    )
