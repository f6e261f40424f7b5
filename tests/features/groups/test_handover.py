"""Members join, leave, settle, commit and roll back, in any order: nobody waits in vain."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from leveret.errors import StorageError
from tests.support.client import Client
from tests.support.examples import examples
from tests.support.stage import Stage

PARTITIONS = 3
MEMBERS_MAX = 4
MEMBERS = [{"transacts": True}, {}, {"settles": False}]
SESSION_MS = 60_000
KINDS = {
    "stream": {"x-queue-type": "stream"},
    "classic": {"x-retention": "1d"},
    "retrying": {"x-retention": "1d", "x-retry-delays": [500, 30_000]},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1d"},
}


class Member:
    """A client with one channel, as its program sees it: what it holds, by delivery tag."""

    def __init__(self, stage, *, transacts=False, settles=True, prefetch=1):
        self.client = Client(stage).open()
        self.transacts = transacts
        self.settles = settles
        if transacts:
            self.client.call(commands.Tx.Select())
        self.client.prefetch(prefetch)
        self.client.consume(
            "q",
            "c",
            no_ack=not settles,
            arguments={"x-consumer-group": "g"}
            | ({"x-group-session": SESSION_MS} if settles else {}),
        )
        self.consumes = True
        self.held = {}  # outstanding: partition by tag
        self.undecided = {}  # settled in a transaction that is not committed: the same

    def receive(self):
        """Note what came; return the answers to methods among it."""
        answers, tag = [], 0
        for _, value in self.client.received():
            if isinstance(value, ContentHeader) and self.settles:
                self.held[tag] = value.properties.headers["x-partition"]
            elif isinstance(value, commands.Basic.Deliver):
                tag = value.delivery_tag
            elif not isinstance(value, ContentHeader | ContentBody):
                answers.append(value.name)
        return answers

    def call(self, method):
        self.client.send(method)
        return self.receive()

    def settle(self, method, tags):
        """Settle what has these tags."""
        self.client.send(method)
        for tag in tags:
            partition = self.held.pop(tag)
            if self.transacts:
                self.undecided[tag] = partition

    def partitions(self):
        return {*self.held.values(), *self.undecided.values()}


def needs(suits=lambda _member: True):
    """A rule that is for machines with a member that suits."""
    return precondition(lambda self: any(map(suits, self.members)))


def holds(member):
    return bool(member.held)


def transacts(member):
    return member.transacts


def has_undecided(member):
    return bool(member.undecided)


class HandoverMachine(RuleBasedStateMachine):
    """A group over real channels. `members` have not closed theirs."""

    def __init__(self):
        super().__init__()
        self.members = []

    @initialize(kind=st.sampled_from(sorted(KINDS)), prefetch=st.integers(1, 8))
    def begin(self, kind, prefetch):
        self.stage = Stage()
        self.publisher = Client(self.stage).open()
        arguments = KINDS[kind] | {"x-partitions": PARTITIONS}
        self.publisher.declare("q", durable=True, arguments=arguments)
        self.publisher.declare("q.dlq", durable=True)
        self.published = 0
        self.join({"transacts": True}, prefetch)
        self.publish(6)

    def drawn(self, data, suits=lambda _member: True):
        """Draw one of the members that suit."""
        suiting = [number for number, each in enumerate(self.members) if suits(each)]
        return self.members[data.draw(st.sampled_from(suiting))]

    def receive(self):
        for member in self.members:
            assert member.receive() == []

    @rule(count=st.integers(1, 6))
    def publish(self, count):
        for _ in range(count):
            key = {"x-partition-key": str(self.published)}
            self.publisher.publish("q", b"%d" % self.published, headers=key)
            self.published += 1
        self.receive()

    @precondition(lambda self: len(self.members) < MEMBERS_MAX)
    @rule(how=st.sampled_from(MEMBERS), prefetch=st.integers(1, 8))
    def join(self, how, prefetch):
        self.members.append(Member(self.stage, **how, prefetch=prefetch))

    @needs(holds)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["ack", "ack", "reject", "requeue"]),
        multiple=st.booleans(),
    )
    def settle(self, data, verb, multiple):
        member = self.drawn(data, holds)
        tag = data.draw(st.sampled_from(sorted(member.held)))
        tags = [each for each in member.held if each <= tag] if multiple else [tag]
        if verb == "ack":
            method = commands.Basic.Ack(tag, multiple=multiple)
        else:
            method = commands.Basic.Nack(tag, multiple=multiple, requeue=verb == "requeue")
        member.settle(method, tags)

    @needs(transacts)
    @rule(data=st.data())
    def commit(self, data):
        member = self.drawn(data, transacts)
        member.undecided.clear()
        assert member.call(commands.Tx.Commit()) == ["Tx.CommitOk"]

    @needs(has_undecided)
    @rule(data=st.data())
    def fail_to_commit(self, data):
        """A commit that the disk refuses closes the channel."""
        member = self.drawn(data, has_undecided)
        logs = [log for place, log in self.stage.topics.logs.items() if ".group." in place[1]]
        for log in logs:
            log.append_error = StorageError("no space left")
        answers = member.call(commands.Tx.Commit())
        for log in logs:
            log.append_error = None
        self.stage.reported.clear()
        if answers == ["Tx.CommitOk"]:  # there was nothing to be written but rejects
            member.undecided.clear()
        else:
            assert answers == ["Channel.Close"]
            self.members.remove(member)

    @needs(transacts)
    @rule(data=st.data())
    def roll_back(self, data):
        member = self.drawn(data, transacts)
        member.held |= member.undecided
        member.undecided.clear()
        assert member.call(commands.Tx.Rollback()) == ["Tx.RollbackOk"]

    @needs(lambda member: member.consumes)
    @rule(data=st.data())
    def cancel(self, data):
        member = self.drawn(data, lambda each: each.consumes)
        member.consumes = False
        assert member.call(commands.Basic.Cancel("c")) == ["Basic.CancelOk"]

    @needs()
    @rule(data=st.data(), politely=st.booleans())
    def end(self, data, politely):
        member = self.drawn(data)
        self.members.remove(member)
        if politely:
            member.client.send(commands.Channel.Close(200, "", 0, 0))
        else:
            member.client.transport.lose()

    @needs(holds)
    @rule()
    def be_too_slow(self):
        """Let everything outstanding come back; who cannot give a sign of life, leaves."""
        self.stage.advance(2 * SESSION_MS / 1000)
        for member in list(self.members):
            member.held.clear()
            if not member.undecided:
                member.client.send(commands.Channel.Close(200, "", 0, 0))
                self.members.remove(member)

    @invariant()
    def a_partition_is_revoked_only_from_who_holds_some_of_it(self):
        if not self.members:
            return
        self.receive()
        held = {partition for member in self.members for partition in member.partitions()}
        for group in self.stage.broker.groups.all():
            revoked = {
                number for number in range(PARTITIONS) if group.coordinator.is_revoked(number)
            }
            assert revoked <= held
        assert self.stage.reported == []

    def teardown(self):
        """Nothing is left over when all have settled what they hold."""
        if not any(each.consumes for each in self.members):
            return
        for _ in range(self.published + 1):
            self.stage.advance(SESSION_MS / 2000)  # what is retried comes back
            self.receive()
            for member in self.members:
                if member.held:
                    member.settle(
                        commands.Basic.Ack(max(member.held), multiple=True), [*member.held]
                    )
            for member in self.members:
                if member.transacts:
                    member.undecided.clear()
                    member.call(commands.Tx.Commit())
        [group] = self.stage.broker.groups.all()
        assert (group.lag, group.unacked) == (0, 0)


TestHandover = HandoverMachine.TestCase
TestHandover.settings = settings(max_examples=examples(100), stateful_step_count=30)
