"""Every command states its right, and is refused to users of HTTP who have less.

A new command fails here until it stands in the table.
"""

import pytest

from leveret.core.access.authentication import InternalRights
from leveret.core.admin.commands import COMMANDS
from leveret.core.admin.rights import (
    ADMINISTRATOR,
    IN_VHOST,
    MANAGEMENT,
    POLICYMAKER,
    READ_QUEUE,
    Right,
    may,
)
from leveret.mgmt_ui.api.callers import Caller
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.operations.dispatcher import MODULES
from tests.support.site import Site

assert MODULES, "they register the commands"
TABLE = {
    ADMINISTRATOR: """
        alert.list audit.list binding.list channel.list cluster.nodes cluster.set_name
        cluster.show
        connection.list connection.show consumer.list definitions.export definitions.import
        definitions.rehearse encryption.disable encryption.enable encryption.rotate
        encryption.rotate_master encryption.status exchange.list exchange.show
        global_parameter.list limits.clear limits.list limits.set log.set_level log.show
        loss.acknowledge loss.list node.diagnose node.health node.overview node.status node.stop
        orphan.adopt orphan.list parameter.list permission.clear permission.list permission.set
        batch.delete lease.release producers.forget queue.list queue.show
        rabbitmq_definitions.export
        snapshot.release snapshot.take topic_permission.clear topic_permission.list
        topic_permission.set user.add user.delete user.list user.put user.set_password
        user.set_tags vhost.add
        vhost.create_queues vhost.delete vhost.list vhost.protect vhost.set vhost.trace_off
        vhost.trace_on
    """,
    POLICYMAKER: """
        alert.clear alert.set parameter.clear parameter.set policy.clear policy.set
    """,
    Right("policymaker"): "global_parameter.clear global_parameter.set",
    MANAGEMENT: "alert.status connection.close policy.list usage.list",
    IN_VHOST: """
        batch.list dedup.list dedup.show group.describe group.list lease.list
        prepared.commit prepared.list prepared.rollback prepared.show producers.list
        queue.alias.remove schedule.deliver_now schedule.reschedule topic.describe topic.list
    """,
    READ_QUEUE: """
        dlq.cancel dlq.delete dlq.list dlq.pause dlq.purge dlq.redrive dlq.resume dlq.show
        dlq.status group.commit_offsets group.delete group.reset_offsets message.copy
        message.delete message.edit message.list message.move message.show
        message.take message.trace retry.cancel retry.list retry.retry_now retry.show
        schedule.cancel schedule.list schedule.show topic.offsets
    """,
    may("read", queue="name"): "queue.purge",
    may("configure", queue="name"): """
        queue.change queue.declare queue.delete queue.pause queue.rename queue.resume
        topic.set_partitions
    """,
    may("configure", exchange="name"): "exchange.declare exchange.delete",
    may("configure", queue="queue", exchange="exchange"): "dedup.forget",
    may("read", exchange="source"): "binding.declare binding.delete",
    may("write", exchange="exchange"): "message.publish",
}
RIGHTS = {name: right for right, names in TABLE.items() for name in names.split()}


def having(*wanted):
    """Return the names of the commands whose rights have one of these."""
    return sorted(
        name for name, right in RIGHTS.items() if any(getattr(right, each) for each in wanted)
    )


@pytest.fixture
def site():
    return Site()


async def refused(site, name, user, *tags):
    """Perform a command for a user with tags, as a route that asks for no right."""
    site.add_user(user, *tags)
    caller = Caller(site.node, user, tags, InternalRights(site.stage.access, user))
    parameters = dict.fromkeys(COMMANDS[name].parameters, "x")
    if "vhost" in parameters:
        parameters["vhost"] = "/"
    with pytest.raises(ApiError) as caught:
        await caller.perform(COMMANDS[name], **parameters)
    return caught.value.status


def test_every_command_states_its_right():
    assert {name: command.right for name, command in COMMANDS.items()} == RIGHTS


@pytest.mark.parametrize(
    "name", sorted(name for name, right in RIGHTS.items() if right.tag != "management")
)
async def test_too_low_a_tag_is_refused(site, name):
    site.permit("low", "/")
    tags = ["management", "monitoring"]
    if RIGHTS[name].tag == "administrator":
        tags.append("policymaker")
    assert await refused(site, name, "low", *tags) == 401


@pytest.mark.parametrize("name", having("in_vhost"))
async def test_who_may_not_enter_the_vhost_is_refused(site, name):
    assert await refused(site, name, "outside", "policymaker", "monitoring") == 401


@pytest.mark.parametrize("name", having("permissions"))
async def test_who_has_no_permission_is_refused(site, name):
    site.permit("idle", "/", "", "", "")
    assert await refused(site, name, "idle", "administrator") == 401
