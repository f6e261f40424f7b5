"""confirm.select, tx.*, channel.flow and the old access.request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from leveret.amqp.methods import AccessRequest, AccessRequestOk
from leveret.amqp.transaction import Transaction
from leveret.errors import ChannelError, ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.amqp.channel import Channel
    from leveret.amqp.operations.operation import Operations
    from leveret.amqp.transaction import Commit


def confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    """Put the channel into confirm mode."""
    if channel.transaction is not None:
        raise ChannelError(406, "cannot switch from tx to confirm mode")
    channel.start_confirming()
    if not method.nowait:
        channel.send(commands.Confirm.SelectOk())


def tx_select(channel: Channel, _method: commands.Tx.Select) -> None:
    """Put the channel into transactional mode."""
    if channel.confirms is not None:
        raise ChannelError(406, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel)
        channel.choose_path()
    channel.send(commands.Tx.SelectOk())


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise ChannelError(406, "channel is not transactional")
    return channel.transaction


def tx_commit(channel: Channel, _method: commands.Tx.Commit) -> None:
    """Commit the transaction, all of it or nothing."""
    channel.resume_members()
    channel.connection.take_time(_committing(channel, _transaction(channel)))


def _committing(channel: Channel, transaction: Transaction) -> Iterator[None]:
    commit = yield from transaction.committing()
    if commit is not None:
        channel.connection.wait_for(_committed(channel, commit))


async def _committed(channel: Channel, commit: Commit) -> None:
    connection, committed = channel.connection, channel.connection.transport.committed
    if not await committed([commit.taken]):
        connection.take_time(commit.giving_back())
        raise ChannelError(406, "partial tx completion")
    if not await committed([commit]):
        raise ChannelError(406, "partial tx completion")
    if channel.alive:
        channel.send(commands.Tx.CommitOk())


def tx_rollback(channel: Channel, _method: commands.Tx.Rollback) -> None:
    """Drop the transaction's publishes and make its settled deliveries outstanding again."""
    channel.resume_members()
    channel.connection.take_time(_rolling_back(channel, _transaction(channel)))


def _rolling_back(channel: Channel, transaction: Transaction) -> Iterator[None]:
    yield from transaction.rolling_back()
    if channel.alive:
        channel.send(commands.Tx.RollbackOk())


def flow(channel: Channel, method: commands.Channel.Flow) -> None:
    """Answer channel.flow; active=false is not supported, as in RabbitMQ."""
    if not method.active:
        raise ConnectionClosingError(540, "active=false")
    channel.send(commands.Channel.FlowOk(active=True))


def access_request(channel: Channel, _method: AccessRequest) -> None:
    """Answer the method of AMQP 0-8 that some clients still send."""
    channel.send(AccessRequestOk(ticket=1))


OPERATIONS: Operations = {
    commands.Confirm.Select: confirm_select,
    commands.Tx.Select: tx_select,
    commands.Tx.Commit: tx_commit,
    commands.Tx.Rollback: tx_rollback,
    commands.Channel.Flow: flow,
    AccessRequest: access_request,
}
