import datetime as dt
import ssl

import pytest

from leveret.cli.certs import make_certificates
from leveret.mgmt_ui.hosts import KnownHosts, is_known_host
from tests.process import node_addresses
from tests.support.http import HttpClient


@pytest.mark.parametrize(
    "host",
    ["localhost:15672", "LOCALHOST.", "127.0.0.1", "[::1]:15672", "192.0.2.7:80", "mq.example", ""],
)
def test_addresses_and_names_that_were_configured_are_known(host):
    assert is_known_host(host, ("MQ.example",))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:1"])
def test_other_names_are_not(host):
    assert not is_known_host(host, ("mq.example",))
    assert is_known_host(host, ("*",))


async def answered(server, host, allowed=()):
    """Whether a request reaches the application."""
    reached, sent = [], []

    async def app(*_):
        reached.append(True)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "server": server, "headers": [(b"host", host.encode())]}
    await KnownHosts(app, allowed)(scope, None, send)
    assert bool(reached) != bool(sent)
    assert not sent or sent[0]["status"] == 403
    return bool(reached)


async def test_stranger_name_is_refused_on_loopback():
    assert not await answered(("127.0.0.1", 15672), "evil.example")
    assert not await answered(("::1", 15672), "evil.example")
    assert await answered(("127.0.0.1", 15672), "localhost:15672")


async def test_name_of_a_service_is_answered_elsewhere_unless_names_are_set():
    assert await answered(("10.0.0.7", 15672), "leveret.queues.svc:15672")
    assert not await answered(("10.0.0.7", 15672), "evil.example", ("mq.example",))
    assert await answered(("10.0.0.7", 15672), "mq.example", ("mq.example",))


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_host_of_amqp_does_not_open_management(tmp_path):
    with node_addresses(tmp_path, "--host", "0.0.0.0", http=True) as addresses:
        assert addresses["amqp"].startswith("0.0.0.0:")
        assert addresses["http"].startswith("127.0.0.1:")
        assert "prometheus" not in addresses  # nor does that of management open metrics


@pytest.mark.usefixtures("processes")
@pytest.mark.smoke
def test_management_over_tls_follows_its_certificate(tmp_path, monkeypatch):
    make_certificates(tmp_path, ["127.0.0.1"], "guest", dt.datetime.now(dt.UTC))
    monkeypatch.setenv("LEVERET_HTTPS_PORT", "0")
    monkeypatch.setenv("LEVERET_HTTPS_CERTIFICATE_FILE", str(tmp_path / "server.pem"))
    monkeypatch.setenv("LEVERET_HTTPS_KEY_FILE", str(tmp_path / "server-key.pem"))
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    with node_addresses(tmp_path / "data") as addresses:
        for _ in range(2):
            with HttpClient(f"https://{addresses['https']}", verify=trusted) as client:
                assert client.get("/api/whoami").status_code == 200
