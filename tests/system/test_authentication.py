"""Users that somebody else knows, and guessing: a whole node, real logins."""

import contextlib
import http.server
import json
import socket
import threading
import time
import urllib.parse

import jwt
import pika
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pamqp import commands, frame
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.process import node_addresses, running_node
from tests.support.waiting import LIMIT_SECONDS
from tests.system.test_tls import refused_start

pytestmark = pytest.mark.usefixtures("processes")

KEY = ec.generate_private_key(ec.SECP256R1())


@contextlib.contextmanager
def serving(answer):
    """An HTTP server whose pages are `answer(path, parameters)`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            page = answer(url.path, dict(urllib.parse.parse_qsl(url.query))).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def settings(monkeypatch):
    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"LEVERET_{name.upper()}", str(value))

    set_all(login_delay_seconds=0)
    return set_all


def connect(port, user="guest", password="guest"):
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            port,
            credentials=pika.PlainCredentials(user, password),
            socket_timeout=LIMIT_SECONDS,
            blocked_connection_timeout=LIMIT_SECONDS,
        )
    )


def token(seconds=60, **changes):
    claims = {
        "sub": "ann",
        "aud": "broker",
        "exp": int(time.time()) + seconds,
        "scope": "broker.configure:%2F/ann-* broker.write:%2F/* broker.read:%2F/ann-*",
        **changes,
    }
    return jwt.encode(claims, KEY, "ES256", {"kid": "1"})


@pytest.fixture
def provider(settings):
    """A provider of tokens; the node asks it for its keys."""
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "1"}
    with serving(lambda _path, _parameters: json.dumps({"keys": [public]})) as url:
        settings(
            auth_backends="oauth2,internal",
            auth_oauth2_resource_server_id="broker",
            auth_oauth2_jwks_url=f"{url}/keys",
            auth_oauth2_leeway_seconds=0,
        )
        yield url


@pytest.mark.covers("B-408")
@pytest.mark.smoke
def test_a_token_logs_in_and_says_what_may_be_done(tmp_path, provider):
    with running_node(tmp_path) as port:
        connection = connect(port, "", token())
        channel = connection.channel()
        channel.queue_declare("ann-q")
        channel.basic_publish("", "ann-q", b"m")
        assert channel.basic_get("ann-q", auto_ack=True)[2] == b"m"
        with pytest.raises(ChannelClosedByBroker) as raised:
            channel.queue_declare("other")
        assert raised.value.reply_text == (
            "ACCESS_REFUSED - configure access to queue 'other' in vhost '/' refused for user 'ann'"
        )
        connection.close()
        connect(port).close()  # the node's own users are asked next
        for bad in (token(-5), token(aud="other"), token()[:-9], "wrong"):
            with pytest.raises(ProbableAuthenticationError):
                connect(port, "guest", bad)
        with pytest.raises(ProbableAccessDeniedError):
            connect(port, "", token(scope="broker.read:other/*"))


@pytest.mark.covers("B-011", "B-313", "B-316")
def test_a_token_is_refreshed_or_the_connection_ends(tmp_path, provider):
    with running_node(tmp_path) as port:
        refreshed, forgotten, wrong = (connect(port, "", token(3)) for _ in range(3))
        refreshed.update_secret(token(60), "soon over")
        with pytest.raises(ConnectionClosedByBroker) as raised:
            wrong.update_secret(token(60, sub="bob"), "soon over")
        assert raised.value.reply_code == 530
        assert raised.value.reply_text == (
            "NOT_ALLOWED - New secret was refused by one of the backends"
        )
        with pytest.raises(ConnectionClosedByBroker) as raised:
            forgotten.process_data_events(LIMIT_SECONDS)
        assert raised.value.reply_code == 320
        assert raised.value.reply_text == "CONNECTION_FORCED - credential expired"
        refreshed.channel().queue_declare("ann-q")
        refreshed.close()


@pytest.mark.covers("B-408")
@pytest.mark.smoke
def test_an_http_service_decides(tmp_path, settings):
    questions = []

    def answer(path, parameters):
        questions.append((path, parameters))
        if path == "/user":
            allowed = parameters == {"username": "ann", "password": "se&cret"}
        elif path == "/vhost":
            allowed = parameters["ip"] == "127.0.0.1"
        else:
            allowed = parameters["name"] in {"mine", "amq.default", "amq.topic"}
        return "allow monitoring" if allowed else "deny"

    with serving(answer) as url:
        settings(
            auth_backends="internal,http",
            auth_http_user_path=f"{url}/user",
            auth_http_vhost_path=f"{url}/vhost",
            auth_http_resource_path=f"{url}/resource",
            auth_http_topic_path=f"{url}/topic",
        )
        with running_node(tmp_path) as port:
            connection = connect(port, "ann", "se&cret")
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("mine")
            for number in range(100):
                channel.basic_publish("", "mine", str(number).encode())
            channel.queue_bind("mine", "amq.topic", "#")
            channel.basic_publish("amq.topic", "a.b", b"topic")
            got = [channel.basic_get("mine", auto_ack=True)[2] for _ in range(101)]
            assert got == [*(str(number).encode() for number in range(100)), b"topic"]
            with pytest.raises(ChannelClosedByBroker):
                channel.queue_declare("other")
            asked = [
                (parameters["permission"], parameters["name"])
                for path, parameters in questions
                if path == "/resource"
            ]
            assert len(asked) == len(set(asked))  # nothing was asked twice
            with pytest.raises(ProbableAuthenticationError):
                connect(port, "ann", "wrong")
            connect(port).close()
            connection.close()


def test_a_service_that_is_gone_lets_nobody_in(tmp_path, settings):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        settings(
            auth_backends="http",
            auth_http_user_path=path,
            auth_http_vhost_path=path,
            auth_http_resource_path=path,
            auth_http_timeout_seconds=0.5,
        )
        with running_node(tmp_path) as port, pytest.raises(ProbableAuthenticationError):
            connect(port)


def test_an_operators_anonymous_user(tmp_path, settings):
    settings(anonymous_login_user="guest")

    class Anonymous:
        def response_for(self, _start):
            return "ANONYMOUS", b""

        def erase_credentials(self):
            pass

    with node_addresses(tmp_path) as addresses:
        port = int(addresses["amqp"].rpartition(":")[2])
        pika.credentials.VALID_TYPES.append(Anonymous)
        try:
            parameters = pika.ConnectionParameters("127.0.0.1", port, credentials=Anonymous())
            with pika.BlockingConnection(parameters) as connection:
                assert connection.channel().queue_declare("q").method.queue == "q"
        finally:
            pika.credentials.VALID_TYPES.remove(Anonymous)


@pytest.mark.covers("B-007")
def test_guessing_keeps_nobody_else_waiting(tmp_path, settings):
    settings(login_delay_seconds=0.2, proxy_protocol="true")
    stop = threading.Event()

    def guess(port, number):
        while not stop.is_set():
            with contextlib.suppress(OSError), attempt(port, "192.0.2.1", f"guess{number}") as peer:
                while peer.recv(4096):
                    pass

    with running_node(tmp_path) as port:
        threads = [threading.Thread(target=guess, args=(port, number)) for number in range(100)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1)
            for number in range(5):
                with attempt(port, "127.0.0.1", "guest" if number else "wrong") as peer:
                    answered = read_until(peer, b"\0\x0a\0\x1e" if number else b"\0\x0a\0\x32")
                assert answered
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def attempt(port, host, password):
    """A login from a host, as a proxy would bring it."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS)
    header = f"PROXY TCP4 {host} 127.0.0.1 4000 5672\r\n".encode()
    capabilities = {"capabilities": {"authentication_failure_close": True}}
    start_ok = commands.Connection.StartOk(capabilities, "PLAIN", f"\0guest\0{password}", "en_US")
    peer.sendall(header + b"AMQP\0\0\x09\x01" + frame.marshal(start_ok, 0))
    return peer


def read_until(peer, method):
    received = b""
    while data := peer.recv(4096):
        received += data
        if method in received:
            return True
    return False


# -- what cannot start


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"auth_backends": "http"}, "needs 'auth_http_user_path'"),
        ({"auth_backends": "oauth2"}, "needs 'auth_oauth2_resource_server_id'"),
        (
            {"auth_backends": "oauth2", "auth_oauth2_resource_server_id": "b"},
            "needs one of 'auth_oauth2_jwks_url'",
        ),
        (
            {
                "auth_backends": "oauth2",
                "auth_oauth2_resource_server_id": "b",
                "auth_oauth2_hs256_key_file": "/dev/null",
            },
            "less than 32 bytes",
        ),
    ],
)
def test_a_source_without_what_it_needs_is_one_clear_line(tmp_path, settings, values, text):
    settings(**values)
    assert text in refused_start(tmp_path, "--port", "0")
