"""The channels of a connection end together, each for itself."""

import pytest

from tests.support.client import Client
from tests.support.stage import Stage


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def client(stage):
    return Client(stage).open()


def test_a_channel_that_cannot_end_keeps_no_other_from_ending(stage, client, monkeypatch):
    client.open_channel(2)
    client.declare("q")
    client.consume("q", channel=2)

    def broken():
        yield
        raise ZeroDivisionError

    monkeypatch.setattr(client.connection.channels.by_number[1], "releasing", broken)
    client.transport.lose()
    ((subject, error),) = stage.reported
    assert subject is client.connection
    assert isinstance(error, ZeroDivisionError)
    stage.reported.clear()
    assert client.connection.channel_count == 0
    assert stage.queue("q").consumer_count == 0
