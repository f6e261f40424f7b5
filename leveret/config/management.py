"""Settings: listeners of the web UI, the HTTP API and the metrics."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from leveret.config.settings import PORT_MAX, Settings, split_names

__all__ = ["ManagementSettings"]


class ManagementSettings(Settings):
    """The web UI, the HTTP API and the metrics."""

    http_host: str = Field(
        "127.0.0.1",
        description="Address that `http_port` listens on. Loopback whatever `host` is, since "
        "passwords of administrators cross it unencrypted; `0.0.0.0` where the network is trusted "
        "or a proxy encrypts.",
    )
    http_port: int = Field(
        15672,
        ge=-1,
        le=PORT_MAX,
        description="Management port without TLS, where RabbitMQ's users and tools look; 0 takes a "
        "free one, -1 opens none.",
    )
    http_allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Host names accepted by the management port, beside `localhost` and "
        "addresses; `*` is every name. Always checked for connections from this machine, for "
        "others unless it is empty. It prevents DNS rebinding, where a page of a foreign domain "
        "that resolves to this machine reads the API.",
    )
    https_host: str = Field(
        "",
        description="Address that `https_port` listens on; empty is the same as `host`.",
    )
    https_port: int = Field(
        -1,
        ge=-1,
        le=PORT_MAX,
        description="Management port with TLS, RabbitMQ's is 15671; 0 takes a free one, -1 opens "
        "none.",
    )
    https_certificate_file: Path | None = Field(
        None,
        description="PEM file with the certificate of `https_port` and its chain; "
        "`tls_certificate_file` where it is not set. Read again within ten seconds of a change.",
    )
    https_key_file: Path | None = Field(
        None, description="PEM file with the private key of `https_certificate_file`."
    )
    prometheus_port: int = Field(
        15692,
        ge=-1,
        le=PORT_MAX,
        description="Port for Prometheus, where scrapers of RabbitMQ look; 0 takes a free one, -1 "
        "opens none. It requires no login.",
    )
    prometheus_host: str = Field(
        "127.0.0.1",
        description="Address that `prometheus_port` listens on. Loopback whatever `host` is, "
        "since metrics name queues and clients without a login; `0.0.0.0` for scrapers elsewhere.",
    )

    @field_validator("http_allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        return split_names(value)

    @field_validator("https_key_file")
    @classmethod
    def _belongs_to_the_https_certificate(
        cls, value: Path | None, info: ValidationInfo
    ) -> Path | None:
        if (value is None) != (info.data.get("https_certificate_file") is None):
            raise ValueError("comes together with 'https_certificate_file'")
        return value

    @field_validator("https_key_file")
    @classmethod
    def _serves_https_with_a_certificate(
        cls, value: Path | None, info: ValidationInfo
    ) -> Path | None:
        """Require a certificate; `tls_certificate_file` is validated before, see Configuration."""
        names = ("https_certificate_file", "tls_certificate_file")
        if info.data.get("https_port", -1) >= 0 and not any(map(info.data.get, names)):
            raise ValueError("is missing, with 'https_certificate_file': 'https_port' needs both")
        return value
