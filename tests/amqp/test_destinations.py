"""Routing of messages that the reader cannot route by itself."""

from tests.support.client import Client, message
from tests.support.stage import Stage


def test_a_further_key_that_is_no_text_closes_the_connection():
    stage = Stage()
    client = Client(stage).open()
    client.feed(message("q", b"m", headers={"CC": ["KEY"]}).replace(b"KEY", b"\xff\xfe\xff"))
    assert client.methods(0) == [
        ("Connection.Close", 501, "FRAME_ERROR - cannot decode the routing key", 60, 40)
    ]
    assert stage.reported == []
