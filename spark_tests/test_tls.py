"""The broker over TLS: its certificate is checked, in the driver and in the workers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

from spark_tests.node import Node
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        [sys.executable, "-m", "leveret", "certs", str(directory)], check=True, capture_output=True
    )
    return directory


@pytest.fixture(scope="module")
def server(certificates, tmp_path_factory):
    """Start a node with a port for HTTPS; yield its URL."""
    port = free_port()
    settings = {
        "LEVERET_HTTPS_PORT": str(port),
        "LEVERET_HTTPS_CERTIFICATE_FILE": str(certificates / "server.pem"),
        "LEVERET_HTTPS_KEY_FILE": str(certificates / "server-key.pem"),
    }
    with Node(tmp_path_factory.mktemp("secure"), settings).running() as node:
        node.ask("PUT", "queues/%2F/secret", {"durable": True, "arguments": ARGUMENTS})
        yield f"https://localhost:{port}"


ARGUMENTS = {"x-queue-type": "stream"}


def test_tables_are_written_and_read(spark, server, certificates):
    options = {"servers": server, "tlsCaFile": str(certificates / "ca.pem")}
    table = spark.range(10).selectExpr("string(id) as value")
    table.write.format("leveret").options(**options, topic="secret").mode("append").save()
    found = spark.read.format("leveret").options(**options, subscribe="secret").load()
    assert sorted(row.value for row in found.select("value").collect()) == [
        b"%d" % number for number in range(10)
    ]


def test_an_unknown_authority_is_refused_at_once(spark, server):
    table = spark.read.format("leveret").options(servers=server, subscribe="secret")
    with pytest.raises(PySparkException, match="its certificate is refused"):
        table.load().count()
