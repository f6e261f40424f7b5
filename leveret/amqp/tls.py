"""TLS: the listener's certificate, reloaded without a restart, and the user in a client's one.

Imported by the listener when a certificate is configured. Touches the files it is given.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID

from leveret.config import CertificateLogin, ConfigurationError, VerifyPeer
from leveret.ports.file_changes import FileChanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.config import TlsSettings

logger = logging.getLogger(__name__)

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
VERIFY_MODES = {
    VerifyPeer.NONE: ssl.CERT_NONE,
    VerifyPeer.OPTIONAL: ssl.CERT_OPTIONAL,
    VerifyPeer.REQUIRED: ssl.CERT_REQUIRED,
}


class TlsContexts:
    """TLS context for new connections, rebuilt when its files have changed.

    Where the new files cannot be used, or are only half replaced, the old context stays. `clock`
    gives seconds from some fixed moment.
    """

    def __init__(self, settings: TlsSettings, clock: Callable[[], float]) -> None:
        """Raises ConfigurationError where the files cannot be used."""
        self._settings = settings
        files = (
            settings.tls_certificate_file,
            settings.tls_key_file,
            settings.tls_ca_file,
        )
        self._changes = FileChanges([file for file in files if file is not None], clock)
        self._context = make_context(settings)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection; check the files for changes now and then."""
        if self._changes.is_due():
            self._renew()
        return self._context

    def login(self, connection: ssl.SSLObject) -> str:
        """Return the user that a client's verified certificate names; empty without one."""
        return certificate_login(connection, self._settings.ssl_cert_login_from)

    def _renew(self) -> None:
        try:
            self._context = make_context(self._settings)
        except ConfigurationError as error:
            logger.error("the TLS files changed and the old ones are kept: %s", error)  # noqa: TRY400
            return  # to be tried again: key and certificate may not change at the same moment
        self._changes.accept()
        logger.info("the TLS files changed and were read again")


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Build the server's TLS context. Raises ConfigurationError that names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.tls_version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a way to make a server work for nothing
    context.verify_mode = VERIFY_MODES[settings.tls_verify_peer]
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    assert certificate is not None, "the configuration asks for both"
    assert key is not None, "the configuration asks for both"
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot use the TLS certificate {certificate} with the key {key}: {error}"
        ) from None
    try:
        if settings.tls_ca_file is not None:
            context.load_verify_locations(settings.tls_ca_file)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot use the certificates in {settings.tls_ca_file}: {error}"
        ) from None
    try:
        if settings.tls_ciphers:
            context.set_ciphers(settings.tls_ciphers)
    except ssl.SSLError:
        raise ConfigurationError("setting 'tls_ciphers' names no cipher of TLS 1.2") from None
    return context


def certificate_login(connection: ssl.SSLObject, login_from: CertificateLogin) -> str:
    """Return the user that a client's verified certificate names; empty without one.

    OpenSSL ends the handshake on an unverified certificate.
    """
    encoded = connection.getpeercert(binary_form=True)
    if encoded is None:
        return ""
    try:
        subject = x509.load_der_x509_certificate(encoded).subject
    except ValueError:  # OpenSSL is more lenient than what reads it here
        return ""
    if login_from is CertificateLogin.DISTINGUISHED_NAME:
        return subject.rfc4514_string()
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return ",".join(str(name.value) for name in names)  # several, as RabbitMQ writes them
