"""Files that the settings of a cluster name: secret, certificates, credentials of ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.config import ConfigurationError
from leveret.links.identity import ClusterSecret
from leveret.links.tls import LinkCertificates, LinkTlsFiles
from leveret.ports.secret_file import SECRET_FILE_BYTES_MAX, SecretFileError, read_secret_file
from leveret.zookeeper.settings import ZooKeeperSettings, ZooKeeperTls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from leveret.config import Configuration

__all__ = ["read_cluster_secret", "read_link_certificates", "zookeeper_settings"]


def read_cluster_secret(configuration: Configuration) -> ClusterSecret:
    """Return the secret that all nodes share. Raises ConfigurationError."""
    file = configuration.cluster_secret_file
    assert file is not None, "a cluster has one: see ClusterSettings"
    secret = _read(file, "the cluster's secret", "cluster_secret_file")
    try:
        return ClusterSecret(secret)
    except ValueError as error:
        raise ConfigurationError(
            f"{file}: {error}; `openssl rand -hex 32` makes one (setting 'cluster_secret_file')"
        ) from None


def read_link_certificates(
    configuration: Configuration, clock: Callable[[], float]
) -> LinkCertificates | None:
    """Return the TLS contexts of links, None if they are not encrypted.

    Raises LinkCertificateError.
    """
    certificate, key = configuration.link_certificate_file, configuration.link_key_file
    authority = configuration.link_ca_file
    if certificate is None or key is None or authority is None:
        return None
    checks_host_names = configuration.link_check_host_names
    return LinkCertificates(LinkTlsFiles(certificate, key, authority, checks_host_names), clock)


def zookeeper_settings(configuration: Configuration) -> ZooKeeperSettings:
    """Return how ZooKeeper is reached. Raises ConfigurationError."""
    user = password = ""
    if configuration.zookeeper_credentials_file is not None:
        user, password = _read_credentials(configuration.zookeeper_credentials_file)
    tls = None
    if configuration.zookeeper_tls:
        tls = ZooKeeperTls(
            configuration.zookeeper_ca_file,
            configuration.zookeeper_certificate_file,
            configuration.zookeeper_key_file,
        )
    return ZooKeeperSettings(
        configuration.cluster,
        user,
        password,
        tls,
        session_timeout_ms=configuration.zookeeper_session_timeout_ms,
        connect_timeout_ms=configuration.zookeeper_connect_timeout_ms,
    )


def _read_credentials(file: Path) -> tuple[str, str]:
    content = _read(file, "ZooKeeper's credentials", "zookeeper_credentials_file")
    user, _, password = content.decode("utf-8", "replace").partition(":")
    if not user or not password or "\n" in password:
        raise ConfigurationError(
            f"{file} holds no credentials: it has one line, user:password "
            "(setting 'zookeeper_credentials_file')"
        )
    return user, password


def _read(file: Path, what: str, setting: str) -> bytes:
    """Return the content of a file without white space around it."""
    try:
        content = read_secret_file(file, what)
    except SecretFileError as error:
        raise ConfigurationError(f"{error} (setting '{setting}')") from None
    if len(content) > SECRET_FILE_BYTES_MAX:
        raise ConfigurationError(
            f"{file} has more than {SECRET_FILE_BYTES_MAX} bytes: is it {what}? "
            f"(setting '{setting}')"
        )
    return content.strip()
