"""Queues, exchange and bindings of a plan: declared before a run, deleted after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pamqp import commands

from leveret.perf.options import Mode
from leveret.perf.session import BrokerError, LoadSession

if TYPE_CHECKING:
    from leveret.perf.plan import LoadPlan

__all__ = ["declare", "delete", "messages_ready"]


def declare(plan: LoadPlan) -> None:
    """Declare what the plan publishes to; delete what an earlier run has left.

    A drain changes nothing: its queues hold the messages that it consumes.
    """
    if plan.existing or plan.mode in (Mode.DRAIN, Mode.IDLE):
        return
    with LoadSession.connect(plan.address) as session:
        session.call(commands.Channel.Open(), 1)
        _delete(session, plan)
        session.calls(_queue_declarations(plan), 1)
        if plan.exchange:
            kind = plan.declared_exchange_type
            session.call(commands.Exchange.Declare(0, plan.exchange, kind), 1)
            session.calls(
                [
                    commands.Queue.Bind(0, each.queue, plan.exchange, each.key)
                    for each in plan.binding_list()
                ],
                1,
            )


def _queue_declarations(plan: LoadPlan) -> list[commands.Queue.Declare]:
    """Return the declarations of each queue and, before it, its dead-letter queue, if any."""
    declarations = []
    for number, name in enumerate(plan.queue_names):
        if plan.dead_letters:
            dead = plan.dead_letter_name(number)
            declarations.append(_declaration(plan, dead, plan.type_argument))
        declarations.append(_declaration(plan, name, plan.queue_arguments(number)))
    return declarations


def _declaration(plan: LoadPlan, name: str, arguments: dict[str, object]) -> commands.Queue.Declare:
    table = cast("dict[str, Any]", arguments)
    return commands.Queue.Declare(queue=name, durable=plan.queues_durable, arguments=table)


def delete(plan: LoadPlan) -> None:
    """Delete what `declare` made, with all messages in it."""
    with LoadSession.connect(plan.address) as session:
        session.call(commands.Channel.Open(), 1)
        _delete(session, plan)


def messages_ready(plan: LoadPlan) -> int:
    """Return the number of messages in the queues that the plan consumes from."""
    with LoadSession.connect(plan.address) as session:
        session.call(commands.Channel.Open(), 1)
        replies = session.calls(
            [commands.Queue.Declare(queue=name, passive=True) for name in plan.consumed_names], 1
        )
    return sum(cast("commands.Queue.DeclareOk", reply).message_count or 0 for reply in replies)


def _delete(session: LoadSession, plan: LoadPlan) -> None:
    """Delete exchange and queues; both methods succeed if nothing is there."""
    try:
        if plan.exchange:
            session.call(commands.Exchange.Delete(exchange=plan.exchange), 1)
        names = {*plan.queue_names, *plan.consumed_names}
        session.calls([commands.Queue.Delete(queue=name) for name in names], 1)
    except BrokerError as error:
        raise BrokerError(f"cannot delete what an earlier run left: {error}") from error
