"""Definitions of a file, imported when a node starts."""

import json
import re

import pytest
from pamqp import commands

from leveret.cli.session import Invocation, ask, begin
from leveret.core.access.passwords import hash_password_as_rabbitmq
from tests.harness.broker import BrokerProcess
from tests.harness.wire import Client, ClosedError
from tests.support.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.usefixtures("processes")

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
DOCUMENT = {
    "users": [{"name": "guest", "password_hash": hash_password_as_rabbitmq("guest", b"salt")}],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": "guest", "vhost": "/", **EVERYTHING}],
    "policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": 2}}],
    "queues": [{"name": "kept", "vhost": "/", "durable": True, "arguments": {}}],
}


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DOCUMENT))
    return file


@pytest.mark.covers("B-422")
@pytest.mark.smoke
def test_definitions_are_there_when_clients_come_and_messages_survive_the_next_import(
    tmp_path, file
):
    with BrokerProcess(tmp_path / "data", definitions=file) as broker:
        for _ in range(2):
            with Client(broker.port).confirming() as client:
                client.publish("kept", [b"one", b"two", b"three"])
                client.await_confirms(3)
                assert client.count("kept") == 2  # by the policy
            broker.stop()
            broker.start()


@pytest.mark.covers("B-422")
def test_who_may_enter_is_what_the_file_says(tmp_path, file):
    nobody = {**DOCUMENT, "users": [], "permissions": []}
    file.write_text(json.dumps(nobody))
    with BrokerProcess(tmp_path / "data", definitions=file) as broker:
        with pytest.raises(ClosedError, match="Login was refused"):
            Client(broker.port)
        begin(Invocation(broker.data))
        assert ask("user.list") == []


@pytest.mark.covers("B-422")
def test_a_node_does_not_start_with_a_bad_file(tmp_path, file):
    file.write_text(json.dumps({**DOCUMENT, "queues": [{"name": "q", "vhost": "none"}]}))
    broker = BrokerProcess(tmp_path / "data", definitions=file)
    broker.launch()
    assert broker.popen.wait(LIMIT_SECONDS) == 1
    assert f"{file}: queues[0]: no vhost 'none'" in broker.log()
    assert "ready amqp" not in broker.log()


@pytest.mark.covers("B-400", "B-422")
def test_a_running_node_takes_in_and_gives_out(tmp_path):
    with BrokerProcess(tmp_path / "data") as broker, Client(broker.port) as client:
        client.declare("mine")
        begin(Invocation(broker.data))
        exported = ask("definitions.export")
        assert [queue["name"] for queue in exported["queues"]] == ["mine"]
        changed = {**exported, "policies": DOCUMENT["policies"]}
        changed["queues"] = [*exported["queues"], {**DOCUMENT["queues"][0], "name": "new"}]
        summary = ask("definitions.import", document=changed)
        assert summary["imported"]["queues"] == 2
        client.confirming().publish("mine", [b"one", b"two", b"three"])
        client.await_confirms(3)
        assert client.count("mine") == 2
        assert client.call(1, commands.Queue.Declare(queue="new", passive=True)).queue == "new"


def test_what_has_no_effect_is_in_the_log_of_the_start(tmp_path, file):
    shovel = {"vhost": "/", "component": "shovel", "name": "move", "value": {}}
    jms = {"vhost": "/", "name": "jms", "type": "x-jms-topic"}
    file.write_text(json.dumps({**DOCUMENT, "parameters": [shovel], "exchanges": [jms]}))
    with BrokerProcess(tmp_path / "data", definitions=file) as broker:
        log = broker.log()
    assert re.search(rf"INFO leveret\S*: imported .* from {file}", log)
    assert f"WARNING leveret.mgmt_ui.operations.transfer: {file}: parameter of 'shovel'" in log
    assert "exchange of type 'x-jms-topic' has no effect" in log
    assert "{'" not in log
