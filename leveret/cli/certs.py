"""`leveret certs`: test certificates for TLS: an authority, a server's and a client's."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.group import with_json
from leveret.cli.output import show_json
from leveret.cli.session import as_json, fail

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["certs", "make_certificates"]

# To try things with: long enough for a test environment, too short to be forgotten in production.
VALID_DAYS = 365
CLOCK_TOLERANCE = dt.timedelta(hours=1)  # machines disagree about now
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
NAMES = ("ca", "server", "client")
KEY_MODE = 0o600

HOW_TO = """\
Made {names} in {directory}, valid for {days} days.

The node:

    LEVERET_TLS_CERTIFICATE_FILE={directory}/server.pem \\
    LEVERET_TLS_KEY_FILE={directory}/server-key.pem \\
    LEVERET_TLS_CA_FILE={directory}/ca.pem \\
    LEVERET_TLS_VERIFY_PEER=optional \\
    LEVERET_SSL_CERT_LOGIN_FROM=common_name leveret serve

A client, logged in as {user} by its certificate (pika):

    import pika, ssl
    context = ssl.create_default_context(cafile="{directory}/ca.pem")
    context.load_cert_chain("{directory}/client.pem", "{directory}/client-key.pem")
    pika.BlockingConnection(pika.ConnectionParameters(
        host="{host}", port=5671, ssl_options=pika.SSLOptions(context, "{host}"),
        credentials=pika.credentials.ExternalCredentials()))

For tests only: whoever has ca-key.pem can be anybody to this node.
"""


@with_json
def certs(
    directory: Annotated[Path, typer.Argument(help="Directory to write to; made if missing.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server beside localhost; may be repeated."),
    ] = None,
    user: Annotated[str, typer.Option(help="User that the client's certificate names.")] = "guest",
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Make an authority, a server's and a client's certificate for tests."""
    hosts = [*(host or []), *LOOPBACK_HOSTS]
    now = dt.datetime.now(dt.UTC)
    try:
        make_certificates(directory, hosts, user, now, overwrite=force)
    except FileExistsError as error:
        fail(f"{error.filename} exists; --force overwrites it")
    except (OSError, ValueError) as error:
        fail(f"cannot make certificates in {directory}: {error}")
    if as_json():
        files = {
            f"{name}{key}": str(directory / f"{name}{suffix}.pem")
            for name in NAMES
            for key, suffix in (("_certificate_file", ""), ("_key_file", "-key"))
        }
        show_json({**files, "valid_days": VALID_DAYS, "user": user})
        return
    typer.echo(
        HOW_TO.format(
            names=", ".join(f"{name}.pem" for name in NAMES),
            directory=directory,
            days=VALID_DAYS,
            user=user,
            host=hosts[0],
        )
    )


def make_certificates(
    directory: Path,
    hosts: list[str],
    user: str,
    now: dt.datetime,
    *,
    overwrite: bool = False,
) -> None:
    """Write NAME.pem and NAME-key.pem for each of NAMES.

    Raises FileExistsError unless `overwrite`, before anything is written; ValueError for a name
    that cannot stand in a certificate.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    files = [directory / file for name in NAMES for file in (f"{name}.pem", f"{name}-key.pem")]
    for file in files:
        if file.exists() and not overwrite:
            raise FileExistsError(None, "exists", str(file))
    issuer = _Issuer("Leveret test authority", now)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    server = issuer.issue(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, names)
    client = issuer.issue(user, ExtendedKeyUsageOID.CLIENT_AUTH)
    directory.mkdir(parents=True, exist_ok=True)
    for name, (certificate, key) in zip(NAMES, (issuer.own, server, client), strict=True):
        _write(directory, name, certificate, key)


class _Issuer:
    """A certificate authority that lives as long as one command."""

    def __init__(self, name: str, now: dt.datetime) -> None:
        from cryptography import x509

        self._now = now
        self._key = _new_key()
        self._name = _subject(name)
        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), True)
        self.own = self._sign(builder), self._key

    def issue(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        """Return a certificate for one purpose, and its key."""
        from cryptography import x509

        key = _new_key()
        builder = self._builder(_subject(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, False)
        return self._sign(builder), key

    def _builder(self, subject: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        from cryptography import x509

        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_TOLERANCE)
            .not_valid_after(self._now + dt.timedelta(days=VALID_DAYS))
            .add_extension(identifier, False)
            .add_extension(authority, False)
        )

    def _sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> EllipticCurvePrivateKey:
    """Return a new P-256 key, which every client of the last ten years supports."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file = directory / f"{name}-key.pem"
    file.unlink(missing_ok=True)  # so that it has our mode from the first byte
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE), "wb") as stream:
        stream.write(private)
