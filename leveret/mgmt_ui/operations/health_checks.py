"""Health checks that running and stopped nodes share: losses, certificates, passwords.

They wait for files and for password hashes: run them in worker threads where a node runs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address
from shlex import quote
from typing import TYPE_CHECKING, Final

from cryptography import x509

from leveret.core.access.passwords import verify_password
from leveret.ports.check_results import CheckResult, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from leveret.config import Configuration
    from leveret.ports.definitions import UserDefinition
    from leveret.ports.losses import Loss

__all__ = ["check_certificates", "check_losses", "check_passwords", "is_open", "open_hosts"]

CERTIFICATE_DAYS_MIN: Final = 30  # time to have a new one made without haste
CHECKED_USERS_MAX: Final = 50  # some 30 ms each


def is_open(configuration: Configuration) -> bool:
    """Whether other machines reach a port that accepts passwords."""
    return bool(open_hosts(configuration))


def open_hosts(configuration: Configuration) -> list[str]:
    """Return non-loopback addresses on which a port that accepts passwords listens."""
    hosts = [configuration.host]
    if configuration.http_port >= 0:
        hosts.append(configuration.http_host)
    if configuration.https_port >= 0:
        hosts.append(configuration.https_host or configuration.host)
    return [host for host in dict.fromkeys(hosts) if not _is_loopback(host)]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_losses(losses: Iterable[Loss]) -> Iterator[CheckResult]:
    """Report unacknowledged losses."""
    for loss in losses:
        yield CheckResult(
            f"loss.{loss.kind.value}",
            Severity.ERROR,
            loss.subject,
            loss.what,
            "it was kept safely and is gone: files were removed, changed or replaced by older ones",
            "restore it from a backup if there is one, and look why it happened; then "
            f"`leveret loss acknowledge {loss.number}`",
        )


def check_certificates(configuration: Configuration, now_ms: int) -> Iterator[CheckResult]:
    """Report certificates that have expired or soon will."""
    files = (
        configuration.tls_certificate_file,
        configuration.tls_ca_file,
        configuration.https_certificate_file,
    )
    for file in files:
        if file is not None:
            yield from _check_certificate(file, now_ms)


def _check_certificate(file: Path, now_ms: int) -> Iterator[CheckResult]:
    why = "clients refuse a certificate that is out of date, and cannot connect by TLS"
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
        ends = min(certificate.not_valid_after_utc for certificate in found)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        remedy = f"give the node's user the right to read it: `chmod u+r {quote(str(file))}`"
        yield CheckResult("tls.certificate", Severity.ERROR, str(file), what, why, remedy)
        return
    except ValueError as error:
        what, remedy = f"is no certificate: {error}", "name a PEM file"
        yield CheckResult("tls.certificate", Severity.ERROR, str(file), what, why, remedy)
        return
    days = (ends - datetime.fromtimestamp(now_ms / 1000, UTC)).days
    if days < CERTIFICATE_DAYS_MIN:
        severity = Severity.ERROR if days < 0 else Severity.WARNING
        what = f"ends on {ends:%Y-%m-%d}" if days >= 0 else f"has ended on {ends:%Y-%m-%d}"
        remedy = "replace the file; a running node reads it within ten seconds, without a restart"
        yield CheckResult("tls.certificate", severity, str(file), what, why, remedy)


def check_passwords(
    users: Iterable[UserDefinition], configuration: Configuration
) -> Iterator[CheckResult]:
    """Report users whose password is their name, if other machines can log in with it."""
    hosts = open_hosts(configuration)
    if not hosts:
        return
    for user in list(users)[:CHECKED_USERS_MAX]:
        if user.name not in configuration.loopback_users and verify_password(
            user.password_hash, user.name
        ):
            yield CheckResult(
                "user.password",
                Severity.ERROR,
                user.name,
                "has its own name as password and may connect from other machines",
                f"the node listens on {' and '.join(hosts)}: whoever tries that gets in",
                f"set another one: `leveret user set-password {quote(user.name)}`",
            )
