"""The client's requests to a server that notes them, and may hang up behind an answer."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from leveret.range_reader import RangeReader, ReadRefusedError

TARGET = "/api/leveret/consumer-groups/%2F/page%20views/spark%2F1/offsets"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((self.path, json.loads(body)))
        status, told = self.server.answers.pop(0)
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = self.server.hangs_up  # without having said so

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.answers, server.hangs_up = [], [], False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def reader(server):
    with RangeReader(f"http://127.0.0.1:{server.server_port}", "app", "secret") as reader:
        yield reader


def rows(**after):
    found = [{"partition": int(key[1:]), "before": 0, "after": after[key]} for key in after]
    return 200, found


@pytest.mark.parametrize("hangs_up", [False, True])
def test_offsets_are_committed_again_where_the_server_has_hung_up(server, reader, hangs_up):
    server.hangs_up = hangs_up
    server.answers = [rows(p0=7, p3=2), rows(p0=9), rows()]
    assert reader.commit_offsets("page views", "spark/1", {0: 7, 3: 1}) == {0: 7, 3: 2}
    assert reader.commit_offsets("page views", "spark/1", {0: 9}) == {0: 9}
    assert reader.commit_offsets("page views", "spark/1", {}) == {}
    bodies = [{"offsets": {"0": 7, "3": 1}}, {"offsets": {"0": 9}}, {"offsets": {}}]
    assert server.asked == [(TARGET, body) for body in bodies]


def test_a_refused_commit_says_why(server, reader):
    server.answers = [(400, {"error": "bad_request", "reason": "it is in use"}), rows(p0=1)]
    with pytest.raises(ReadRefusedError) as caught:
        reader.commit_offsets("page views", "spark/1", {0: 1})
    assert (caught.value.status, caught.value.reason) == (400, "it is in use")
    assert reader.commit_offsets("page views", "spark/1", {0: 1}) == {0: 1}
