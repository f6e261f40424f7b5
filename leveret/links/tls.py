"""TLS contexts of links: both sides show a certificate of the cluster's authority."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.errors import LeveretError
from leveret.ports.file_changes import FileChanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["LinkCertificateError", "LinkCertificates", "LinkTlsFiles"]

logger = logging.getLogger(__name__)


class LinkCertificateError(LeveretError):
    """Files from which no TLS context can be made; the text names them."""


@dataclass(frozen=True, slots=True)
class LinkTlsFiles:
    """Files of a node: certificate with key, and the authority that signs those of all nodes.

    With `checks_host_names` the certificate of a node that is dialed must name the host by which it
    is dialed. Without, any certificate of the authority is one of a node: it should sign no others.
    """

    certificate: Path
    key: Path
    authority: Path
    checks_host_names: bool = True


class LinkCertificates:
    """TLS contexts of a node, rebuilt when their files have changed.

    Where the new files cannot be used, or are only half replaced, the old contexts stay. `clock`
    gives seconds from some fixed moment.
    """

    def __init__(self, files: LinkTlsFiles, clock: Callable[[], float]) -> None:
        """Raises LinkCertificateError where the files cannot be used."""
        self._files = files
        self._changes = FileChanges((files.certificate, files.key, files.authority), clock)
        self._dialing, self._accepting = _contexts(files)

    def dialing(self) -> ssl.SSLContext:
        """Return the context of a connection that this node dials."""
        self._check()
        return self._dialing

    def accepting(self) -> ssl.SSLContext:
        """Return the context of a connection from another node."""
        self._check()
        return self._accepting

    def _check(self) -> None:
        if not self._changes.is_due():
            return
        try:
            self._dialing, self._accepting = _contexts(self._files)
        except LinkCertificateError as error:
            logger.error("the TLS files changed and the old ones are kept: %s", error)  # noqa: TRY400
            return  # to be tried again: key and certificate may not change at the same moment
        self._changes.accept()
        logger.info("the TLS files of links changed and were read again")


def _contexts(files: LinkTlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    dialing = _context(files, ssl.PROTOCOL_TLS_CLIENT)
    dialing.check_hostname = files.checks_host_names
    accepting = _context(files, ssl.PROTOCOL_TLS_SERVER)
    accepting.options |= ssl.OP_NO_RENEGOTIATION  # a way to make a server work for nothing
    return dialing, accepting


def _context(files: LinkTlsFiles, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
        context.load_verify_locations(files.authority)
    except (OSError, ValueError) as error:
        raise LinkCertificateError(
            f"cannot use the certificate {files.certificate} with the key {files.key}, and the "
            f"authority {files.authority}: {error}"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context
