import datetime as dt
import ssl

import pytest

from leveret.cli.certs import make_certificates
from leveret.config import Configuration, ConfigurationError, load
from leveret.node.servers import https_context
from leveret.ports.file_changes import FILES_CHECK_SECONDS


def made(directory):
    make_certificates(directory, ["a"], "u", dt.datetime.now(dt.UTC), overwrite=True)
    return {
        "tls_certificate_file": directory / "server.pem",
        "tls_key_file": directory / "server-key.pem",
    }


def shown(context):
    """The certificate that a client is shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def test_https_shows_the_certificate_of_amqp_and_follows_its_renewal(tmp_path):
    now = [0.0]
    context = https_context(Configuration(https_port=0, **made(tmp_path)), lambda: now[0])
    first = shown(context)
    assert shown(context) == first
    made(tmp_path)
    now[0] += FILES_CHECK_SECONDS
    assert shown(context) not in {first, None}


def test_https_port_without_a_certificate_is_refused():
    with pytest.raises(ConfigurationError, match="'https_port' needs both"):
        load(overrides={"https_port": 15671}, environ={})
