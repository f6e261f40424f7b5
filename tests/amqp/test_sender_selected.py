"""CC and BCC in the headers of a message."""

import pytest
from pamqp import commands, header

from leveret.amqp.direct_reply import ADDRESS_PREFIX
from leveret.core.topology.graph import KEYS_MAX
from tests.support.client import Client, message
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    client = Client(stage).open()
    for name in ("one", "two", "three"):
        client.declare(name)
    return client


def headers_in(client, queue):
    """The headers of a queue's only message."""
    client.send(commands.Basic.Get(queue=queue, no_ack=True))
    (content_header,) = (
        value for _, value in client.received() if isinstance(value, header.ContentHeader)
    )
    assert client.count(queue) == 0
    return content_header.properties.headers


@pytest.mark.covers("B-106")
def test_copies_go_to_all_keys_and_tell_of_the_open_ones_only(client):
    headers = {"CC": ["two"], "x": "y", "BCC": ["three", "two", "one"]}
    client.publish("one", b"m", headers=headers, message_id="m")
    for queue in ("one", "two", "three"):
        assert headers_in(client, queue) == {"CC": ["two"], "x": "y"}


@pytest.mark.covers("B-106")
def test_what_is_no_string_counts_for_nothing(client):
    client.publish("nowhere", b"m", headers={"CC": ["two", 3, None, ["one"]]})
    assert client.count("two") == 1
    assert client.count("one") == 0


def test_confirms_wait_for_all_copies(client):
    assert client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"
    client.publish("one", b"a", b"b", headers={"BCC": ["two"]})
    assert client.methods()[-1][:2] == ("Basic.Ack", 2)


def test_a_transaction_holds_copies_back(client):
    assert client.call(commands.Tx.Select()).name == "Tx.SelectOk"
    client.publish("one", b"m", headers={"CC": ["two"]})
    assert client.count("two") == 0
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"
    assert client.count("one") == client.count("two") == 1


def test_copies_follow_bindings_by_headers(client):
    exchange = commands.Exchange.Declare(exchange="x", exchange_type="headers")
    assert client.call(exchange).name == "Exchange.DeclareOk"
    bind = commands.Queue.Bind(queue="one", exchange="x", arguments={"a": "b"})
    assert client.call(bind).name == "Queue.BindOk"
    client.publish("", b"m", exchange="x", headers={"CC": ["k"], "a": "b"})
    assert client.count("one") == 1


@pytest.mark.covers("B-213")
@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"CC": "k"}, '"CC",longstr'),
        ({"BCC": True}, '"BCC",bool'),
        ({"BCC": {"a": 1}}, '"BCC",table'),
        ({"CC": None}, '"CC",void'),
        ({"BCC": 1.5, "CC": ["k"]}, '"BCC",float'),
    ],
)
def test_another_type_closes_the_channel(client, headers, told):
    client.publish("one", b"m", headers=headers)
    text = f"PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,{told}}}"
    assert client.methods() == [("Channel.Close", 406, text, 60, 40)]


def test_further_keys_keep_a_message_from_the_alternate(client):
    arguments = {"alternate-exchange": "rest"}
    client.call(commands.Exchange.Declare(exchange="rest", exchange_type="fanout"))
    client.call(commands.Queue.Bind(queue="three", exchange="rest"))
    client.call(commands.Exchange.Declare(exchange="x", arguments=arguments))
    client.call(commands.Queue.Bind(queue="two", exchange="x", routing_key="k"))
    client.publish("nobody", b"m", exchange="x", headers={"CC": ["k"]})
    assert client.count("two") == 1
    assert client.count("three") == 0
    client.publish("nobody", b"m", exchange="x", headers={"CC": ["no"]})
    assert client.count("three") == 1


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash", "x-consistent-hash"])
def test_where_one_queue_gets_a_message_further_keys_make_it_no_more(client, kind):
    client.call(commands.Exchange.Declare(exchange="x", exchange_type=kind))
    for queue in ("one", "two", "three"):
        client.call(commands.Queue.Bind(queue=queue, exchange="x", routing_key="1"))
    client.publish("k", *[b"m"] * 20, exchange="x", headers={"CC": ["a", "b", "c", "d"]})
    assert sum(client.count(queue) for queue in ("one", "two", "three")) == 20


def test_an_exchange_keeps_a_message_once_whatever_its_keys(client):
    client.call(commands.Exchange.Declare(exchange="x", exchange_type="x-recent-history"))
    client.publish("k", b"m", exchange="x", headers={"CC": ["a", "b"]})
    client.call(commands.Queue.Bind(queue="one", exchange="x"))
    assert client.count("one") == 1


def test_headers_that_make_no_sense_select_nothing(stage, client):
    whole = message("one", b"m", headers={"CC": ["two"], "z": "x"})
    client.feed(whole.replace(b"\x01zS", b"\x01z?").replace(b"\x02CCA", b"\x02CC?"))
    assert client.count("one") == 1
    assert client.count("two") == 0


@pytest.mark.covers("B-106", "B-155")
def test_blind_keys_lead_a_dead_letter_too(client):
    client.declare("dying", arguments={"x-dead-letter-exchange": "amq.direct"})
    bind = commands.Queue.Bind(queue="one", exchange="amq.direct", routing_key="blind")
    assert client.call(bind).name == "Queue.BindOk"
    client.publish("dying", b"m", headers={"BCC": ["blind"], "x": "y"})
    client.send(commands.Basic.Get(queue="dying"), commands.Basic.Reject(1, requeue=False))
    (shown,) = (v for _, v in client.received() if isinstance(v, header.ContentHeader))
    assert shown.properties.headers == {"x": "y"}
    told = headers_in(client, "one")
    assert told["x-death"][0]["routing-keys"] == ["dying"]
    assert "BCC" not in told


def test_blind_keys_are_not_shown_to_consumers(client):
    client.send(commands.Basic.Consume(queue="one", consumer_tag="c"))
    client.publish("one", b"x" * 200_000, headers={"BCC": ["two"], "x": "y"}, app_id="a")
    (shown,) = (v for _, v in client.received() if isinstance(v, header.ContentHeader))
    assert (shown.properties.headers, shown.properties.app_id) == ({"x": "y"}, "a")
    assert shown.body_size == 200_000


def test_addresses_of_replies_count_as_keys(client):
    """Each is compared with the others and looked up, like a key."""
    keys = [f"{ADDRESS_PREFIX}{number}" for number in range(KEYS_MAX)]
    client.publish("one", b"m", headers={"CC": keys})
    ((name, code, text, *_),) = client.methods()
    assert (name, code) == ("Channel.Close", 406)
    assert f"at most {KEYS_MAX} routing keys" in text
