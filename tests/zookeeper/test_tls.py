"""TLS to ZooKeeper, with a certificate of the node, and a host's name that is checked."""

import asyncio
import datetime as dt
import gc

import pytest

from leveret.cli.certs import make_certificates
from leveret.ports.coordination import (
    CoordinatorSettingsError,
    CoordinatorUnavailableError,
    KeyChange,
    NodeRegistration,
)
from leveret.zookeeper import ZooKeeperCoordinator, ZooKeeperSettings
from leveret.zookeeper.settings import ZooKeeperTls
from tests.support.ports import free_port
from tests.support.zookeeper import running_zookeeper


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)
    make_certificates(directory, ["localhost"], "node", now, overwrite=True)
    parts = ("server-key.pem", "server.pem")
    (directory / "keystore.pem").write_text(
        "".join((directory / name).read_text() for name in parts)
    )
    return directory


@pytest.fixture(scope="module")
def secure_port(certificates, tmp_path_factory):
    port = free_port()
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificates / "keystore.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": certificates / "ca.pem",
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server", **settings):
        yield port


async def open_node(address, tls):
    settings = ZooKeeperSettings(address, tls=tls, connect_timeout_ms=3000)
    registration = NodeRegistration(1, "host:1", "host:2", "directory")
    async with asyncio.TaskGroup() as group:
        coordinator = await ZooKeeperCoordinator.open(settings, registration, group.create_task)
        await coordinator.write([KeyChange("q/a", b"1")])
        await coordinator.close()


async def test_a_node_connects_over_tls(secure_port, certificates):
    tls = ZooKeeperTls(
        certificates / "ca.pem", certificates / "client.pem", certificates / "client-key.pem"
    )
    await open_node(f"localhost:{secure_port}/tls", tls)


@pytest.fixture
def collected():
    """Have the sockets of failed handshakes, which kazoo leaves to the collector, collected now."""
    yield
    gc.collect()


refused = pytest.mark.usefixtures("collected")
unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


async def refuse(address, tls, reason):
    with pytest.raises(ExceptionGroup) as caught:
        await open_node(address, tls)
    (error,) = caught.value.exceptions
    assert isinstance(error, CoordinatorUnavailableError)
    assert reason in str(error)


@refused
@unclosed
async def test_a_server_that_is_not_trusted_is_refused_with_the_reason(secure_port, certificates):
    client = certificates / "client.pem", certificates / "client-key.pem"
    await refuse(f"localhost:{secure_port}", ZooKeeperTls(None, *client), "verify failed")


@refused
@unclosed
async def test_a_server_of_another_name_is_refused(secure_port, certificates):
    client = certificates / "client.pem", certificates / "client-key.pem"
    tls = ZooKeeperTls(certificates / "ca.pem", *client)
    await refuse(f"127.1:{secure_port}", tls, "verify failed")


def test_files_are_checked(tmp_path, certificates):
    with pytest.raises(CoordinatorSettingsError, match="both a certificate and its key"):
        ZooKeeperTls(certificate_file=certificates / "client.pem").check()
    with pytest.raises(CoordinatorSettingsError, match="is missing"):
        ZooKeeperTls(ca_file=tmp_path / "none").check()
