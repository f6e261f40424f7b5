"""Direct reply-to: addresses that only lead to whoever asked, for as long as they ask."""

import pytest
from pamqp import commands, header

from leveret.amqp import direct_reply
from leveret.amqp.direct_reply import REPLY_NAME, is_reply_address, is_volatile, new_address
from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def requester(stage):
    client = Client(stage).open()
    client.declare("rpc")
    client.consume(REPLY_NAME, "replies", no_ack=True)
    return client


@pytest.fixture
def responder(stage):
    return Client(stage).open()


def ask(requester, responder, **properties):
    """The properties of a question as it arrives."""
    requester.publish("rpc", b"question", reply_to=REPLY_NAME, **properties)
    responder.send(commands.Basic.Get(queue="rpc", no_ack=True))
    (content_header,) = (
        value for _, value in responder.received() if isinstance(value, header.ContentHeader)
    )
    return content_header.properties


def address_of(requester, responder):
    return ask(requester, responder).reply_to


@pytest.mark.covers("B-110")
def test_a_question_carries_the_address_of_its_channel(requester, responder):
    question = ask(requester, responder, message_id="m", correlation_id="1", expiration="9999")
    assert is_reply_address(question.reply_to.encode())
    assert (question.message_id, question.correlation_id) == ("m", "1")
    assert question.expiration == "9999"


def test_other_reply_tos_stay_as_they_are(requester, responder):
    requester.publish("rpc", b"question", reply_to=f"{REPLY_NAME}.mine")
    responder.send(commands.Basic.Get(queue="rpc", no_ack=True))
    assert responder.received()[1][1].properties.reply_to == f"{REPLY_NAME}.mine"


@pytest.mark.covers("B-110")
def test_answers_reach_the_channel_in_order(requester, responder):
    address = address_of(requester, responder)
    responder.publish(address, b"one", b"two", b"3" * 200_000)
    assert [(each.tag, each.body) for each in requester.deliveries()] == [
        (1, b"one"),
        (2, b"two"),
        (3, b"3" * 200_000),
    ]
    assert responder.received() == []


def test_an_answer_may_come_in_pieces(stage, requester):
    responder = Client(stage, step=7).open()
    responder.publish(address_of(requester, responder), b"answer")
    assert [each.body for each in requester.deliveries()] == [b"answer"]


@pytest.mark.covers("B-110")
def test_an_answer_counts_as_routed_and_is_confirmed(requester, responder):
    address = address_of(requester, responder)
    assert responder.call(commands.Confirm.Select()).name == "Confirm.SelectOk"
    responder.publish(address, b"answer", mandatory=True)
    assert responder.methods() == [("Basic.Ack", 1, False)]
    assert [each.body for each in requester.deliveries()] == [b"answer"]


@pytest.mark.covers("B-110")
def test_nobody_gets_an_answer_that_nobody_awaits(requester, responder):
    address = address_of(requester, responder)
    assert requester.call(commands.Basic.Cancel("replies")).name == "Basic.CancelOk"
    responder.publish(address, b"late", mandatory=True)
    requester.consume(REPLY_NAME, "replies", no_ack=True)
    responder.publish(address, b"of an earlier life")
    assert requester.received() == responder.received() == []


@pytest.mark.parametrize("ending", ["channel", "connection"])
def test_an_address_ends_with_its_channel(stage, requester, responder, ending):
    address = address_of(requester, responder)
    if ending == "channel":
        assert requester.call(commands.Channel.Close(200, "", 0, 0)).name == "Channel.CloseOk"
    else:
        requester.transport.lose()
    assert stage.broker.reply_consumers == {}
    responder.publish(address, b"late")
    assert responder.received() == []


@pytest.mark.covers("B-215")
def test_questions_without_a_consumer_of_answers_are_refused(responder):
    responder.publish("rpc", b"question", reply_to=REPLY_NAME)
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    assert responder.methods() == [("Channel.Close", 406, text, 60, 40)]


def test_a_client_that_does_not_read_loses_answers(monkeypatch, stage, requester, responder):
    monkeypatch.setattr(direct_reply, "ANSWERS_BYTES_MAX", 1000)
    address = address_of(requester, responder)
    requester.touched = True  # and so nothing leaves
    responder.publish(address, *[b"x" * 400] * 10)
    assert requester.connection.outbox.size < 2000


def test_a_copy_reaches_queue_and_requester(stage, requester, responder):
    address = address_of(requester, responder)
    responder.publish("rpc", b"both", headers={"BCC": [address]})
    assert [each.body for each in requester.deliveries()] == [b"both"]
    assert stage.queue("rpc").message_count == 1


@pytest.mark.covers("B-233")
def test_addresses_are_volatile_names():
    address = new_address("node" * 100, "s" * 22)
    assert is_reply_address(address)
    assert len(address) <= 255
    assert is_volatile(address.decode())
    assert is_volatile(REPLY_NAME)
    assert not is_volatile("amq.rabbitmq.reply-to-me")
    assert new_address("one", "s") != new_address("two", "s")
