"""Links over TLS: who has no certificate of the cluster's authority gets no further."""

import datetime as dt
import ssl
import time
from dataclasses import replace

import pytest
import uvloop

from leveret.links.errors import PeerUnavailableError
from leveret.links.tls import LinkCertificateError, LinkCertificates
from leveret.ports.file_changes import FILES_CHECK_SECONDS
from tests.links.certificates import Authority
from tests.links.nodes import BULK, ECHO, Node
from tests.support.waiting import eventually


@pytest.fixture(name="authority")
def _authority(tmp_path):
    return Authority(tmp_path / "ours")


def certificates(files, clock=time.monotonic):
    return LinkCertificates(files, clock)


async def test_links_are_encrypted(authority):
    tls = certificates(authority.node("one"))
    async with Node(1, tls=tls) as one, Node(2, tls=certificates(authority.node("two"))) as two:
        peer = one.dial(two, ("localhost", two.address[1]))
        assert bytes(await peer.request(ECHO, b"1", timeout_s=60)) == b"1"
        assert len(await peer.request(BULK, b"2000", timeout_s=60)) == 2_000_000


def test_the_loop_of_a_node_encrypts_as_well(authority):
    uvloop.run(test_links_are_encrypted(authority))


async def refused(dialing, accepting):
    async with Node(1, tls=dialing) as one, Node(2, tls=accepting) as two:
        one.links.set_address(2, "localhost", two.address[1])
        peer = one.links.peer(2)
        with pytest.raises(PeerUnavailableError):
            await peer.request(ECHO, b"1", timeout_s=60)
        await eventually(lambda: peer.counters.failures >= 2)
        assert not peer.is_connected
        assert not two.links.figures()


async def test_another_authority_is_refused(authority, tmp_path):
    other = Authority(tmp_path / "other")
    await refused(certificates(other.node("one")), certificates(authority.node("two")))


async def test_an_expired_certificate_is_refused(authority):
    expired = authority.node("old", valid=-dt.timedelta(days=1))
    good = certificates(authority.node("two"))
    await refused(certificates(expired), good)
    await refused(good, certificates(expired))


async def test_another_host_is_refused_unless_hosts_are_not_checked(authority):
    files = authority.node("two", "elsewhere")
    await refused(certificates(authority.node("one")), certificates(files))
    lenient = certificates(replace(authority.node("one"), checks_host_names=False))
    async with Node(1, tls=lenient) as one, Node(2, tls=certificates(files)) as two:
        await one.dial(two).request(ECHO, b"", timeout_s=60)


async def test_a_side_without_certificate_is_refused(authority):
    class Bare(LinkCertificates):
        def dialing(self):
            context = ssl.create_default_context(cafile=authority.file)
            context.check_hostname = False
            return context

    bare = Bare(authority.node("one"), time.monotonic)
    await refused(bare, certificates(authority.node("two")))


async def test_a_side_without_tls_is_refused(authority):
    await refused(None, certificates(authority.node("two")))
    await refused(certificates(authority.node("two")), None)


def test_versions_before_1_2_are_off(authority):
    tls = certificates(authority.node("one"))
    for context in (tls.dialing(), tls.accepting()):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_REQUIRED


def test_files_are_read_again(authority, caplog):
    now = 0.0
    files = authority.node("one")
    tls = certificates(files, lambda: now)
    first = tls.accepting()
    files.key.write_text("no key")
    now = FILES_CHECK_SECONDS
    assert tls.accepting() is first
    assert "the old ones are kept" in caplog.text
    authority.node("one")
    now *= 2
    assert tls.accepting() is not first
    now *= 2
    assert tls.dialing() is tls.dialing()


def test_files_that_cannot_be_used_are_named(authority):
    files = authority.node("one")
    files.key.unlink()
    with pytest.raises(LinkCertificateError, match="one-key"):
        certificates(files)
