"""Certificates of nodes, made for a test."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from leveret.links.tls import LinkTlsFiles

if TYPE_CHECKING:
    from pathlib import Path

DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority whose files are below `directory`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(directory)[-60:])])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = (
            self._builder(self._name, self._key, dt.datetime.now(dt.UTC) + DAY)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / "ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def node(
        self, name: str, host: str = "localhost", *, valid: dt.timedelta = DAY
    ) -> LinkTlsFiles:
        """Make the files of a node, whose certificate names a host."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        certificate = (
            self._builder(subject, key, dt.datetime.now(dt.UTC) + valid)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = LinkTlsFiles(
            self.directory / f"{name}.pem", self.directory / f"{name}-key.pem", self.file
        )
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _builder(self, subject, key, until):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 10 * DAY)
            .not_valid_after(until)
        )
