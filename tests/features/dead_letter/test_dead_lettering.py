"""Dead letters, compiled, against a model in plain values."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header

from leveret.core.queues.discarding import BatchSlice
from leveret.core.settings.discard_reasons import Reason
from leveret.core.settings.queue_settings import resolve_settings
from leveret.features.dead_letter.packing import TEMPLATES_MAX
from leveret.ports.contents import headers_table, with_properties
from leveret.ports.records import RecordFlag
from leveret.ports.tables import decode_table, encode_table
from tests.support.stage import Stage

QUEUES = ("a", "b", "c")


class Yard:
    """A broker whose queues are looked into; records die when a test says so."""

    def __init__(self):
        self.stage = Stage()
        self.broker = self.stage.broker
        self.vhost = self.broker.vhosts["/"]
        self.dead_letter = self.broker._opener.services.discarded.dead_letter

    def declare(self, name, exchange=None, key=None):
        arguments = {}
        if exchange is not None:
            arguments["x-dead-letter-exchange"] = exchange
        if key is not None:
            arguments["x-dead-letter-routing-key"] = key
        return self.vhost.declare_queue(
            name, durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=None
        )

    def exchange(self, name, type_="direct"):
        self.vhost.declare_exchange(
            name, type_, durable=False, auto_delete=False, internal=False, arguments={}
        )

    def bind(self, queue, exchange, key="", **arguments):
        self.vhost.bind_queue(queue, exchange, key, arguments, None)

    def die(self, name, reason=Reason.REJECTED, first=0, stop=None):
        """Every record of the queue's last batch dies. Returns the queues that got letters."""
        batch = self.stage.log(name).batches[-1]
        first, stop = first + batch.base_offset, stop or batch.stop_offset
        queue = self.stage.queue(name)
        found = self.dead_letter(queue, [BatchSlice(batch, first, stop)], reason)
        self.stage.run()
        return sorted(target.name for target in found)

    def letters(self, name):
        """(flags, exchange, key, properties, body) of what the queue's last batch holds."""
        batches = self.stage.log(name).batches
        return [letter(*record[1:]) for record in batches[-1].records()] if batches else []

    def one(self, name):
        (found,) = self.letters(name)
        return found


def letter(flags, _time, exchange, key, content_header, body):
    found = header.ContentHeader()
    found.unmarshal(content_header)
    properties = {n: v for n, v in found.properties if v not in (None, {}, "")}
    properties["headers"] = decode_table(headers_table(content_header))
    return SimpleNamespace(
        flags=flags, exchange=exchange, key=key, properties=properties,
        headers=properties["headers"], body=body, content_header=content_header,
    )  # fmt: skip


def content(body, **properties):
    return header.ContentHeader(0, len(body), commands.Basic.Properties(**properties)).marshal()


def publish(yard, name, body=b"body", key=None, exchange=b"", **properties):
    flags = RecordFlag.PERSISTENT if properties.get("delivery_mode") == 2 else 0
    flags |= RecordFlag.HAS_EXPIRATION if "expiration" in properties else 0
    flags |= RecordFlag.HAS_HEADERS if "headers" in properties else 0
    queue = yard.stage.queue(name)
    queue.builder.add(
        flags, yard.stage.now, exchange, key or name.encode(), content(body, **properties), body
    )
    queue.flush()


def entry(**fields):
    return {
        "count": 1,
        "reason": "rejected",
        "queue": "a",
        "time": 1_700_000_000,
        "exchange": "",
        "routing-keys": ["a"],
        **fields,
    }


@pytest.fixture
def yard():
    return Yard()


@pytest.mark.covers("B-150", "B-151", "B-152")
def test_a_rejected_message_reaches_the_exchange_with_its_history(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    publish(yard, "a", b"text", message_id="m", delivery_mode=2)
    assert yard.die("a") == ["b"]
    dead = yard.one("b")
    assert (dead.exchange, dead.key, dead.body) == (b"", b"b", b"text")
    assert dead.flags == RecordFlag.PERSISTENT | RecordFlag.HAS_HEADERS | RecordFlag.DEAD_LETTERED
    assert dead.properties["message_id"] == "m"
    assert dead.headers == {
        "x-death": [entry()],
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "a",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "a",
        "x-last-death-exchange": "",
    }


def test_its_own_headers_stay_with_their_types(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    own = encode_table({"flag": True, "n": 5})
    publish(yard, "a", headers={"short": 5})
    publish_header = with_properties(content(b"body"), table=own)
    yard.stage.queue("a").builder.add(RecordFlag.HAS_HEADERS, 0, b"", b"a", publish_header, b"body")
    yard.stage.queue("a").flush()
    yard.die("a")
    assert own[4:] in yard.one("b").content_header


@pytest.mark.covers("B-152", "B-154")
def test_the_expiration_is_taken_off_and_remembered(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    publish(yard, "a", expiration="60000", priority=3)
    yard.die("a", Reason.EXPIRED)
    dead = yard.one("b")
    assert "expiration" not in dead.properties
    assert not dead.flags & RecordFlag.HAS_EXPIRATION
    assert dead.headers["x-death"] == [entry(**{"original-expiration": "60000"}, reason="expired")]


@pytest.mark.covers("B-155")
def test_without_a_key_of_the_queues_its_own_keys_lead_on(yard):
    yard.exchange("dlx")
    yard.declare("a", "dlx")
    yard.declare("b")
    yard.declare("c")
    yard.bind("b", "dlx", "own")
    yard.bind("c", "dlx", "copy")
    publish(yard, "a", key=b"own", exchange=b"x", headers={"CC": ["copy", "own"]})
    assert yard.die("a") == ["b", "c"]
    dead = yard.one("b")
    assert (dead.exchange, dead.key) == (b"dlx", b"own")
    assert dead.headers["CC"] == ["copy", "own"]
    assert dead.headers["x-death"][0]["routing-keys"] == ["own", "copy", "own"]
    assert dead.headers["x-death"][0]["exchange"] == "x"


@pytest.mark.covers("B-155")
def test_blind_keys_are_keys_of_its_own_that_nobody_is_told(yard):
    yard.exchange("dlx")
    yard.declare("a", "dlx")
    yard.declare("b", "")
    yard.bind("b", "dlx", "blind")
    publish(yard, "a", headers={"BCC": ["blind", "b"], "mine": "stays"})
    assert yard.die("a") == ["b"]
    assert yard.one("b").headers["x-death"][0]["routing-keys"] == ["a"]
    assert yard.die("b") == ["a", "b"]


@pytest.mark.covers("B-155")
def test_a_key_of_the_queues_removes_the_copies(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    publish(yard, "a", headers={"CC": ["copy"], "BCC": ["blind"], "mine": "stays"})
    assert yard.die("a") == ["b"]
    dead = yard.one("b")
    assert "CC" not in dead.headers
    assert "BCC" not in dead.headers
    assert dead.headers["mine"] == "stays"
    assert dead.headers["x-death"][0]["routing-keys"] == ["a", "copy"]


@pytest.mark.covers("B-157")
def test_a_clients_own_history_is_none(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    publish(yard, "a", headers={"x-death": [entry(count=7)], "x-first-death-queue": "forged"})
    yard.die("a")
    headers = yard.one("b").headers
    assert headers["x-death"] == [entry()]
    assert headers["x-first-death-queue"] == "a"


@pytest.mark.covers("B-158")
def test_a_missing_exchange_drops_silently(yard):
    yard.declare("a", "missing", "b")
    yard.declare("b")
    publish(yard, "a")
    assert yard.die("a") == []
    assert yard.letters("b") == []


def test_without_an_exchange_nothing_is_kept(yard):
    yard.declare("a")
    publish(yard, "a")
    assert yard.die("a") == []


def test_a_headers_exchange_sees_the_headers_of_each(yard):
    yard.exchange("dlx", "headers")
    yard.declare("a", "dlx")
    yard.declare("b")
    yard.declare("c")
    yard.bind("b", "dlx", to="b")
    yard.bind("c", "dlx", to="c")
    for to in ("b", "c", "nobody"):
        publish(yard, "a", to.encode(), headers={"to": to})
        yard.die("a")
    assert yard.one("b").body == b"b"
    assert yard.one("c").body == b"c"


@pytest.mark.covers("B-156")
def test_a_message_does_not_go_round_by_itself(yard):
    yard.declare("a", "", "a")
    publish(yard, "a")
    assert yard.die("a", Reason.EXPIRED) == []
    assert yard.die("a", Reason.MAX_LENGTH) == []
    assert yard.die("a", Reason.REJECTED) == ["a"]


@pytest.mark.covers("B-156")
def test_a_longer_way_round_ends_where_it_began(yard):
    yard.declare("a", "", "b")
    yard.declare("b", "", "a")
    publish(yard, "a")
    assert yard.die("a", Reason.EXPIRED) == ["b"]
    assert yard.die("b", Reason.EXPIRED) == []
    assert yard.die("b", Reason.REJECTED) == ["a"]
    assert yard.die("a", Reason.EXPIRED) == ["b"]


def test_many_kinds_of_records_share_a_call(yard):
    yard.exchange("dlx", "fanout")
    yard.declare("a", "dlx")
    yard.declare("b")
    yard.bind("b", "dlx")
    builder = yard.stage.queue("a").builder
    for number in range(3 * TEMPLATES_MAX):
        key = b"%d" % (number // 2)
        builder.add(0, 0, b"x", key, content(b"%d" % number), b"%d" % number)
    yard.stage.queue("a").flush()
    yard.die("a", first=1)
    dead = yard.letters("b")
    assert [found.body for found in dead] == [b"%d" % n for n in range(1, 3 * TEMPLATES_MAX)]
    assert all(
        found.key == b"%d" % (n // 2) == found.headers["x-death"][0]["routing-keys"][0].encode()
        for n, found in enumerate(dead, 1)
    )


def test_headers_that_nobody_can_read_are_replaced(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    broken = with_properties(content(b"body"), table=b"\0\0\0\3\1k?")
    yard.stage.queue("a").builder.add(RecordFlag.HAS_HEADERS, 0, b"", b"a", broken, b"body")
    yard.stage.queue("a").flush()
    yard.die("a")
    assert yard.one("b").headers["x-death"] == [entry()]


def test_a_content_header_of_nonsense_is_replaced(yard):
    yard.declare("a", "", "b")
    yard.declare("b")
    yard.stage.queue("a").builder.add(0, 0, b"", b"a", b"short", b"body")
    yard.stage.queue("a").flush()
    yard.die("a")
    dead = yard.one("b")
    assert dead.body == b"body"
    assert dead.properties == {"headers": dead.headers}


def test_a_key_too_long_for_the_wire_is_cut_between_characters(yard):
    yard.exchange("dlx", "fanout")
    yard.declare("a", "dlx", "é" * 200)
    yard.declare("b")
    yard.bind("b", "dlx")
    publish(yard, "a")
    yard.die("a")
    assert yard.one("b").key.decode() == "é" * 127


# -- random histories, against a model

reasons = st.sampled_from(list(Reason))
deaths = st.lists(st.tuples(reasons, st.sampled_from(QUEUES)), min_size=1, max_size=8)
own_headers = st.dictionaries(
    st.sampled_from(["mine", "CC", "x-mine"]),
    st.lists(st.sampled_from(["k1", "k2"]), max_size=2),
    max_size=3,
)


class Model:
    """One message and its history, as RabbitMQ documents them."""

    def __init__(self, queue, headers, expiration):
        self.headers, self.expiration = dict(headers), expiration
        self.exchange, self.keys = "x", ["k", *headers.get("CC", [])]
        self.deaths, self.first = [], None
        self.at = queue

    def die(self, reason, target, now):
        """Whether the message gets to `target`, whose key the queue's own dead-letter key is."""
        same = [d for d in self.deaths if (d["queue"], d["reason"]) == (self.at, reason)]
        dead = same[0] if same else {
            "count": 0, "reason": reason, "queue": self.at, "time": now,
            "exchange": self.exchange, "routing-keys": self.keys,
            **({"original-expiration": self.expiration} if self.expiration else {}),
        }  # fmt: skip
        dead["count"] += 1
        self.deaths = [dead, *(d for d in self.deaths if d is not dead)]
        last = {"reason": reason, "queue": self.at, "exchange": self.exchange}
        self.first = self.first or last
        self.headers.pop("CC", None)
        self.headers |= {"x-death": self.deaths}
        self.headers |= {f"x-first-death-{name}": value for name, value in self.first.items()}
        self.headers |= {f"x-last-death-{name}": value for name, value in last.items()}
        since = []
        for d in self.deaths:
            since.append(d["reason"])
            if d["queue"] == target:
                break
        else:
            since = ["rejected"]
        self.at, self.exchange, self.keys, self.expiration = target, "", [target], None
        return "rejected" in since


@pytest.mark.covers("B-151", "B-153")
@given(deaths, own_headers, st.sampled_from([None, "1", "60000"]))
def test_random_histories_are_those_of_the_model(steps, headers, expiration):
    yard = Yard()
    for name in QUEUES:
        yard.declare(name)
    model = Model("a", headers, expiration)
    properties = {"headers": headers} if headers else {}
    properties |= {"expiration": expiration} if expiration else {}
    publish(yard, "a", key=b"k", exchange=b"x", **properties)
    for reason, target in steps:
        here = yard.stage.queue(model.at)
        here.settings = resolve_settings(
            here.definition, {"dead-letter-exchange": "", "dead-letter-routing-key": target}
        )
        yard.stage.now += 1000
        source = model.at
        if not model.die(str(reason), target, yard.stage.now // 1000):
            assert yard.die(source, reason) == []
            return
        assert yard.die(source, reason) == [target]
        dead = yard.one(target)
        assert (dead.exchange, dead.key, dead.headers) == (b"", target.encode(), model.headers)
        assert "expiration" not in dead.properties


def test_an_exchange_that_remembers_gets_whole_letters(yard):
    yard.exchange("x", "x-recent-history")
    yard.declare("a", "x")
    for number in range(3):
        publish(yard, "a", b"body %d" % number, message_id=f"m{number}")
        assert yard.die("a") == []
    yard.declare("late")
    yard.bind("late", "x")
    yard.stage.run()
    letters = yard.letters("late")
    assert [(dead.exchange, dead.key, dead.body) for dead in letters] == [
        (b"x", b"a", b"body %d" % number) for number in range(3)
    ]
    assert [dead.properties["message_id"] for dead in letters] == ["m0", "m1", "m2"]
    assert letters[0].headers["x-first-death-queue"] == "a"


def test_each_letter_goes_where_its_own_properties_lead_it(yard):
    yard.vhost.declare_exchange(
        "x",
        "x-consistent-hash",
        durable=False,
        auto_delete=False,
        internal=False,
        arguments={"hash-property": "message_id"},
    )
    yard.declare("a", "x")
    for name in ("b", "c"):
        yard.declare(name)
        yard.bind(name, "x", "1")
    queue = yard.stage.queue("a")
    for number in range(40):
        body = content(b"", message_id=f"m{number}")
        queue.builder.add(0, yard.stage.now, b"", b"a", body, b"")
    queue.flush()
    assert yard.die("a") == ["b", "c"]
    counts = [len(yard.letters(name)) for name in ("b", "c")]
    assert sum(counts) == 40
    assert min(counts) > 5


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_may_stand_in_a_table(fields, is_letter):
    yard = Yard()
    yard.declare("a", "", "b")
    yard.declare("b")
    table = len(fields).to_bytes(4, "big") + fields
    flags = RecordFlag.HAS_HEADERS | (RecordFlag.DEAD_LETTERED if is_letter else 0)
    header = with_properties(content(b"body", message_id="m"), table=table)
    yard.stage.queue("a").builder.add(flags, 0, b"", b"a", header, b"body")
    yard.stage.queue("a").flush()
    assert yard.die("a") == ["b"]
    ((*_, dead_header, body),) = yard.stage.log("b").batches[-1].records()
    assert body == b"body"
    assert b"x-death" in headers_table(dead_header)
