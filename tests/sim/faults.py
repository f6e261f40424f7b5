"""Mistakes planted in the machines on purpose: the simulator must find each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leveret.cluster import controller
from leveret.cluster.replication.follower import FollowerReplica, FollowerStep
from leveret.cluster.replication.leader import LeaderReplica
from leveret.cluster.replication.messages import Records
from leveret.ports.epochs import NO_EPOCH, EpochIndex
from tests.sim import world

if TYPE_CHECKING:
    import pytest


def truncates_too_little(patch: pytest.MonkeyPatch) -> None:
    right = FollowerReplica._truncate

    def wrong(self: Any, answer: Any, end: int) -> FollowerStep:
        step = right(self, answer, end)
        return step if step.truncate_to is None else step._replace(truncate_to=step.truncate_to + 1)

    patch.setattr(FollowerReplica, "_truncate", wrong)


def never_truncates(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, request: Any, now_ms: int) -> Records:
        self._note(request, now_ms)
        self._advance()
        return Records(self.epoch, min(request.end, self._end), self.committed)

    patch.setattr(LeaderReplica, "fetch", wrong)


def confirms_before_replication(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any) -> None:
        self.committed = max(self.committed, self._durable)
        self.confirmed = max(self.confirmed, self.committed)

    patch.setattr(LeaderReplica, "_advance", wrong)


def confirms_with_too_few_copies(patch: pytest.MonkeyPatch) -> None:
    right = world.ReplicationLimits
    patch.setattr(world, "ReplicationLimits", lambda lag_ms, _, acks: right(lag_ms, 1, acks))


def confirms_with_too_few_acks(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica._acknowledged

    def wrong(self: Any, members: Any) -> int:
        return self._durable if self.limits.acks == 2 else right(self, members)

    patch.setattr(LeaderReplica, "_acknowledged", wrong)


def follows_late_answers(patch: pytest.MonkeyPatch) -> None:
    right = FollowerReplica.take

    def wrong(self: Any, answer: Any, end: int) -> FollowerStep:
        if hasattr(answer, "agrees_until") and answer.epoch == self.epoch:
            return self._truncate(answer, end)
        return right(self, answer, end)

    patch.setattr(FollowerReplica, "take", wrong)


def shrinks_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica._advance

    def wrong(self: Any) -> None:
        state, proposal = self.state, self.proposal
        if proposal is not None:
            self.state, self.proposal = proposal, None
        right(self)
        self.state, self.proposal = state, proposal

    patch.setattr(LeaderReplica, "_advance", wrong)


def lets_everybody_join(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "_may_join", lambda self, each, _: True)


def elects_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(controller, "_keeps", lambda *_, **__: True)


def leads_on_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A node that was started again goes on in the epoch in which it led."""
    right = controller._leads

    def wrong(state: Any, nodes: Any) -> bool:
        return state.leader in nodes or right(state, nodes)

    learn = world.Node.learn

    def learnt(self: Any, number: int, state: Any) -> None:
        if state.leader == self.number:
            state = replace(state, leader_session=self.session)
        learn(self, number, state)

    patch.setattr(controller, "_leads", wrong)
    patch.setattr(world.Node, "learn", learnt)


def trusts_lost_data(patch: pytest.MonkeyPatch) -> None:
    right = controller._keeps
    patch.setattr(
        controller,
        "_keeps",
        lambda state, node, known, *, survives: right(state, node, known, survives=True),
    )


def counts_what_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world.Node, "_durable", lambda _, disk: disk.end)


def moves_before_they_have_it(patch: pytest.MonkeyPatch) -> None:
    def wrong(state: Any, target: Any, nodes: Any) -> Any:
        there = [node for node in target if node in nodes]
        if state.replicas == tuple(target) or not there:
            return None
        return replace(
            state,
            replicas=tuple(target),
            in_sync=frozenset(controller.Member(node, nodes[node].incarnation) for node in there),
            leader=there[0],
            leader_session=nodes[there[0]].session,
            epoch=state.epoch + 1,
            version=state.version + 1,
        )

    patch.setattr(world, "settle_move", wrong)


def delivers_before_it_is_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "is_ready", True)


def mistakes_the_end_of_an_epoch(patch: pytest.MonkeyPatch) -> None:
    right = EpochIndex.end_of

    def wrong(self: Any, epoch: int, log_end: int) -> Any:
        found = right(self, epoch, log_end)
        return found if found.epoch == NO_EPOCH else found._replace(end=log_end)

    patch.setattr(EpochIndex, "end_of", wrong)


PLANTED = [
    truncates_too_little,
    never_truncates,
    confirms_before_replication,
    confirms_with_too_few_copies,
    confirms_with_too_few_acks,
    follows_late_answers,
    shrinks_before_it_is_decided,
    lets_everybody_join,
    elects_anybody,
    leads_on_after_a_restart,
    trusts_lost_data,
    counts_what_is_not_flushed,
    moves_before_they_have_it,
    delivers_before_it_is_ready,
    mistakes_the_end_of_an_epoch,
]
