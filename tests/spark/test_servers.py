"""Refusals by the broker, as users of the data source are told them."""

from __future__ import annotations

import socket
import threading

import pytest

from leveret.range_reader import LeaseName
from leveret.spark.connection_options import read_connection
from leveret.spark.errors import (
    AccessRefusedError,
    BrokerUnreachableError,
    SourceError,
    TopicMissingError,
    WrongCredentialsError,
)
from leveret.spark.option_reader import OptionReader
from leveret.spark.read_options import MessageFilters
from leveret.spark.servers import BrokerServers, PartName
from tests.support.http import HttpClient
from tests.support.node import node_in_thread


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Start a node with a topic, and a user who may read it and has no management tag."""
    directory = tmp_path_factory.mktemp("node")
    with node_in_thread(directory, http_port=0, login_delay_seconds=0) as node:
        with node.connected() as connection:
            arguments = {"x-queue-type": "stream", "x-partitions": 2}
            connection.channel().queue_declare("orders", durable=True, arguments=arguments)
        with HttpClient(node.addresses["http"]) as client:
            rights = {"configure": "", "write": "", "read": "orders"}
            user = {"password": "app", "tags": ""}
            assert client.put("/api/users/app", json=user).is_success
            assert client.put("/api/permissions/%2F/app", json=rights).is_success
        yield node


@pytest.fixture
def servers(node):
    """Return a function that makes a connection, by options, of one try for each request."""
    opened = []

    def servers(**options):
        given = {"servers": node.addresses["http"], "retryTimeout": "0s", **options}
        opened.append(BrokerServers(read_connection(OptionReader(given))))
        return opened[-1]

    yield servers
    for each in opened:
        each.close()


def test_a_missing_tag_is_told_as_such(servers):
    with pytest.raises(AccessRefusedError) as refused:
        servers(user="app", password="app").topic_names()
    assert not isinstance(refused.value, WrongCredentialsError)
    assert str(refused.value) == (
        "user 'app' may not read the list of topics in virtual host '/': Not management user"
    )


def test_a_missing_permission_is_told_as_such(servers):
    with pytest.raises(AccessRefusedError) as refused:
        servers(user="app", password="app").topic("other")
    assert str(refused.value) == (
        "user 'app' may not read topic 'other' in virtual host '/': "
        "read access to queue 'other' in vhost '/' refused for user 'app'"
    )


def test_a_wrong_password_is_told_as_such(servers):
    with pytest.raises(WrongCredentialsError, match="refuses user 'app': wrong user or password"):
        servers(user="app", password="wrong").topic("orders")


NO_VHOST = "there is no such virtual host: create it, or name another one"
NO_QUEUE = "there is no such queue or stream: declare it, or name another one"


@pytest.mark.parametrize(("vhost", "text"), [("elsewhere", NO_VHOST), ("/", NO_QUEUE)])
def test_what_is_not_there_to_be_read_is_told_in_a_sentence(servers, vhost, text):
    with pytest.raises(TopicMissingError) as refused:
        servers(vhost=vhost).topic("none")
    assert str(refused.value) == f"topic 'none' does not exist in virtual host '{vhost}': {text}"
    with pytest.raises(TopicMissingError) as refused:
        servers(vhost=vhost).lease(LeaseName("none", "job", 1), {})
    assert str(refused.value) == f"queue 'none' does not exist in virtual host '{vhost}': {text}"


def test_a_virtual_host_that_is_not_there_to_be_written_is_told_in_a_sentence(servers):
    there = servers(vhost="elsewhere")
    told = f"cannot be written in virtual host 'elsewhere': {NO_VHOST}"
    with pytest.raises(SourceError, match=f"^batch 7 of writer 'etl' {told}$"):
        there.commit("etl", 7, ["part"], mandatory=False)
    with pytest.raises(SourceError, match=f"^part p of batch 7 of writer 'etl' {told}$"):
        there.stage("etl", PartName(7, "p"), [b"chunk"])


def test_the_port_of_amqp_is_told_at_once(node, servers):
    with pytest.raises(BrokerUnreachableError) as told:
        servers(servers=f"127.0.0.1:{node.port}").topic("orders")
    assert str(told.value) == (
        f"topic 'orders' cannot be read: port {node.port} of 127.0.0.1 is for AMQP: write that of "
        "the management port, such as http://HOST:15672"
    )


def test_a_port_without_tls_is_told_at_once(node, servers):
    with pytest.raises(BrokerUnreachableError, match="has no TLS: write http://"):
        servers(servers=f"https://{node.addresses['http']}").topic("orders")


def test_a_port_that_closes_may_have_tls(servers):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def close_one():
            peer, _ = listening.accept()
            with peer:
                peer.recv(100_000)

        closing = threading.Thread(target=close_one)
        closing.start()
        with pytest.raises(BrokerUnreachableError, match="is it a port for https://"):
            servers(servers=f"127.0.0.1:{listening.getsockname()[1]}").topic("orders")
        closing.join(60)


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (MessageFilters(where="n >="), "400: filter: "),
        (MessageFilters(tags="a &&"), "400: tags: "),
    ],
)
def test_a_wrong_filter_is_told_with_the_broker_s_text(servers, filters, text):
    with pytest.raises(SourceError, match=f"topic 'orders' cannot be read: {text}"):
        servers().check_filters(("orders", 0, 0), filters)


def test_filters_are_parsed_whatever_is_gone_meanwhile(servers):
    """A partition that retention has shortened, or a topic that was deleted, is told by reads."""
    right = MessageFilters("a || b", "n > 1")
    for place in (("orders", 0, 0), ("orders", 0, 99), ("orders", 9, 0), ("other", 0, 0)):
        servers().check_filters(place, right)
