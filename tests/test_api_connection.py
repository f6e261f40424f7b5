"""The clients' connection: what is repeated, what is refused, and when it is closed."""

import json
import socket
import ssl
import threading
from contextlib import suppress

import pytest

from leveret.api_connection import ApiConnection, RequestRefusedError, WrongPortError


class Server(threading.Thread):
    """Answers one request for each text in `answers`; None closes the connection instead."""

    def __init__(self, *answers):
        super().__init__()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._answers = list(answers)
        self.requests = []
        self.connections = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def run(self):
        with self._socket:
            while self._answers:
                peer, _ = self._socket.accept()
                self.connections += 1
                with peer, peer.makefile("rb") as received, suppress(ConnectionError):
                    self._serve(peer, received)

    def _serve(self, peer, received):
        while self._answers and (line := received.readline()):
            headers = {}
            while (header := received.readline().strip()) != b"":
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            body = received.read(int(headers.get(b"content-length", 0)))
            if headers.get(b"transfer-encoding") == b"chunked":
                while size := int(received.readline(), 16):
                    body += received.read(size + 2)[:size]
                received.readline()
            answer = self._answers.pop(0)
            if answer is None:
                return
            self.requests.append((line.decode().split()[:2], headers, body))
            peer.sendall(answer.encode())


def answer(status, text, *headers):
    lines = [f"HTTP/1.1 {status} Reason", f"Content-Length: {len(text)}", *headers]
    return "\r\n".join([*lines, "", text])


@pytest.fixture
def serve():
    servers = []

    def begin(*answers):
        servers.append(Server(*answers))
        servers[-1].start()
        return servers[-1], ApiConnection(
            servers[-1].url, "me", "secret", refusal=RequestRefusedError, timeout_s=10
        )

    yield begin
    for server in servers:
        server.join(60)


def test_a_request_is_sent_as_json_by_its_user(serve):
    server, connection = serve(answer(200, '{"a": 1}'), answer(204, ""))
    assert connection.ask("PUT", "/x", {"b": 2}) == {"a": 1}
    assert connection.ask("DELETE", "/x") is None
    connection.close()
    (first, headers, body), (second, _, nothing) = server.requests
    assert (first, second) == (["PUT", "/x"], ["DELETE", "/x"])
    assert (json.loads(body), nothing) == ({"b": 2}, b"")
    assert headers[b"authorization"] == b"Basic bWU6c2VjcmV0"
    assert headers[b"content-type"] == b"application/json"
    assert server.connections == 1


def test_a_kept_connection_that_was_closed_is_opened_again(serve):
    server, connection = serve(answer(200, "1"), None, answer(200, "2"))
    assert (connection.ask("GET", "/1"), connection.ask("GET", "/2")) == (1, 2)
    connection.close()
    assert server.connections == 2


def test_a_new_connection_that_is_closed_is_an_error(serve):
    _, connection = serve(None)
    with pytest.raises(ConnectionError):
        connection.ask("GET", "/")


def test_a_refusal_has_the_answer_s_reason_and_details(serve):
    text = '{"reason": "too much", "first": 3}'
    server, connection = serve(answer(429, text, "Retry-After: 7"), answer(404, "[1]"))
    with pytest.raises(RequestRefusedError, match=r"^429: too much$") as refused:
        connection.ask("GET", "/")
    assert (refused.value.retry_after_s, refused.value.details["first"]) == (7, 3)
    with pytest.raises(RequestRefusedError, match=r"^404: Reason$") as refused:
        connection.ask("GET", "/")
    assert (refused.value.retry_after_s, refused.value.details) == (None, {})
    connection.close()
    assert server.connections == 1


def test_a_reason_in_one_word_becomes_a_sentence_and_stays_in_the_details(serve):
    text = '{"error": "not_found", "reason": "vhost_not_found"}'
    _, connection = serve(answer(404, text))
    with pytest.raises(
        RequestRefusedError, match=r"^404: there is no such virtual host: create"
    ) as refused:
        connection.ask("GET", "/")
    assert refused.value.details["reason"] == "vhost_not_found"
    connection.close()


def test_an_answer_that_is_not_read_to_its_end_closes_the_connection(serve):
    server, connection = serve(answer(200, "x" * 100_000), answer(200, "2"))
    with connection.answered("GET", "/1") as found:
        assert found.read(10) == b"x" * 10
    assert connection.ask("GET", "/2") == 2
    connection.close()
    assert server.connections == 2


def test_an_upload_is_sent_in_chunks_and_not_repeated(serve):
    server, connection = serve(answer(201, "{}"), None, answer(200, "3"))
    assert connection.upload("/x", [b"a", b"bc"], "text/plain") == {}
    with pytest.raises(ConnectionError):
        connection.upload("/x", [b"d"], "text/plain")
    assert connection.ask("GET", "/") == 3
    connection.close()
    assert server.requests[0][2] == b"abc"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("scheme", "told", "text"),
    [
        ("http", b"AMQP\x00\x00\x09\x01", "is for AMQP"),
        ("http", b"\x15\x03\x03\x00\x02\x02\x46", "has TLS"),
        ("https", b"AMQP\x00\x00\x09\x01", "has no TLS"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "has no TLS"),
    ],
)
def test_another_protocol_is_told(scheme, told, text):
    """A port for something else answers in its own way what it does not understand."""

    def serve():
        peer, _ = listening.accept()
        with peer, suppress(OSError):
            peer.recv(100_000)
            peer.sendall(told)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(100_000):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = threading.Thread(target=serve)
        server.start()
        connection = ApiConnection(
            f"{scheme}://127.0.0.1:{port}",
            *("me", "secret"),
            refusal=RequestRefusedError,
            context=ssl.create_default_context(),
            timeout_s=60,
        )
        with pytest.raises(WrongPortError, match=f"^port {port} of 127.0.0.1 {text}"):
            connection.ask("GET", "/")
        server.join(60)


@pytest.mark.parametrize("url", ["localhost:15672", "amqp://localhost", "http://"])
def test_another_url_is_refused(url):
    with pytest.raises(ValueError, match="no URL of a management port"):
        ApiConnection(url, "a", "b", refusal=RequestRefusedError)
