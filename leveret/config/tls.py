"""Settings: TLS of the AMQP port. `leveret certs` makes certificates to try it with."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from leveret.config.settings import PORT_MAX, Settings

__all__ = ["CertificateLogin", "TlsSettings", "VerifyPeer"]


class VerifyPeer(StrEnum):
    """Whether a TLS listener asks for a client's certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class CertificateLogin(StrEnum):
    """The part of a client's certificate that names the user."""

    COMMON_NAME = "common_name"
    DISTINGUISHED_NAME = "distinguished_name"


class TlsSettings(Settings):
    """The listener with a certificate, and whether there is one without."""

    tls_certificate_file: Path | None = Field(
        None,
        description="PEM file with the server's certificate and its chain; opens the TLS listener. "
        "Read again within ten seconds of a change.",
    )
    tls_key_file: Path | None = Field(
        None, description="PEM file with the certificate's private key, not encrypted."
    )
    tls_ca_file: Path | None = Field(
        None, description="PEM file with the authorities whose client certificates are accepted."
    )
    tls_port: int = Field(
        5671,
        ge=0,
        le=PORT_MAX,
        description="AMQP port over TLS, IANA's number; 0 takes a free one. Used when there is a "
        "certificate.",
    )
    tls_verify_peer: VerifyPeer = Field(
        VerifyPeer.NONE,
        description="Client certificates: `none` asks for none, `optional` verifies one that is "
        "offered, `required` refuses clients without one. Needs `tls_ca_file`.",
    )
    tls_version_min: Literal["1.2", "1.3"] = Field(
        "1.2", description="Oldest TLS version: versions before 1.2 are deprecated (RFC 8996)."
    )
    tls_ciphers: str = Field(
        "",
        description="Ciphers of TLS 1.2 in OpenSSL's notation; empty leaves the choice to Python "
        "and OpenSSL, which are updated when one is broken.",
    )
    ssl_cert_login_from: CertificateLogin = Field(
        CertificateLogin.DISTINGUISHED_NAME,
        description="Field of a client certificate that names the user (mechanism EXTERNAL), "
        "under RabbitMQ's name and with its default: `distinguished_name` or `common_name`.",
    )
    plain_listener: bool = Field(True, description="Whether to listen without TLS too, on `port`.")

    @field_validator("tls_key_file")
    @classmethod
    def _belongs_to_a_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if (value is None) != (info.data.get("tls_certificate_file") is None):
            raise ValueError("comes together with 'tls_certificate_file'")
        return value

    @field_validator("tls_verify_peer")
    @classmethod
    def _has_an_authority(cls, value: VerifyPeer, info: ValidationInfo) -> VerifyPeer:
        if value is not VerifyPeer.NONE and info.data.get("tls_ca_file") is None:
            raise ValueError("needs 'tls_ca_file'")
        return value

    @field_validator("plain_listener")
    @classmethod
    def _listens_somehow(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("tls_certificate_file") is None:
            raise ValueError("can be false only where 'tls_certificate_file' opens the other one")
        return value
