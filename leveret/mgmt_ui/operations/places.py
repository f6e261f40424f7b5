"""On which node of a cluster each command is performed.

What changes definitions, or where partitions are, is performed by the controller. Everything else
begins on the node that is asked, and most of that is about this node or about what lives there; a
command about the messages of a queue finds out where these are (LedElsewhereError, raised by
leveret.core.admin.node), and is then performed by their leader; one about a shovel, by the node
that runs it. A single node performs all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.admin.commands import AnyCommand

__all__ = ["CommandForwarding", "ForwardedCommand", "is_of_controller"]


class ForwardedCommand(NamedTuple):
    """A command for another node: checked values, and the user that events name."""

    name: str
    values: Mapping[str, Any]
    user: str


class CommandForwarding(Protocol):
    """Other nodes of the cluster, as commands need them."""

    async def perform(self, command: ForwardedCommand) -> dict[str, Any] | None:
        """Have the controller perform a command, and return its answer once it is known here.

        None if this node is the controller, so that the command is to be performed here.
        """
        ...

    async def perform_at(self, leader: int, command: ForwardedCommand) -> dict[str, Any]:
        """Have the leader of a partition perform a command, and return its answer."""
        ...


# Of commands that change something; none that only looks is of the controller.
OF_DEFINITIONS: Final = frozenset(
    {
        "alert.clear",
        "alert.set",
        "binding.declare",
        "binding.delete",
        "cluster.add",
        "cluster.cancel_moves",
        "cluster.drain",
        "cluster.elect",
        "cluster.move",
        "cluster.rebalance",
        "cluster.remove",
        "cluster.set_name",
        "cluster.undrain",
        "definitions.import",
        "exchange.declare",
        "exchange.delete",
        "global_parameter.clear",
        "global_parameter.set",
        "limits.clear",
        "limits.set",
        "parameter.clear",
        "parameter.set",
        "permission.clear",
        "permission.set",
        "policy.clear",
        "policy.set",
        "queue.alias.remove",
        "queue.change",
        "queue.declare",
        "queue.delete",
        "queue.pause",
        "queue.rename",
        "queue.resume",
        "shovel.delete",
        "topic.set_partitions",
        "topic_permission.clear",
        "topic_permission.set",
        "user.add",
        "user.delete",
        "user.put",
        "user.set_password",
        "user.set_tags",
        "vhost.add",
        "vhost.create_queues",
        "vhost.delete",
        "vhost.protect",
        "vhost.set",
    }
)
# Performed by who leads the messages.
OF_MESSAGES: Final = frozenset(
    {
        "dedup.forget",
        "dlq.cancel",
        "dlq.delete",
        "dlq.pause",
        "dlq.purge",
        "dlq.redrive",
        "dlq.resume",
        "group.commit_offsets",
        "group.delete",  # with what it has read, which tells the controller of it
        "group.reset_offsets",
        "message.copy",
        "message.delete",
        "message.edit",
        "message.move",
        "queue.purge",
        "retry.cancel",
        "retry.retry_now",
        "shovel.restart",  # by the node that runs it
        "schedule.cancel",
        "schedule.deliver_now",
        "schedule.reschedule",
    }
)
OF_NODE: Final = frozenset(
    {
        "batch.delete",
        "connection.close",
        "encryption.disable",
        "encryption.enable",
        "encryption.rotate",
        "encryption.rotate_master",
        "lease.release",
        "log.set_level",
        "loss.acknowledge",
        "message.publish",  # by a client of this node, and so is the next one
        "message.take",
        "node.stop",
        "orphan.adopt",
        "prepared.commit",
        "prepared.rollback",
        "producers.forget",
        "snapshot.release",
        "snapshot.take",
        "vhost.trace_off",
        "vhost.trace_on",
    }
)


def is_of_controller(command: AnyCommand) -> bool:
    """Return whether the controller of a cluster performs a command."""
    return command.name in OF_DEFINITIONS
