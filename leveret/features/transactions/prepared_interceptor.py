"""Publish interceptor for prepared messages, and the commands that decide about them.

`PreparedInterceptor` keeps prepared messages (see leveret.core.publish_interceptors).
`PreparedCommands` takes messages published to the exchange `leveret.prepare`: the routing key is
`commit` or `rollback`, the header `x-prepare-id` names the message. A commit needs write permission
on the message's exchange. The confirm is sent when the outcome is safe, and so is the answer to the
command's reply-to:

    {"id": "…", "outcome": "committed" | "rolled back" | "unknown" | "failed"}

An id that is unknown is answered, not refused, since a command may be sent again after a crash;
only a `mandatory` command closes its channel then, with 404.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.core.command_replies import check_fields
from leveret.core.logs.log_writer import PendingCommit
from leveret.core.names import not_found, resource
from leveret.core.publish_interceptors import REFUSED, CommandInterceptor
from leveret.core.routing.message import StoredMessage
from leveret.errors import ChannelError, StorageError
from leveret.features.transactions.prepared import PREPARED_TOPIC, PreparedMessages
from leveret.features.transactions.rules import (
    PREPARE_ID,
    is_asked_for,
    read_id,
    read_prepare_request,
)
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from leveret.core.command_replies import CommandReplies
    from leveret.core.dependencies import CoreServices
    from leveret.core.logs.log_writer import Committing, Report
    from leveret.core.publish_interceptors import PublishContext
    from leveret.core.vhost import Vhost
    from leveret.features.transactions.rules import PrepareRequest

__all__ = ["PREPARE_EXCHANGE", "PreparedCommands", "PreparedInterceptor"]

PREPARE_EXCHANGE: Final = b"leveret.prepare"
OUTCOMES: Final = {b"commit": "committed", b"rollback": "rolled back"}


class PreparedInterceptor:
    """Prepared messages of a node, by virtual host. At most `pending_max` in each.

    `checks_max` and `forget_key` are those of PreparedMessages.
    """

    def __init__(
        self,
        core: CoreServices,
        forget_key: Callable[[str, bytes | None], None],
        *,
        pending_max: int,
        checks_max: int,
    ) -> None:
        self.kept: dict[str, PreparedMessages] = {}
        self._core = core
        self._topics = core.internal_topics
        self._forget_key = forget_key
        self._pending_max = pending_max
        self._checks_max = checks_max

    def intercept(self, context: PublishContext) -> Collection[Committing] | None:
        """Keep a prepared message. Raises ChannelError 403, 404, 406 and 506."""
        message, request = context.message, _request(context)
        if request is None:
            return None
        if request.check_queue is not None:
            # Questions go there by the default exchange, on behalf of the publisher.
            context.channel.require("write", "exchange", "")
            if context.vhost.find_queue(request.check_queue) is None:
                raise not_found("queue", request.check_queue, context.vhost.name)
        messages = self._of(context.vhost)
        messages.check_address(request.id, message)
        if len(messages) >= self._pending_max and messages.find(request.id) is None:
            raise ChannelError(
                406, f"{len(messages)} prepared messages wait to be committed: the limit is reached"
            )
        if self._core.publish_interceptors.lacks_copies(context):
            return REFUSED
        flags = message.flags & RecordFlag.STORED | context.requests & RecordFlag.SELECTS_KEYS
        messages.add(request, message, flags)
        return (messages,)

    def would_take(self, context: PublishContext) -> bool:
        """Whether a message is prepared. Raises ChannelError 406."""
        return _request(context) is not None

    def _of(self, vhost: Vhost) -> PreparedMessages:
        messages = self.kept.get(vhost.name)
        if messages is None:
            try:
                messages = self._open(vhost)
            except StorageError as error:
                raise ChannelError(506, f"cannot keep prepared messages: {error}") from error
        return messages

    def _open(self, vhost: Vhost) -> PreparedMessages:
        log = self._topics.open(vhost.name, PREPARED_TOPIC, vhost.incarnation)
        messages = self.kept[vhost.name] = PreparedMessages(
            vhost, log, self._core, self._forget_key, self._checks_max
        )
        return messages

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Open the topics that an earlier run has left. Raises StorageError."""
        for vhost in vhosts:
            if self._topics.exists(vhost.name, PREPARED_TOPIC, vhost.incarnation):
                self._open(vhost)

    def forget_vhost(self, name: str) -> None:
        """Delete the topic of a deleted virtual host."""
        messages = self.kept.pop(name, None)
        if messages is not None:
            messages.close()
            self._core.spawn(messages.log.delete())


def _request(context: PublishContext) -> PrepareRequest | None:
    """Return what a prepared message asks for, or None. Raises ChannelError 406."""
    message = context.message
    try:
        if not is_asked_for(message.headers):
            return None
        request = read_prepare_request(message.headers, message.property("message_id"))
    except ValueError as error:
        raise ChannelError(406, f"invalid message header: {error}") from None
    if context.requests & RecordFlag.WANTS_DELAY:
        raise ChannelError(406, "a message that waits to be committed cannot be delayed as well")
    if context.channel.is_transactional:
        raise ChannelError(406, "no message of a transaction waits to be committed by itself")
    return request


class PreparedCommands(CommandInterceptor):
    """Publish interceptor for the exchange `leveret.prepare`."""

    def __init__(
        self, prepared: PreparedInterceptor, replies: CommandReplies, report: Report
    ) -> None:
        self._prepared = prepared
        self._report = report
        self.replies = replies

    def intercept(self, context: PublishContext) -> Collection[Committing]:
        """Carry out a command. Raises ChannelError 403, 404 and 406."""
        message, vhost = context.message, context.vhost
        if message.routing_key not in OUTCOMES:
            name = message.routing_key.decode(errors="replace")
            raise ChannelError(406, f"no command '{name}': there are commit and rollback")
        check_fields(message.headers, {PREPARE_ID})
        try:
            id_ = read_id(message.headers, message.property("message_id"))
        except ValueError as error:
            raise ChannelError(406, f"invalid message header: {error}") from None
        self.replies.check(context)
        stored = StoredMessage(
            message.exchange, message.routing_key, message.header, b"", message.flags
        )
        command = PreparedCommand(self._report, self.replies, vhost, stored, id_)
        messages = self._prepared.kept.get(vhost.name)
        pending = None if messages is None else messages.find(id_)
        if pending is None or messages is None:
            if context.mandatory:
                raise ChannelError(404, f"no prepared {resource('message', id_, vhost.name)}")
            command.answer("unknown")
        else:
            context.channel.require("write", "exchange", pending.exchange)
            commit = message.routing_key == b"commit"
            messages.decide(pending, commit=commit, decided=command)
        return (command,)


class PreparedCommand(PendingCommit):
    """Decision in progress."""

    def __init__(
        self,
        report: Report,
        replies: CommandReplies,
        vhost: Vhost,
        message: StoredMessage,
        id_: str,
    ) -> None:
        super().__init__(report)
        self._replies = replies
        self._vhost = vhost
        self._message = message
        self._id = id_

    def done(self, *, failed: bool) -> None:
        """Handle the end of the decision, as a Waiter; `failed`: it could not be stored."""
        self.answer("failed" if failed else OUTCOMES[self._message.routing_key], failed=failed)

    def answer(self, outcome: str, *, failed: bool = False) -> None:
        """Send the outcome to the reply-to, and notify the waiters."""
        told = {"id": self._id, "outcome": outcome}
        self._replies.answer(self._vhost, self._message, told)
        self.finish(failed=failed)
