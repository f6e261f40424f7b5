"""`node.diagnose`: health checks of a running node.

Each check looks at one thing and yields findings; none changes anything. Many objects are checked
in slices, since clients share the loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from itertools import pairwise
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, cast

from leveret.core.settings.arguments import RETENTION_LIMITS
from leveret.features.groups.unsettled import unsettled_beyond_retention
from leveret.mgmt_ui.objects import queues_of
from leveret.mgmt_ui.operations.health_checks import (
    check_certificates,
    check_losses,
    check_passwords,
)
from leveret.mgmt_ui.yielding import in_yielding_chunks
from leveret.ports.check_results import CheckResult, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from leveret.broker.broker import Broker
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.routing.bindings import QueueLike
    from leveret.core.statistics.statistics import Counted
    from leveret.mgmt_ui.operations.runtime import Runtime
    from leveret.ports.definitions import UserDefinition
    from leveret.ports.losses import Loss

__all__ = ["diagnose"]

NEAR: Final = 0.8  # of a limit: time to do something before it is reached
BACKLOG_MIN: Final = 10_000  # messages without a consumer; fewer may be intended
UNACKNOWLEDGED_MIN: Final = 10_000  # unsettled deliveries of a queue
GROWN_MIN: Final = 100  # by which they have grown at least, to twice as many
GROWTH_SECONDS: Final = 600  # time over which it grows
GROWTH_STEP_SECONDS: Final = 60
QUEUES_NAMED_MAX: Final = 20  # of one kind of result; the rest is counted
OVERDUE_MS: Final = 60_000  # for which what is due may lie: a busy node comes to it within seconds
LAG_SECONDS_MAX: Final = 0.1  # of the event loop: each client waits that long for each answer
LAG_PROBES: Final = 10
LAG_PROBE_SECONDS: Final = 0.02


async def diagnose(
    broker: Broker,
    runtime: Runtime,
    users: Iterable[UserDefinition],
    losses: Iterable[Loss] = (),
) -> list[CheckResult]:
    """Return all findings, the worst first; `losses` are the unacknowledged ones."""
    facts = await runtime.facts()
    now_ms = runtime.wall_ms()
    found = [
        *check_losses(losses),
        *_check_alarms(broker, facts),
        *_check_figures(broker, facts),
        *await _check_queues(broker),
        *await _check_groups(broker, now_ms),
        *_check_waiting(broker, now_ms),
        *await _check_lag(),
        *await asyncio.to_thread(list, check_certificates(runtime.configuration, now_ms)),
        *await asyncio.to_thread(list, check_passwords(users, runtime.configuration)),
    ]
    return sorted(found, key=lambda result: result.severity is not Severity.ERROR)


def _check_alarms(broker: Broker, facts: dict[str, Any]) -> Iterator[CheckResult]:
    remedies = {
        "memory": "let consumers drain the fullest queues, `leveret queue list --sort messages "
        "--reverse` names them; or raise memory_fraction_max",
        "disk": f"free space on the file system of {facts['data_dir']}, or lower "
        "disk_free_bytes_min",
    }
    for low in broker.alarms.low:
        yield CheckResult(
            f"alarm.{low.value}",
            Severity.ERROR,
            broker.node_name,
            f"the node runs low on {low.value}",
            "publishers are blocked until the alarm clears; consumers continue",
            remedies[low.value],
        )


def _check_figures(broker: Broker, facts: dict[str, Any]) -> Iterator[CheckResult]:
    low = {resource.value for resource in broker.alarms.low}
    used, limit = facts["memory_bytes"], facts["memory_bytes_max"]
    if "memory" not in low and used > NEAR * limit:
        yield _near(
            "memory.near",
            f"{used:,} of {limit:,} bytes of memory are used",
            "publishers are blocked when the limit is reached",
            "let consumers drain the fullest queues, or raise memory_fraction_max",
        )
    free, least = facts["disk_free_bytes"], facts["disk_free_bytes_min"]
    if "disk" not in low and free < least / NEAR:
        yield _near(
            "disk.near",
            f"{free:,} bytes of disk are free, {least:,} must be",
            "publishers are blocked when the limit is reached",
            f"free space on the file system of {facts['data_dir']}",
        )
    files, files_max = facts["open_files"], facts["open_files_max"]
    if files > NEAR * files_max:
        yield _near(
            "files.near",
            f"{files} of {files_max} files are open",
            "without more, no client can connect and no log can be read",
            "raise the limit before the next start: `ulimit -n`, LimitNOFILE= in the unit",
        )


def _near(check: str, what: str, why: str, remedy: str) -> CheckResult:
    return CheckResult(check, Severity.WARNING, "node", what, why, remedy)


async def _check_queues(broker: Broker) -> list[CheckResult]:
    unread: list[QueueLike] = []
    unsettled: list[QueueLike] = []
    growing: list[QueueLike] = []
    async for part in in_yielding_chunks(queues_of(broker.vhosts.values())):
        for queue in part:
            if not queue.consumer_count and queue.message_count >= BACKLOG_MIN:
                unread.append(queue)
            if queue.leased_count >= UNACKNOWLEDGED_MIN:
                unsettled.append(queue)
            elif queue.leased_count >= GROWN_MIN and _grows(broker, queue):
                growing.append(queue)
    unread.sort(key=lambda queue: -queue.message_count)
    unsettled.sort(key=lambda queue: -queue.leased_count)
    return [
        *_named(unread, _unread),
        *_named(unsettled, _unsettled),
        *_named(growing, _growing),
    ]


def _grows(broker: Broker, queue: QueueLike) -> bool:
    """Whether a queue's number of unacknowledged deliveries has grown for some time."""
    counted = cast("Counted", queue)  # routing knows queues as less than they are
    past = broker.statistics.history(
        counted, ["messages_unacknowledged"], GROWTH_SECONDS, GROWTH_STEP_SECONDS
    )
    counts = [values[0] for _, values in past]
    risen = all(earlier <= later for earlier, later in pairwise(counts))
    return risen and len(counts) > 2 and counts[-1] >= 2 * counts[0] + GROWN_MIN


def _growing(queue: QueueLike) -> CheckResult:
    definition = queue.definition
    return CheckResult(
        "queue.unacknowledged.growing",
        Severity.WARNING,
        f"queue '{definition.name}' in vhost '{definition.vhost}'",
        f"has {queue.leased_count:,} deliveries that were not acknowledged, and ever more",
        "its consumers forget to acknowledge, or take more than they can do",
        "give its consumers a prefetch, and see that they acknowledge",
    )


def _unread(queue: QueueLike) -> CheckResult:
    definition = queue.definition
    return CheckResult(
        "queue.unread",
        Severity.WARNING,
        f"queue '{definition.name}' in vhost '{definition.vhost}'",
        f"has {queue.message_count:,} messages and no consumer",
        "it grows until the disk is full, if its publishers go on",
        "start its consumers; or give it a max-length or message-ttl by policy; or delete it: "
        f"`leveret queue delete {quote(definition.name)} --vhost {quote(definition.vhost)}`",
    )


def _unsettled(queue: QueueLike) -> CheckResult:
    definition = queue.definition
    return CheckResult(
        "queue.unacknowledged",
        Severity.WARNING,
        f"queue '{definition.name}' in vhost '{definition.vhost}'",
        f"has {queue.leased_count:,} deliveries that were not acknowledged",
        "its consumers take more than they can do, or forget to acknowledge: all of it is "
        "delivered again when they end, and its files stay until then",
        "give its consumers a prefetch, and see that they acknowledge",
    )


def _named(
    queues: list[QueueLike], result: Callable[[QueueLike], CheckResult]
) -> Iterator[CheckResult]:
    yield from map(result, queues[:QUEUES_NAMED_MAX])
    more = len(queues) - QUEUES_NAMED_MAX
    if more > 0:
        last = result(queues[QUEUES_NAMED_MAX])
        what = f"{more} more queues are like these"
        yield CheckResult(last.check, last.severity, "node", what, last.why, last.remedy)


async def _check_groups(broker: Broker, now_ms: int) -> list[CheckResult]:
    """Report queues that keep what their groups have read, or nothing for their groups."""
    overfull: list[QueueLike] = []
    unkept: list[QueueLike] = []
    by_queue = {id(group.queue): group.queue for group in broker.groups.all()}
    async for part in in_yielding_chunks(by_queue.values()):
        for queue in part:
            if queue.deleted:
                continue
            groups = broker.groups.of_queue(queue).values()
            if queue.settings.retention is None:
                unkept.append(queue)
            elif unsettled_beyond_retention(queue, groups, now_ms):
                overfull.append(queue)
    return [
        *_named(overfull, partial(_overfull, broker, now_ms)),
        *_named(unkept, _unkept),
    ]


def _overfull(broker: Broker, now_ms: int, queue: QueueLike) -> CheckResult:
    definition, groups = queue.definition, broker.groups.of_queue(queue)
    count = unsettled_beyond_retention(cast("DeclaredQueue", queue), groups.values(), now_ms)
    return CheckResult(
        "queue.unsettled",
        Severity.WARNING,
        f"queue '{definition.name}' in vhost '{definition.vhost}'",
        f"keeps {count:,} messages for longer than its retention says, and all its consumer groups "
        "have read them",
        "groups settle nothing in a queue that does not name them, and it has no consumers: it "
        "grows until the disk is full",
        f"let its groups settle: `{_letting_groups_settle(broker, queue)}`; or declare a stream "
        "instead",
    )


def _letting_groups_settle(broker: Broker, queue: QueueLike) -> str:
    """Return a command that sets a policy for a queue: the one that it has, with its groups."""
    definition, effective = queue.definition, queue.policy
    policies = broker.policies.select(definition.vhost, operator=False)
    own = next((each for each in policies if each.name == effective.policy), None)
    stated = {**effective.definition, **{key[2:]: v for key, v in definition.arguments.items()}}
    settings = {} if own is None else dict(own.definition)
    settings |= {key[2:]: stated[key[2:]] for key in RETENTION_LIMITS if key[2:] in stated}
    settings["retention-settles"] = sorted(broker.groups.of_queue(queue))
    words = [
        f"{definition.name}-groups",
        f"^{re.escape(definition.name)}$",
        json.dumps(settings, ensure_ascii=False),
        *("--apply-to", "queues", "--vhost", definition.vhost),
        *(() if own is None else ("--priority", str(own.priority + 1))),
    ]
    return "leveret policy set " + " ".join(map(quote, words))


def _unkept(queue: QueueLike) -> CheckResult:
    definition = queue.definition
    return CheckResult(
        "queue.unkept",
        Severity.WARNING,
        f"queue '{definition.name}' in vhost '{definition.vhost}'",
        "has consumer groups and no retention any more",
        "what its own consumers settle is deleted at once, whether groups have read it or not, and "
        "its groups admit no new members",
        "give it a retention again, by the policy that it had; or delete the groups: "
        f"`leveret group list --vhost {quote(definition.vhost)}` names them",
    )


def _check_waiting(broker: Broker, now_ms: int) -> Iterator[CheckResult]:
    for room in broker.delayed_stores.opened:
        due_ms = room.next_due_ms
        if due_ms is not None and due_ms < now_ms - OVERDUE_MS:
            yield CheckResult(
                "waiting.overdue",
                Severity.ERROR,
                repr(room),
                f"has messages that were due {(now_ms - due_ms) // 1000:,} seconds ago",
                "delayed or retried messages are not delivered: what they shall go to refuses "
                "them, or the node cannot keep up",
                "look for errors in the node's log; if there are none, restart the node: what "
                "waits is read from its log again",
            )


async def _check_lag() -> list[CheckResult]:
    loop = asyncio.get_running_loop()
    worst = 0.0
    for _ in range(LAG_PROBES):
        begun = loop.time()
        await asyncio.sleep(LAG_PROBE_SECONDS)
        worst = max(worst, loop.time() - begun - LAG_PROBE_SECONDS)
    if worst < LAG_SECONDS_MAX:
        return []
    return [
        CheckResult(
            "loop.lag",
            Severity.WARNING,
            "node",
            f"the event loop was {worst * 1000:.0f} ms late",
            "every client waits that long: the processor is overloaded, or the disk stalls",
            "look at the processor's load and steal; spread the queues over more nodes",
        )
    ]
