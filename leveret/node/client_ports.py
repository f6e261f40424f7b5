"""Ports of clients on a node that does not lead, and what is told there if no leader takes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leveret.amqp.refusing import refusal_of_clients
from leveret.cluster.client_proxy import ClientPort
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from leveret.config import Configuration

__all__ = ["client_ports"]

NO_LEADER = "no node of the cluster leads: try again in some seconds"
NOT_TAKEN = "a node leads, but did not take this client in time: try again in some seconds"


def client_ports(configuration: Configuration) -> list[ClientPort]:
    """Return the ports of clients, as a node that does not lead opens them."""
    amqp = [
        refusal_of_clients(configuration, ConnectionClosingError(320, reason))
        for reason in (NO_LEADER, NOT_TAKEN)
    ]
    web = [refusal_in_http(reason) for reason in (NO_LEADER, NOT_TAKEN)]
    ports = []
    if configuration.plain_listener:
        ports.append(ClientPort("amqp", configuration.host, configuration.port, *amqp))
    if configuration.tls_certificate_file is not None:
        ports.append(ClientPort("amqp/ssl", configuration.host, configuration.tls_port, b"", b""))
    if configuration.http_port >= 0:
        host, port = configuration.http_host, configuration.http_port
        ports.append(ClientPort("http", host, port, *web))
    if configuration.https_port >= 0:
        host, port = configuration.https_host or configuration.host, configuration.https_port
        ports.append(ClientPort("https", host, port, b"", b""))
    return ports


def refusal_in_http(reason: str) -> bytes:
    """Return the answer to a request of a client that cannot be served now."""
    body = json.dumps({"error": "service_unavailable", "reason": reason}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
