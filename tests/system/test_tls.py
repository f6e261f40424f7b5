"""A node over TLS and behind a proxy: real sockets, real certificates, somebody else's client."""

import contextlib
import datetime as dt
import gc
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ProbableAuthenticationError

from leveret.amqp.sockets import REFUSALS_MAX
from leveret.cli.certs import make_certificates
from tests.process import node_addresses, running_node
from tests.support.waiting import LIMIT_SECONDS

# pika leaves the socket of a failed handshake to the garbage collector; see `collected`.
pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

REFUSED = (AMQPConnectionError, OSError)  # pika lets errors of TLS through
LARGE_BODY = os.urandom(3_000_000)
USER = "guest"


def make(directory, host="localhost"):
    now = dt.datetime.now(dt.UTC)
    make_certificates(directory, [host, "localhost"], USER, now, overwrite=True)
    return directory


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def collected():
    yield
    gc.collect()


@pytest.fixture
def settings(monkeypatch, certificates):
    """Set settings by the environment; TLS is on unless told otherwise."""

    def set_all(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"LEVERET_{name.upper()}", str(value))

    set_all(
        tls_certificate_file=certificates / "server.pem",
        tls_key_file=certificates / "server-key.pem",
        tls_ca_file=certificates / "ca.pem",
        tls_port=0,
        tls_verify_peer="optional",
        ssl_cert_login_from="common_name",
        login_delay_seconds=0,
    )
    return set_all


def client_context(certificates, *, certificate=True):
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    if certificate:
        context.load_cert_chain(certificates / "client.pem", certificates / "client-key.pem")
    return context


def port_of(address):
    return int(address.rpartition(":")[2])


def connect(port, context=None, credentials=None):
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            host="127.0.0.1",
            port=port,
            ssl_options=pika.SSLOptions(context, "localhost") if context else None,
            credentials=credentials or pika.PlainCredentials("guest", "guest"),
            socket_timeout=LIMIT_SECONDS,
            blocked_connection_timeout=LIMIT_SECONDS,
        )
    )


def round_trip(connection, *bodies):
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body)
    got = [channel.basic_get(queue, auto_ack=True)[2] for _ in bodies]
    assert got == list(bodies)


def visit(connection, *bodies):
    round_trip(connection, *bodies)
    connection.close()  # a client that does not answer its close holds the node's stop up


@pytest.mark.covers("B-002", "B-014")
@pytest.mark.smoke
def test_a_client_is_known_by_its_certificate(tmp_path, certificates, settings):
    settings(plain_listener="false")
    with node_addresses(tmp_path) as addresses:
        assert "amqp" not in addresses
        port = port_of(addresses["amqps"])
        external = pika.credentials.ExternalCredentials()
        connection = connect(port, client_context(certificates), external)
        round_trip(connection, b"", b"small", LARGE_BODY, LARGE_BODY[::-1])
        connection.close()
        # Without a certificate the mechanism is not even offered.
        with pytest.raises(REFUSED):
            connect(port, client_context(certificates, certificate=False), external)
        visit(connect(port, client_context(certificates, certificate=False)), b"password")


def test_a_name_that_is_nobodys_is_refused(tmp_path, certificates, settings, capfd):
    settings(ssl_cert_login_from="distinguished_name")  # CN=guest, which is no user
    with node_addresses(tmp_path) as addresses, pytest.raises(ProbableAuthenticationError):
        connect(
            port_of(addresses["amqps"]),
            client_context(certificates),
            pika.credentials.ExternalCredentials(),
        )
    assert "user 'CN=guest' by EXTERNAL: unknown user" in capfd.readouterr().err


def test_both_sides_insist_on_their_authority(tmp_path, certificates, settings):
    strangers = make(tmp_path / "strangers")
    settings(tls_verify_peer="required", tls_version_min="1.3")
    with node_addresses(tmp_path / "data") as addresses:
        port = port_of(addresses["amqps"])
        with pytest.raises(REFUSED):  # a server the client does not trust
            connect(port, client_context(strangers))
        stranger = client_context(certificates, certificate=False)
        with pytest.raises(REFUSED):  # a client without a certificate
            connect(port, stranger)
        stranger.load_cert_chain(strangers / "client.pem", strangers / "client-key.pem")
        with pytest.raises(REFUSED):  # a client the server does not trust
            connect(port, stranger)
        old = client_context(certificates)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(REFUSED):
            connect(port, old)
        visit(connect(port, client_context(certificates)), b"trusted")


def closes(peer):
    """Whether the node ends this socket, whatever it says before."""
    peer.settimeout(LIMIT_SECONDS)
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(65_536):
            pass
    return True


def test_garbage_silence_and_broken_lines_cost_nobody_else_anything(
    tmp_path, certificates, settings, capfd
):
    settings(handshake_timeout_seconds=1)
    with node_addresses(tmp_path) as addresses:
        address = ("127.0.0.1", port_of(addresses["amqps"]))
        steady = connect(address[1], client_context(certificates))
        silent = [socket.create_connection(address) for _ in range(20)]
        for garbage in (
            b"AMQP\0\0\x09\x01",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\xff\xff" * 99,
        ):
            with socket.create_connection(address) as peer:
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
                assert closes(peer)
        for _ in range(3):  # lines that break in the middle of a message
            broken = connect(address[1], client_context(certificates))
            raw = broken._impl._transport._sock
            raw.send(b"\x01\0\x01\0\0\0\xff half a frame")
            raw.unwrap = None
            raw.shutdown(socket.SHUT_RDWR)
        round_trip(steady, LARGE_BODY)
        for peer in silent:
            assert closes(peer)
            peer.close()
        visit(steady, b"still here")
        with client_context(certificates).wrap_socket(
            socket.create_connection(address), server_hostname="localhost"
        ) as secured:
            secured.sendall(b"AMQP\0\0\x09\x01")
            assert closes(secured)  # the AMQP handshake has its own limit
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("proxied", ["true", "false"])
def test_who_is_still_arriving_counts_and_does_not_keep_the_node(
    tmp_path, certificates, settings, proxied
):
    settings(connections_max=3, proxy_protocol=proxied, handshake_timeout_seconds=60)
    with node_addresses(tmp_path) as addresses:
        address = ("127.0.0.1", port_of(addresses["amqps"]))
        silent = [socket.create_connection(address) for _ in range(3 + REFUSALS_MAX)]
        time.sleep(0.5)
        with socket.create_connection(address) as refused:
            assert closes(refused)
    assert all(closes(peer) for peer in silent)  # the node has stopped meanwhile
    for peer in silent:
        peer.close()


def test_a_slow_reader_over_tls_holds_nobody_up(tmp_path, certificates, settings):
    with node_addresses(tmp_path) as addresses:
        port = port_of(addresses["amqps"])
        slow = connect(port, client_context(certificates))
        channel = slow.channel()
        queue = channel.queue_declare("slow", exclusive=True).method.queue
        taken = []
        channel.basic_consume(queue, lambda *got: taken.append(got[3]), auto_ack=True)
        for _ in range(10):
            channel.basic_publish("", queue, LARGE_BODY)  # 30 MB, and nothing is read meanwhile
        visit(connect(port, client_context(certificates)), b"quick")
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(taken) < 10 and time.monotonic() < deadline:
            slow.process_data_events(0.1)
        assert taken == [LARGE_BODY] * 10
        slow.close()


def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path, certificates, settings, monkeypatch
):
    live = tmp_path / "live"
    shutil.copytree(certificates, live)
    settings(
        tls_certificate_file=live / "server.pem",
        tls_key_file=live / "server-key.pem",
        tls_ca_file=live / "ca.pem",
    )
    with node_addresses(tmp_path / "data") as addresses:
        port = port_of(addresses["amqps"])
        steady = connect(port, client_context(certificates))
        make(live)
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                renewed = connect(port, client_context(live))
            except REFUSED:
                assert time.monotonic() < deadline
                time.sleep(0.5)
            else:
                break
        visit(renewed, b"renewed")
        visit(steady, b"from before")


# -- behind a proxy


class Proxy:
    """Forwards one connection after the other to `target`, each behind `header`."""

    def __init__(self, target, header):
        self.target, self.header = target, header
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.server.close()

    def serve(self):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            while True:
                inner = stack.enter_context(self.server.accept()[0])
                address = ("127.0.0.1", self.target)
                outer = stack.enter_context(socket.create_connection(address))
                outer.sendall(self.header)
                for ends in ((inner, outer), (outer, inner)):
                    piping = threading.Thread(target=self.pipe, args=ends)
                    piping.start()
                    stack.callback(piping.join)

    @staticmethod
    def pipe(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


V1_LOCAL = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 5672\r\n"
V1_FAR = b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 5672\r\n"
V2_FAR = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x9c\x40\x16\x28"
V2_HEALTH = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"


@pytest.mark.covers("B-013", "B-014")
@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_the_peer_is_whom_the_proxy_names(tmp_path, certificates, settings, scheme):
    settings(proxy_protocol="true", handshake_timeout_seconds=2)
    context = client_context(certificates) if scheme == "amqps" else None
    with node_addresses(tmp_path) as addresses:
        port = port_of(addresses[scheme])
        for header in (V1_LOCAL, V2_HEALTH):
            with Proxy(port, header) as proxy:
                visit(connect(proxy.port, context), b"near", LARGE_BODY)
        for header in (V1_FAR, V2_FAR):  # guest comes from this machine only
            with Proxy(port, header) as proxy, pytest.raises(ProbableAuthenticationError):
                connect(proxy.port, context)
        with pytest.raises(REFUSED):
            connect(port, context)  # without a header
        with socket.create_connection(("127.0.0.1", port)) as silent:
            assert closes(silent)


def test_a_whole_conversation_in_the_same_packet_as_the_header(tmp_path, settings):
    settings(proxy_protocol="true")
    with (
        running_node(tmp_path) as port,
        socket.create_connection(("127.0.0.1", port)) as peer,
    ):
        peer.sendall(V2_HEALTH + b"AMQP\0\0\x09\x01")
        peer.settimeout(LIMIT_SECONDS)
        assert peer.recv(7)[:1] == b"\x01"  # connection.start


# -- what cannot start


def refused_start(tmp_path, *arguments):
    command = [sys.executable, "-m", "leveret", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--http-port", "0", "--prometheus-port", "-1", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    *before, line = ended.stderr.strip().splitlines()
    assert all(" INFO leveret.node: " in each for each in before), ended.stderr
    return line


def test_an_occupied_port_is_one_clear_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refused_start(tmp_path, "--port", str(port))
    assert f"cannot listen for amqp on 127.0.0.1:{port}: Address already in use; free" in line


def test_an_address_that_is_not_here_is_one_clear_line(tmp_path):
    line = refused_start(tmp_path, "--port", "0", "--host", "192.0.2.1")
    assert "192.0.2.1" in line


@pytest.mark.smoke
def test_unusable_certificates_are_one_clear_line(tmp_path, certificates, settings):
    settings(tls_key_file=certificates / "client-key.pem")
    line = refused_start(tmp_path, "--port", "0")
    assert "cannot use the TLS certificate" in line
    assert "client-key.pem" in line
