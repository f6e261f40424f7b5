from __future__ import annotations

import pytest
from pamqp import commands, header

from leveret.core.definitions.validation import AdministrationError
from leveret.errors import DiskFullError, NotEnoughCopiesError
from leveret.features.delay.delayed_messages import DELAYED_TOPIC
from leveret.features.delay.scheduled import MARKED, Draft, ScheduleKey
from leveret.ports import Durability
from leveret.ports.definitions import VhostDefinition
from leveret.ports.records import RecordFlag
from leveret.storage.state import MemoryStateStore
from tests.support.client import Client, message, wire
from tests.support.queue_bench import content_header
from tests.support.stage import Stage

FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def client(stage: Stage) -> Client:
    client = Client(stage).open()
    client.declare("q")
    return client


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    return [body for body, _ in messages(client, queue)]


def messages(client: Client, queue: str = "q") -> list[tuple[bytes, commands.Basic.Properties]]:
    """Everything in a queue: bodies and properties."""
    found = []
    while True:
        client.send(commands.Basic.Get(queue=queue, no_ack=True))
        frames = [frame for _, frame in client.received()]
        if frames[0].name == "Basic.GetEmpty":
            return found
        found.append((b"".join(part.value for part in frames[2:]), frames[1].properties))


def later(client: Client, body: bytes, delay: int = 1000, key: str = "q", **options: object):
    headers = {"x-delay": delay, **options.pop("headers", {})}
    client.publish(key, body, headers=headers, **options)


def wait(stage: Stage, seconds: float) -> None:
    """Let time pass, with turns of the loop in between."""
    left_ms = round(seconds * 1000)
    while True:
        step_ms = min(left_ms, 100)
        stage.advance(step_ms / 1000)
        left_ms -= step_ms
        if not left_ms:
            break


def pending(stage: Stage) -> int:
    return stage.broker.delayed.find("/").store.pending_count


def closed(client: Client) -> tuple[int, str]:
    ((name, code, text, *_),) = client.methods()
    assert name == "Channel.Close"
    return code, text


class TestBeingDue:
    @pytest.mark.covers("C-201")
    def test_a_message_comes_when_it_is_due(self, stage: Stage, client: Client) -> None:
        later(client, b"later", 5000)
        client.publish("q", b"now")
        assert bodies(client) == [b"now"]
        wait(stage, 4.999)
        assert bodies(client) == []
        wait(stage, 0.001)
        assert bodies(client) == [b"later"]
        wait(stage, 1)
        assert pending(stage) == 0
        assert not stage.reported

    @pytest.mark.covers("C-201")
    def test_those_of_one_millisecond_come_in_the_order_of_publishing(
        self, stage: Stage, client: Client
    ) -> None:
        at = stage.now + 700
        for number in range(50):
            headers = {"x-deliver-at": at if number % 2 else at + 1}
            client.publish("q", b"%d" % number, headers=headers)
        wait(stage, 5)
        odd, even = range(1, 50, 2), range(0, 50, 2)
        assert bodies(client) == [b"%d" % number for number in (*odd, *even)]

    def test_what_is_due_now_goes_its_usual_way(self, stage: Stage, client: Client) -> None:
        for delay in (0, -5, "-1"):
            later(client, b"m", delay)
        client.publish("q", b"m", headers={"x-deliver-at": stage.now - 1})
        assert len(bodies(client)) == 4
        assert stage.broker.delayed.find("/") is None

    def test_a_delay_arrives_negated(self, stage: Stage, client: Client) -> None:
        later(client, b"m", headers={"mine": "x"}, correlation_id="c")
        wait(stage, 1)
        ((_, properties),) = messages(client)
        assert properties.headers == {"x-delay": -1000, "mine": "x"}
        assert properties.correlation_id == "c"

    @pytest.mark.covers("C-201")
    def test_time_to_live_begins_when_it_is_due(self, stage: Stage, client: Client) -> None:
        later(client, b"m", 5000, expiration="1000")
        wait(stage, 5.9)
        assert bodies(client) == [b"m"]
        later(client, b"m", 5000, expiration="1000")
        wait(stage, 6.1)
        assert bodies(client) == []

    @pytest.mark.covers("C-201")
    def test_every_exchange_and_every_selected_key(self, stage: Stage, client: Client) -> None:
        client.declare("copy")
        client.declare("blind")
        client.send(commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#"))
        client.received()
        later(client, b"topic", exchange="amq.topic", key="a.b")
        later(client, b"copies", key="none", headers={"CC": ["copy"], "BCC": ["blind"]})
        wait(stage, 1)
        assert bodies(client) == [b"topic"]
        assert bodies(client, "copy") == [b"copies"]
        ((body, properties),) = messages(client, "blind")
        assert body == b"copies"
        assert "BCC" not in properties.headers

    def test_headers_exchanges_route_when_it_is_due(self, stage: Stage, client: Client) -> None:
        client.send(
            commands.Queue.Bind(queue="q", exchange="amq.headers", arguments={"colour": "red"})
        )
        client.received()
        later(client, b"red", exchange="amq.headers", headers={"colour": "red"})
        later(client, b"blue", exchange="amq.headers", headers={"colour": "blue"})
        wait(stage, 1)
        assert bodies(client) == [b"red"]
        assert stage.broker.delayed.find("/").unroutable == 1

    def test_bindings_count_that_exist_when_it_is_due(self, stage: Stage, client: Client) -> None:
        later(client, b"m", key="new")
        client.declare("new")
        wait(stage, 1)
        assert bodies(client, "new") == [b"m"]


class TestRefusing:
    def test_nonsense_closes_the_channel_and_nothing_is_kept(
        self, stage: Stage, client: Client
    ) -> None:
        later(client, b"m", True)
        assert closed(client) == (
            406,
            "PRECONDITION_FAILED - invalid header 'x-delay': it is no number of milliseconds",
        )
        assert stage.broker.delayed.find("/") is None

    def test_a_missing_exchange(self, client: Client) -> None:
        later(client, b"m", exchange="none")
        assert closed(client)[0] == 404

    def test_whoever_may_not_write(self, stage: Stage) -> None:
        stage.add_user("reader", write="^$")
        client = Client(stage).open(user="reader")
        later(client, b"m", exchange="amq.topic")
        assert closed(client)[0] == 403


class TestConfirming:
    @pytest.mark.covers("C-201")
    def test_the_confirm_waits_until_the_schedule_is_durable(self) -> None:
        stage = Stage(Durability.FSYNC)
        client = Client(stage).open()
        client.declare("q", durable=True)
        client.call(commands.Confirm.Select())
        later(client, b"m", delivery_mode=2)
        assert client.methods() == []
        stage.log(DELAYED_TOPIC).commit()
        stage.run()
        assert client.methods() == [("Basic.Ack", 1, False)]

    def test_a_full_disk_is_told(self, stage: Stage, client: Client) -> None:
        client.call(commands.Confirm.Select())
        later(client, b"first")
        assert client.methods() == [("Basic.Ack", 1, False)]
        stage.log(DELAYED_TOPIC).append_error = DiskFullError("no space")
        later(client, b"lost")
        assert client.methods() == [("Basic.Nack", 2, True)]
        stage.log(DELAYED_TOPIC).append_error = None
        wait(stage, 1)
        assert bodies(client) == [b"first"]

    def test_it_is_kept_until_its_queues_have_it(self) -> None:
        stage = Stage(Durability.FSYNC)
        client = Client(stage).open()
        client.declare("q", durable=True)
        later(client, b"m", delivery_mode=2)
        log = stage.log(DELAYED_TOPIC)
        log.commit()
        stage.run()
        wait(stage, 2)
        assert stage.log("q").end == 1
        assert not log.settled
        stage.log("q").commit()
        wait(stage, 1)
        assert list(log.settled) == [(0, 1)]


class TestUnroutable:
    @pytest.mark.covers("C-201")
    def test_a_mandatory_message_comes_back_while_its_publisher_is_there(
        self, stage: Stage, client: Client
    ) -> None:
        later(client, b"m", key="none", mandatory=True)
        wait(stage, 1)
        (returned, content, body) = [frame for _, frame in client.received()]
        assert (returned.reply_code, returned.routing_key) == (312, "none")
        assert isinstance(content, header.ContentHeader)
        assert body.value == b"m"

    def test_nobody_is_told_who_has_left(self, stage: Stage, client: Client) -> None:
        later(client, b"m", key="none", mandatory=True)
        client.transport.lose()
        wait(stage, 1)
        assert stage.broker.delayed.find("/").unroutable == 1
        assert not stage.reported

    def test_the_alternate_exchange_gets_it(self, stage: Stage, client: Client) -> None:
        client.call(
            commands.Exchange.Declare(
                exchange="x", arguments={"alternate-exchange": "amq.fanout"}, exchange_type="direct"
            )
        )
        client.call(commands.Queue.Bind(queue="q", exchange="amq.fanout", routing_key=""))
        later(client, b"m", exchange="x", key="none", mandatory=True)
        wait(stage, 1)
        assert bodies(client) == [b"m"]

    def test_an_exchange_that_is_gone_is_reported_once(self, stage: Stage, client: Client) -> None:
        client.call(commands.Exchange.Declare(exchange="x", exchange_type="fanout"))
        later(client, b"1", exchange="x")
        later(client, b"2", 2000, exchange="x")
        client.call(commands.Exchange.Delete(exchange="x"))
        wait(stage, 3)
        ((_, error),) = stage.reported
        assert "'x'" in str(error)
        assert stage.broker.delayed.find("/").unroutable == 2
        assert pending(stage) == 0

    def test_nobody_is_returned_what_another_one_has_published(
        self, stage: Stage, client: Client
    ) -> None:
        later(client, b"makes the topic", 600_000)
        log = stage.log(DELAYED_TOPIC)
        log.append_error = DiskFullError("no space")
        later(client, b"mine", mandatory=True)
        log.append_error = None
        other = Client(stage).open()
        later(other, b"secret", key="nowhere")
        wait(stage, 3)
        assert stage.broker.delayed.find("/").unroutable == 1
        assert client.methods() == []


class TestFullQueues:
    def test_what_a_queue_refuses_is_offered_again(self, stage: Stage, client: Client) -> None:
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        client.declare("small", arguments=limits)
        for queue in ("q", "small"):
            client.call(commands.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""))
        client.publish("small", b"full")
        later(client, b"m", exchange="amq.fanout")
        wait(stage, 3.5)
        assert bodies(client, "small") == [b"full"]
        wait(stage, 1)
        assert bodies(client, "small") == [b"m"]
        assert bodies(client) == [b"m"]
        wait(stage, 5)
        assert bodies(client) == bodies(client, "small") == []
        assert pending(stage) == 0

    def test_nothing_is_lost_where_chance_chooses(self, stage: Stage, client: Client) -> None:
        client.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        client.call(commands.Exchange.Declare(exchange="x", exchange_type="x-random"))
        for queue in ("q", "small"):
            client.call(commands.Queue.Bind(queue=queue, exchange="x", routing_key=""))
        for number in range(20):
            later(client, b"%d" % number, exchange="x")
        wait(stage, 40)
        assert pending(stage) == 0
        assert sorted(bodies(client) + bodies(client, "small")) == sorted(
            b"%d" % number for number in range(20)
        )

    @pytest.mark.parametrize(
        ("queue", "headers"),
        [
            ("full", {}),
            ("full", {"x-delay": 0}),  # looked at, and not delayed
            ("full", {"x-deliver-at": 0}),
            ("q", {"x-delay": "soon"}),  # refused by what looks at it
        ],
    )
    def test_a_transaction_that_one_refuses_delays_no_message(
        self, stage: Stage, client: Client, queue: str, headers: dict[str, object]
    ) -> None:
        client.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        for _ in range(3):
            each = Client(stage).open()
            each.call(commands.Tx.Select())
            later(each, b"m")
            each.publish(queue, b"m", headers=headers)
            each.send(commands.Tx.Commit())
            stage.run()
            assert closed(each)[0] == 406
        wait(stage, 2)
        assert bodies(client) == []


def test_a_transaction_is_refused_behind_what_fills_the_queue_in_the_same_turn(
    stage: Stage, client: Client
) -> None:
    client.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    each = Client(stage).open()
    each.call(commands.Tx.Select())
    later(each, b"m")
    each.publish("small", b"m")
    client.connection.received(memoryview(bytearray(message("small", b"first"))))
    each.send(commands.Tx.Commit())
    assert closed(each)[0] == 406
    wait(stage, 2)
    assert bodies(client) == []
    assert bodies(client, "small") == [b"first"]


def test_a_numbered_delayed_message_is_stored_once_though_one_without_delay_is_refused(
    stage: Stage, client: Client
) -> None:
    client.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call(commands.Confirm.Select())
    numbers = {"x-producer-epoch": 0, "x-producer-seq": 0}
    late = message("q", b"m", headers={"x-producer-id": "a", "x-delay": 1000, **numbers})
    now = message("small", b"m", headers={"x-producer-id": "b", "x-delay": 0, **numbers})
    client.feed(message("small", b"first") + late + now)
    client.feed(late)
    assert client.names().count("Basic.Nack") == 1
    wait(stage, 2)
    assert bodies(client) == [b"m"]


def test_what_falls_due_while_a_transaction_commits_is_delayed_all_the_same(
    stage: Stage, client: Client
) -> None:
    client.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    client.call(commands.Tx.Select())
    client.publish("full", b"soon", headers={"x-deliver-at": stage.now + 5})
    client.publish("q", *[b"m"] * 100)
    stage.look_ns = 10**12  # each look at the clock ends the turn's share
    client.connection.received(memoryview(bytearray(wire(commands.Tx.Commit()))))
    for _ in range(3):
        stage.run_once()
    stage.now += 10
    stage.run()
    assert client.names() == ["Tx.CommitOk"]
    assert len(bodies(client)) == 100


KEPT_FOR_LATER = [
    {"x-delay": 60_000},
    {"x-prepare": True},
    {"x-delay": 60_000, "x-producer-id": "p", "x-producer-epoch": 0, "x-producer-seq": 0},
]


class TestLackingCopies:
    @pytest.fixture
    def client(self, stage: Stage) -> Client:
        client = Client(stage).open()
        quorum = {"x-queue-type": "quorum"}
        client.declare("q", durable=True, arguments=quorum)
        client.declare("classic", durable=True)
        client.call(commands.Confirm.Select())
        return client

    def outcome(self, client: Client, headers: dict[str, object], key: str = "q") -> str:
        client.publish(key, b"m", headers=headers, delivery_mode=2, message_id="id")
        client.stage.run()
        ((name, *_),) = client.methods()
        return name

    @pytest.mark.parametrize("headers", KEPT_FOR_LATER)
    def test_a_message_is_refused_as_if_it_went_to_its_queue_now(
        self, stage: Stage, client: Client, headers: dict[str, object]
    ) -> None:
        stage.topics.in_sync_count = 1
        assert self.outcome(client, headers) == "Basic.Nack"
        assert not any(log.end for name, log in stage.topics.logs.items())
        stage.topics.in_sync_count = 2
        assert self.outcome(client, headers) == "Basic.Ack"
        stage.topics.in_sync_count = None
        assert self.outcome(client, {**headers, "x-producer-seq": 1}) == "Basic.Ack"

    @pytest.mark.parametrize("headers", KEPT_FOR_LATER)
    def test_one_to_a_queue_with_copies_enough_is_taken(
        self, stage: Stage, client: Client, headers: dict[str, object]
    ) -> None:
        stage.topics.in_sync_count = 1
        assert self.outcome(client, headers, "classic") == "Basic.Ack"

    def test_the_next_message_of_the_turn_is_taken(self, stage: Stage, client: Client) -> None:
        numbered = KEPT_FOR_LATER[-1]
        stage.topics.in_sync_count = 1
        other = {**numbered, "x-producer-id": "other"}
        client.feed(
            message("q", b"refused", headers=numbered, delivery_mode=2)
            + message("classic", b"taken", headers=other, delivery_mode=2)
        )
        stage.run()
        assert client.names() == ["Basic.Nack", "Basic.Ack"]
        assert pending(stage) == 1

    def test_a_transaction_fails(self, stage: Stage) -> None:
        client = Client(stage).open()
        client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        client.call(commands.Tx.Select())
        stage.topics.in_sync_count = 1
        later(client, b"m", delivery_mode=2)
        client.send(commands.Tx.Commit())
        stage.run()
        assert closed(client)[0] == 406
        assert stage.broker.delayed.find("/") is None


class TestLackingCopiesOfWhatIsDue:
    @pytest.fixture
    def stage(self) -> Stage:
        return Stage(Durability.FSYNC)

    @pytest.fixture
    def client(self, stage: Stage) -> Client:
        client = Client(stage).open()
        client.declare("q", durable=True)
        return client

    def flush(self, stage: Stage) -> None:
        """Let a second pass, and have all disks flush now and then."""
        for _ in range(10):
            stage.advance(0.1)
            for log in list(stage.topics.logs.values()):
                log.commit()
        stage.run()

    def test_it_comes_once(self, stage: Stage, client: Client) -> None:
        later(client, b"m", 1500)
        self.flush(stage)
        wait(stage, 1)
        queue = stage.log("q")
        assert (queue.end, queue.committed) == (1, 0)
        queue.refuse(FEW)
        wait(stage, 3)
        queue.refuse(None)
        for _ in range(3):
            self.flush(stage)
        assert bodies(client) == [b"m"]
        assert pending(stage) == 0

    def test_what_other_queues_have_is_settled_meanwhile(
        self, stage: Stage, client: Client
    ) -> None:
        client.declare("other", durable=True)
        later(client, b"m")
        later(client, b"again", key="other", headers={"x-repeat-every": 1000})
        later(client, b"once", key="other")
        stage.log(DELAYED_TOPIC).commit()
        wait(stage, 1)
        lacking, other = stage.log("q"), stage.log("other")
        assert (lacking.end, lacking.committed, other.end) == (1, 0, 2)
        lacking.refuse(FEW)
        for _ in range(50):
            stage.advance(0.1)
            for log in list(stage.topics.logs.values()):
                if log is not lacking:
                    log.commit()
        assert other.end >= 6
        assert pending(stage) == 1  # the next time of what repeats
        assert (0, 1) not in list(stage.log(DELAYED_TOPIC).settled)

    def test_what_is_routed_elsewhere_before_it_is_tried_again_gets_there(
        self, stage: Stage, client: Client
    ) -> None:
        client.call(commands.Exchange.Declare(exchange="x", exchange_type="direct"))
        client.declare("other", durable=True)
        for queue in ("q", "other"):
            client.call(commands.Queue.Bind(queue=queue, exchange="x", routing_key=queue))
            later(client, queue.encode(), key=queue, exchange="x")
        stage.log("q").append_error = DiskFullError("no space")
        for _ in range(2):
            self.flush(stage)
        client.call(commands.Queue.Bind(queue="other", exchange="x", routing_key="q"))
        client.call(commands.Queue.Unbind(queue="q", exchange="x", routing_key="q"))
        for _ in range(3):
            self.flush(stage)
        assert bodies(client, "other") == [b"other", b"q"]

    def test_who_replaces_what_is_under_way_is_not_replaced_by_it(
        self, stage: Stage, client: Client
    ) -> None:
        schedule = {"x-schedule-id": "a"}
        later(client, b"old", headers={"x-repeat-every": 10_000, **schedule}, delivery_mode=2)
        stage.log(DELAYED_TOPIC).commit()
        wait(stage, 1)
        assert (stage.log("q").end, stage.log("q").committed) == (1, 0)
        later(client, b"new", 5000, headers=schedule, delivery_mode=2)
        for _ in range(40):
            self.flush(stage)
        assert bodies(client) == [b"old", b"new"]
        assert pending(stage) == 0


class TestRepeating:
    def test_it_comes_so_often(self, stage: Stage, client: Client) -> None:
        client.publish("q", b"m", headers={"x-repeat-every": 1000, "x-repeat-count": 3})
        counts = []
        for _ in range(5):
            wait(stage, 0)
            counts.append(len(bodies(client)))
            wait(stage, 1)
        assert counts == [1, 1, 1, 0, 0]
        assert pending(stage) == 0

    def test_consumers_see_nothing_of_it(self, stage: Stage, client: Client) -> None:
        headers = {"x-repeat-every": 1000, "x-schedule-id": "a", "mine": 1}
        client.publish("q", b"m", headers=headers)
        wait(stage, 1)
        shown = [properties.headers for _, properties in messages(client)]
        assert shown == [{"x-from-schedule": "a", "mine": 1}] * 2

    def test_a_delivery_that_is_published_again_is_a_message_of_its_own(
        self, stage: Stage, client: Client
    ) -> None:
        repeats = {"x-repeat-every": 1000, "x-repeat-count": 4}
        for headers in ({**repeats, "x-schedule-id": "daily"}, repeats):
            client.publish("q", b"m", headers=headers)
            wait(stage, 1)
            _, (_, delivered) = messages(client)
            later(client, b"once more", 500, headers={**delivered.headers, "x-delay": 500})
            assert client.methods() == []
            wait(stage, 2.5)
            assert sorted(bodies(client)) == [b"m", b"m", b"once more"]
            assert pending(stage) == 0

    @pytest.mark.parametrize("id_", ["@0", "@2"])
    def test_a_message_with_an_id_of_the_brokers_is_published(
        self, stage: Stage, client: Client, id_: str
    ) -> None:
        client.publish("q", b"m", headers={"x-repeat-every": 1000, "x-repeat-count": 3})
        wait(stage, 1)  # delivered twice: what is pending is another record, known as @0
        later(client, b"mine", 100, headers={"x-schedule-id": id_})
        assert client.methods() == []
        wait(stage, 1)
        assert bodies(client) == [b"m", b"m", b"mine", b"m"]

    def test_what_was_missed_comes_once(self, stage: Stage, client: Client) -> None:
        client.publish("q", b"m", headers={"x-repeat-every": 1000})
        wait(stage, 0)
        assert bodies(client) == [b"m"]
        stage.now += 10_500  # the machine slept
        wait(stage, 0.4)
        assert bodies(client) == [b"m"]
        wait(stage, 2)
        assert bodies(client) == [b"m", b"m"]

    def test_cron(self, stage: Stage, client: Client) -> None:
        client.publish("q", b"m", headers={"x-cron": "*/5 * * * *"})
        wait(stage, 3600)
        assert len(bodies(client)) == 12

    def test_it_goes_on_where_the_next_one_could_not_be_written(
        self, stage: Stage, client: Client
    ) -> None:
        client.publish("q", b"m", headers={"x-repeat-every": 5000, "x-repeat-count": 2})
        wait(stage, 0)
        log = stage.log(DELAYED_TOPIC)
        client.publish("q", b"m", headers={"x-repeat-every": 5000, "x-repeat-count": 2})
        wait(stage, 4)
        bodies(client)
        log.append_error = DiskFullError("no space")
        client.publish("q", b"lost", headers={"x-repeat-every": 5000})
        wait(stage, 0.5)
        log.append_error = None
        wait(stage, 1)
        assert bodies(client) == [b"m", b"m"]


class TestIds:
    def test_a_pending_id_is_replaced(self, stage: Stage, client: Client) -> None:
        later(client, b"old", 1000, headers={"x-schedule-id": "a"})
        later(client, b"other", 1000, headers={"x-schedule-id": "b"})
        later(client, b"new", 2000, headers={"x-schedule-id": "a"})
        wait(stage, 1)
        assert bodies(client) == [b"other"]
        wait(stage, 1)
        assert bodies(client) == [b"new"]
        wait(stage, 5)
        assert bodies(client) == []
        assert pending(stage) == 0

    def test_an_id_is_its_users(self, stage: Stage, client: Client) -> None:
        stage.add_user("alice")
        alice, her_other = (Client(stage).open(user="alice") for _ in range(2))
        later(client, b"theirs", headers={"x-schedule-id": "1"})
        later(alice, b"hers", headers={"x-schedule-id": "1", "x-schedule-owner": "guest"})
        later(her_other, b"hers, anew", headers={"x-schedule-id": "1"})
        assert pending(stage) == 2
        wait(stage, 1)
        found = [(body, properties.headers) for body, properties in messages(client)]
        told = {"x-delay": -1000, "x-from-schedule": "1"}
        assert found == [(b"theirs", told), (b"hers, anew", told)]
        assert pending(stage) == 0

    def test_an_id_that_an_older_release_kept_is_replaced(
        self, stage: Stage, client: Client
    ) -> None:
        later(client, b"new", headers={"x-schedule-id": "a"})
        delayed = stage.broker.delayed.find("/")
        flags, head = content_header(3, headers={"x-schedule-id": "b", "x-repeat-every": 500})
        flags |= MARKED | RecordFlag.HAS_HEADERS
        old = Draft(stage.now + 500, flags, b"", b"q", head, b"old", ScheduleKey("b"))
        delayed.add(old)
        stage.run()
        assert delayed.find("b") is not None
        later(client, b"new", headers={"x-schedule-id": "b"})
        wait(stage, 2)
        assert bodies(client) == [b"new", b"new"]
        assert delayed.find("b") is None

    def test_an_id_of_several_users_names_none_of_them(self, stage: Stage, client: Client) -> None:
        stage.add_user("alice")
        later(client, b"1", headers={"x-schedule-id": "1"})
        later(Client(stage).open(user="alice"), b"2", headers={"x-schedule-id": "1"})
        delayed = stage.broker.delayed.find("/")
        assert delayed.find("1", "alice") == delayed.find("@1") == 1
        with pytest.raises(AdministrationError, match="2 users have a message with id '1'"):
            delayed.find("1")

    def test_within_one_turn_too(self, stage: Stage, client: Client) -> None:
        client.feed(
            b"".join(
                message("q", body, headers={"x-delay": 1000, "x-schedule-id": "a"})
                for body in (b"1", b"2", b"3")
            )
        )
        wait(stage, 3)
        assert bodies(client) == [b"3"]

    def test_what_is_due_at_once_replaces_as_well(self, stage: Stage, client: Client) -> None:
        later(client, b"old", headers={"x-schedule-id": "a"})
        later(client, b"new", 0, headers={"x-schedule-id": "a"})
        wait(stage, 0)
        assert bodies(client) == [b"new"]
        wait(stage, 2)
        assert bodies(client) == []

    def test_the_older_one_stays_until_the_newer_is_safe(self) -> None:
        stage = Stage(Durability.FSYNC)
        client = Client(stage).open()
        client.declare("q", durable=True)
        later(client, b"old", headers={"x-schedule-id": "a"})
        log = stage.log(DELAYED_TOPIC)
        log.commit()
        stage.run()
        later(client, b"new", 5000, headers={"x-schedule-id": "a"})
        wait(stage, 2)  # the older one is due meanwhile
        assert stage.log("q").end == 0
        log.fail(DiskFullError("no space"))
        stage.run()
        assert stage.log("q").end == 1
        stage.log("q").commit()
        stage.run()
        assert bodies(client) == [b"old"]

    def test_ids_can_be_used_again(self, stage: Stage, client: Client) -> None:
        for body in (b"1", b"2"):
            later(client, body, headers={"x-schedule-id": "a"})
            wait(stage, 1.1)
            assert bodies(client) == [body]


class TestRestarting:
    def test_what_waits_is_still_there(self, stage: Stage, client: Client) -> None:
        later(client, b"1")
        later(client, b"2", 5000, headers={"x-schedule-id": "a"})
        client, stage = restarted(stage)
        wait(stage, 2)
        assert bodies(client) == [b"1"]
        later(client, b"3", 2000, headers={"x-schedule-id": "a"})
        wait(stage, 5)
        assert bodies(client) == [b"3"]

    def test_ids_are_learnt_again_where_they_are_lost(self, stage: Stage, client: Client) -> None:
        later(client, b"old", 5000, headers={"x-schedule-id": "a"})
        stage.state = MemoryStateStore()
        client, stage = restarted(stage)
        stage.run()
        later(client, b"new", 5000, headers={"x-schedule-id": "a"})
        wait(stage, 6)
        assert bodies(client) == [b"new"]

    def test_the_newer_one_counts_if_both_are_found(self, stage: Stage, client: Client) -> None:
        later(client, b"old", 1000, headers={"x-schedule-id": "a"})
        later(client, b"new", 2000, headers={"x-schedule-id": "a"})
        log = stage.log(DELAYED_TOPIC)
        assert log.end == 2
        assert not log.settled  # it is told later that the older one is done with
        stage.state = MemoryStateStore()
        client, stage = restarted(stage)
        wait(stage, 3)
        assert bodies(client) == [b"new"]

    def test_what_became_due_meanwhile_comes_at_once(self, stage: Stage, client: Client) -> None:
        client.publish("q", b"m", headers={"x-repeat-every": 60_000, "x-delay": 1000})
        stage.clock.now += 3_570_000
        client, stage = restarted(stage)
        wait(stage, 1)
        assert bodies(client) == [b"m"]
        wait(stage, 60)
        assert bodies(client) == [b"m"]


def restarted(stage: Stage) -> tuple[Client, Stage]:
    """Another run on the same logs and the same state; queues are declared anew."""
    again = Stage(topics=stage.topics, state=stage.state)
    again.now = stage.now
    client = Client(again).open()
    client.declare("q")
    again.broker.delayed.restore(again.broker.vhosts.values())
    again.run()
    return client, again


def test_a_virtual_host_takes_its_messages_with_it(stage: Stage, client: Client) -> None:
    later(client, b"m", headers={"x-schedule-id": "a"})
    log = stage.log(DELAYED_TOPIC)
    stage.broker.remove_vhost("/")
    wait(stage, 2)
    assert log.deleted
    assert not stage.state.scan(b"schedules")
    stage.broker.add_vhost(VhostDefinition("/"))
    client = Client(stage).open()
    client.declare("q")
    later(client, b"again", headers={"x-schedule-id": "a"})
    wait(stage, 2)
    assert bodies(client) == [b"again"]
    assert not stage.reported
