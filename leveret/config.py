"""One frozen configuration: every setting and every limit, with its unit and its reason.

Sources, the stronger first: command line, environment (`LEVERET_FRAME_MAX=…`), TOML file, defaults.
`load_configuration` reads them all; `Configuration(...)` alone looks at nothing but its arguments.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from leveret import __version__
from leveret.errors import LeveretError
from leveret.ports import Durability

__all__ = [
    "AuthBackend",
    "CertificateLogin",
    "Configuration",
    "ConfigurationError",
    "VerifyPeer",
    "load_configuration",
]

KIB: Final = 1024
MIB: Final = 1024 * KIB
PORT_MAX: Final = 65_535
GIGA: Final = 1_000_000_000  # messages a second: beyond what any node takes


class VerifyPeer(StrEnum):
    """What a TLS listener asks of a client's certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class CertificateLogin(StrEnum):
    """Which part of a client's certificate names the user."""

    COMMON_NAME = "common_name"
    DISTINGUISHED_NAME = "distinguished_name"


class AuthBackend(StrEnum):
    """A source of users."""

    INTERNAL = "internal"
    OAUTH2 = "oauth2"
    HTTP = "http"


class ConfigurationError(LeveretError):
    """The operator wrote a setting that cannot be used; the text names it and its source."""


class Configuration(BaseSettings):
    """What an operator may decide about one node. Never changes while the node runs."""

    model_config = SettingsConfigDict(
        env_prefix="LEVERET_", frozen=True, extra="forbid", validate_default=True
    )

    # Where the node lives and listens.
    data_dir: Path = Field(
        Path("var"), description="Directory of everything that survives; one running node owns it."
    )
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on. Loopback, because guest/guest exists after the first "
        "start; `0.0.0.0` or `::` listens on every interface.",
    )
    port: int = Field(
        5672,
        ge=0,
        le=PORT_MAX,
        description="AMQP port, IANA's number; 0 takes a free one.",
    )
    http_port: int = Field(
        15672,
        ge=0,
        le=PORT_MAX,
        description="Management port, where RabbitMQ's users and tools look; 0 takes a free one.",
    )
    prometheus_port: int = Field(
        15692,
        ge=-1,
        le=PORT_MAX,
        description="Port for Prometheus, where scrapers of RabbitMQ look; 0 takes a free one, -1 "
        "opens none. Nobody is asked for a password there.",
    )
    prometheus_host: str = Field(
        "127.0.0.1",
        description="Address that `prometheus_port` listens on. Loopback whatever `host` is, since "
        "metrics name queues and clients to whoever asks; `0.0.0.0` for scrapers elsewhere.",
    )
    http_delete: bool = Field(
        True,
        description="Whether queues can be deleted by HTTP; `leveret queue delete` always can.",
    )
    definitions: Path | None = Field(
        None,
        description="File of definitions (`leveret definitions export`, or RabbitMQ's) that is "
        "imported at each start, before clients are let in; what is there already stays.",
    )
    durability: Durability = Field(
        Durability.FSYNC,
        description="What a confirmed persistent message survives: `fsync` the machine's death, "
        "`os` only the process's.",
    )

    # TLS. `leveret certs` makes certificates to try it with.
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
        "offered, `required` takes no client without one. Needs `tls_ca_file`.",
    )
    tls_version_min: Literal["1.2", "1.3"] = Field(
        "1.2", description="Oldest TLS version: what came before 1.2 is broken (RFC 8996)."
    )
    tls_ciphers: str = Field(
        "",
        description="Ciphers of TLS 1.2 in OpenSSL's notation; empty leaves the choice to Python "
        "and OpenSSL, which are mended when one breaks.",
    )
    ssl_cert_login_from: CertificateLogin = Field(
        CertificateLogin.DISTINGUISHED_NAME,
        description="What names the user of a client certificate (mechanism EXTERNAL), under "
        "RabbitMQ's name and with its default: `distinguished_name` or `common_name`.",
    )
    plain_listener: bool = Field(True, description="Whether to listen without TLS too, on `port`.")
    proxy_protocol: bool = Field(
        False,
        description="Whether every AMQP connection begins with a PROXY header, version 1 or 2, of "
        "a load balancer, which is believed: let nobody else reach the port.",
    )

    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines on standard error: `text`, or `json`: an object a line."
    )
    log_exchange: bool = Field(
        False,
        description="Whether log lines are also published to `amq.rabbitmq.log`, an exchange of "
        "vhost `/` with the level as the key. Off as in RabbitMQ: who may bind it reads the log.",
    )

    # What clients are told. kombu switches features on by `product` and `version`.
    product: str = Field("Leveret", description="Product name in connection.start.")
    version: str = Field(__version__, description="Version in connection.start.")
    cluster_name: str = Field("leveret", description="Cluster name in connection.start.")

    # The handshake.
    frame_max: int = Field(
        131_072,
        ge=4096,
        le=16 * MIB,
        description="Bytes of the largest frame offered in connection.tune: RabbitMQ's number. The "
        "specification demands that 4096 be accepted, and amqplib before 0.10.7 insists on it.",
    )
    channel_max: int = Field(
        2047,
        ge=1,
        le=65_535,
        description="Channels of one connection: RabbitMQ's number. A client with more leaks them.",
    )
    heartbeat_seconds: int = Field(
        60,
        ge=0,
        le=65_535,
        description="Offered heartbeat interval in seconds; 0 offers none. Short enough for the "
        "idle timeouts of common load balancers.",
    )
    handshake_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="Seconds from accept to connection.open: an unauthenticated socket must not "
        "hold a connection slot for long.",
    )
    login_delay_seconds: float = Field(
        3.0,
        ge=0,
        description="Seconds before a failed login is answered: slows the guessing of passwords.",
    )
    loopback_users: Annotated[tuple[str, ...], NoDecode] = Field(
        ("guest",),
        description="Users who may connect from this machine only, since their password is known "
        "to the world. Comma-separated in the environment.",
    )

    anonymous_login_user: str = Field(
        "",
        description="User that clients become who say nothing of themselves (mechanism ANONYMOUS); "
        "empty offers it to nobody. RabbitMQ 4 makes them guest: here nobody gets in unasked.",
    )

    # Where users come from.
    auth_backends: Annotated[tuple[AuthBackend, ...], NoDecode] = Field(
        (AuthBackend.INTERNAL,),
        min_length=1,
        description="Who is asked about a login, in this order: `internal` (users of this node), "
        "`oauth2` (tokens), `http` (a service). The first that accepts also says what the user may "
        "do. Comma-separated in the environment. `internal` takes its time to say no: put it last.",
    )
    auth_cache_ttl_seconds: float = Field(
        15.0,
        gt=0,
        description="Seconds for which answers of `http` are remembered, refusals a fifth of it: "
        "RabbitMQ's number. A permission that is taken away still counts for up to twice as long.",
    )
    auth_http_user_path: str = Field("", description="Address that is asked about logins.")
    auth_http_vhost_path: str = Field("", description="Address asked about virtual hosts.")
    auth_http_resource_path: str = Field(
        "", description="Address asked about exchanges and queues."
    )
    auth_http_topic_path: str = Field(
        "",
        description="Address that is asked about the routing keys of topic exchanges, one by one; "
        "empty leaves all of them open.",
    )
    auth_http_method: Literal["get", "post"] = Field(
        "get",
        description="How to ask: `get` is RabbitMQ's default and puts passwords into the address, "
        "which services like to log; `post` does not.",
    )
    auth_http_timeout_seconds: float = Field(
        5.0,
        gt=0,
        description="Seconds to wait for an answer, which is a refusal then: half the time of a "
        "handshake.",
    )
    auth_oauth2_resource_server_id: str = Field(
        "", description="What a token's audience must name: this broker, for its provider."
    )
    auth_oauth2_scope_prefix: str | None = Field(
        None,
        description="What scopes of this broker begin with; the resource server's id and a dot "
        "unless set.",
    )
    auth_oauth2_jwks_url: str = Field("", description="Address of the provider's keys (JWK set).")
    auth_oauth2_jwks_file: Path | None = Field(
        None, description="File with the provider's keys (JWK set) where there is no address."
    )
    auth_oauth2_jwks_refresh_seconds: float = Field(
        3600.0,
        gt=0,
        description="Seconds after which the keys are read again; a token with a new key has them "
        "read at once. A key that was withdrawn counts for so long.",
    )
    auth_oauth2_hs256_key_file: Path | None = Field(
        None, description="File with a secret of 32 bytes or more that signs tokens (HS256)."
    )
    auth_oauth2_additional_scopes_key: str = Field(
        "", description="Claim, or path of claims with dots, that holds more scopes."
    )
    auth_oauth2_scope_aliases: dict[str, str] = Field(
        {}, description="Scopes that stand for others: `{'admin': 'broker.tag:administrator …'}`."
    )
    auth_oauth2_preferred_username_claims: Annotated[tuple[str, ...], NoDecode] = Field(
        ("sub", "client_id"),
        description="Claims that name the user, the first that is there: RabbitMQ's. "
        "Comma-separated in the environment.",
    )
    auth_oauth2_leeway_seconds: float = Field(
        5.0,
        ge=0,
        le=300,
        description="Seconds by which the provider's clock may differ: a token counts that much "
        "longer and earlier.",
    )

    # Limits on what a peer may send or make the node hold.
    connections_max: int = Field(
        65_536,
        ge=1,
        description="Client connections at a time: about 2.5 GB at 40 kB each, and near what one "
        "process may have of open files.",
    )
    channels_per_node_max: int = Field(
        -1,
        ge=-1,
        description="Channels of all connections together, some 3 kB each; -1 for no limit beyond "
        "that of connections and of each one's channels.",
    )
    consumers_per_channel_max: int = Field(
        -1, ge=-1, description="Consumers of one channel; -1 for no limit."
    )
    queues_max: int = Field(
        -1,
        ge=-1,
        description="Queues of all virtual hosts together; -1 for no limit. Each has files and a "
        "ledger, so who declares without end takes disk and memory from all.",
    )
    exchanges_max: int = Field(
        -1,
        ge=-1,
        description="Exchanges of all virtual hosts together, the predeclared ones included; -1 "
        "for no limit.",
    )
    message_bytes_max: int = Field(
        16 * MIB,
        ge=1,
        le=512 * MIB,
        description="Bytes of a message body, as in RabbitMQ 4: a body is held in memory whole.",
    )
    unfinished_message_bytes_max: int = Field(
        128 * MIB,
        ge=0,
        description="Bytes that a connection's half-sent messages may hold, on all its channels: "
        "2,047 channels could keep 16 MiB each otherwise. One message of any size is allowed.",
    )
    read_buffer_bytes: int = Field(
        256 * KIB,
        ge=8 * KIB,
        description="Bytes read from a socket at a time: large enough that a busy publisher's "
        "batch is worth a write. Shared by the connections, not one each.",
    )
    busy_poll_microseconds: int = Field(
        50,
        ge=0,
        le=10_000,
        description="Microseconds for which the node looks for the next request of a client that "
        "waits for each answer before it lets the processor sleep: about what waking up takes. 0 "
        "saves power and costs latency.",
    )
    write_high_water_bytes: int = Field(
        1 * MIB,
        ge=64 * KIB,
        description="Bytes waiting to be sent on one connection before deliveries to it pause: "
        "some milliseconds of a fast network, and no memory leak for a consumer that stopped.",
    )

    # Usage records.
    usage_interval_ms: int = Field(
        60_000,
        ge=100,
        description="Milliseconds between two writes of usage: what a crash may lose of it.",
    )
    alert_interval_ms: int = Field(
        5_000,
        ge=100,
        description="Milliseconds between two looks at what the rules of alerts watch.",
    )
    audit_days_max: int = Field(
        400, ge=1, description="Days for which it is kept who has changed what."
    )
    statistics_interval_ms: int = Field(
        5_000,
        ge=1_000,
        le=600_000,
        description="Milliseconds between two samples of the counters: what rates are taken over.",
    )
    statistics_histories_max: int = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description="Queues, exchanges, connections and channels whose samples are kept, up to "
        "20 KB each; the others have only the rate of the last interval.",
    )
    usage_days_max: int = Field(
        400, ge=1, description="Days for which usage is kept: a year, and time to bill it."
    )

    connection_publish_rate: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages a second that each connection may publish: who sends more is slowed "
        "down, and told by connection.blocked. -1 for no limit.",
    )
    connection_publish_burst: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages that a connection may publish at once after it was quiet; -1 for "
        "what `connection_publish_rate` brings in a second.",
    )
    connection_consume_rate: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages a second that are delivered to each connection; -1 for no limit.",
    )
    connection_consume_burst: int = Field(
        -1,
        ge=-1,
        le=GIGA,
        description="Messages that are delivered to a connection at once after it was quiet; -1 "
        "for what `connection_consume_rate` brings in a second.",
    )

    # Alarms: while one stands, publishers are held (connection.blocked) and consumers drain.
    disk_free_bytes_min: int = Field(
        50 * MIB,
        ge=0,
        description="Free bytes of the data directory's file system below which publishers are "
        "held: RabbitMQ's number, and room enough for settlements and checkpoints.",
    )
    memory_fraction_max: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Part of the machine's memory that the process may have before publishers are "
        "held: RabbitMQ's number; the node's own caches stay far below.",
    )
    resource_check_interval_ms: int = Field(
        1000,
        ge=10,
        description="Milliseconds between looks at disk and memory: an alarm may come this late.",
    )

    # Consumers.
    consumer_timeout_ms: int = Field(
        1_800_000,
        ge=0,
        description="Milliseconds for which a consumer may hold a delivery before its channel is "
        "closed: RabbitMQ's half an hour. 0 lets it hold them for ever.",
    )
    consumer_check_interval_ms: int = Field(
        10_000,
        ge=10,
        description="Milliseconds between looks at what consumers hold: a timeout is noticed this "
        "much later at most, or twice this where deliveries are rare.",
    )
    redeclare_mismatch: Literal["refuse", "warn"] = Field(
        "refuse",
        description="What becomes of a declaration of a queue that exists with other arguments or "
        "flags: a channel error 406, as in RabbitMQ, or a warning in the log. Policies may say so "
        "for some queues as redeclare-mismatch.",
    )
    delivery_limit_counts: Literal["returns", "failures"] = Field(
        "returns",
        description="What counts against the delivery limit of a quorum queue: every return, as in "
        "RabbitMQ before 4.3, or only `failures`: basic.reject and consumers that were lost.",
    )

    # Storage.
    segment_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=2048 * MIB,
        description="Bytes of a segment file before the next is opened: retention deletes whole "
        "segments, so smaller returns space earlier and larger needs fewer files.",
    )
    tail_cache_bytes_max: int = Field(
        64 * MIB,
        ge=1 * MIB,
        description="Bytes of recently appended batches kept in memory for all queues together: "
        "consumers that keep up never read a file. It is most of a node's memory.",
    )
    producers_max: int = Field(
        100_000,
        ge=1,
        description="Publishers of one virtual host that number their messages, about 300 bytes of "
        "memory each: a new one is refused beyond that.",
    )
    producer_idle_ms: int = Field(
        7 * 24 * 60 * 60 * 1000,
        ge=1000,
        description="Milliseconds after its last message at which a publisher's number is "
        "forgotten: longer than any outage that it comes back from within its epoch.",
    )
    prepared_messages_max: int = Field(
        100_000,
        ge=1,
        description="Half messages of one virtual host that wait to be committed, some 500 bytes "
        "of memory each: a publisher that commits none must not fill it.",
    )
    prepared_checks_max: int = Field(
        15,
        ge=0,
        description="How often the broker asks what has become of a half message; then it waits "
        "until somebody decides. As in RocketMQ.",
    )
    dedup_keys_max: int = Field(
        1_000_000,
        ge=1,
        description="Keys that one de-duplication window holds in memory, 48 to 96 bytes each; "
        "more are looked up on disk, a few microseconds each.",
    )
    settle_flush_interval_ms: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Milliseconds for which settlements gather before they are logged: after a "
        "crash, what was settled in the last interval is delivered again.",
    )

    # Encryption at rest: `leveret encryption enable --vhost V`.
    encryption_key: SecretStr = Field(
        SecretStr(""),
        description="Master key, 32 bytes in base64 or hexadecimal: for the environment, where a "
        "file cannot be. Other programs of the same user can read it there.",
    )
    encryption_key_file: Path | None = Field(
        None,
        description="File with the master key, which only its owner may write and only its group "
        "may read besides; `leveret encryption generate-key` makes one. Needed where a virtual "
        "host is encrypted.",
    )

    @field_validator("encryption_key", mode="before")
    @classmethod
    def _is_shown_to_nobody(cls, value: object) -> object:
        """Anything is text: a value of a wrong kind would be quoted in the refusal."""
        return value if isinstance(value, SecretStr) else str(value)

    @field_validator("encryption_key_file")
    @classmethod
    def _is_the_only_master_key(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        given = info.data.get("encryption_key")
        if value is not None and given is not None and given.get_secret_value():
            raise ValueError("cannot be given beside 'encryption_key'")
        return value

    @field_validator(
        "loopback_users", "auth_backends", "auth_oauth2_preferred_username_claims", mode="before"
    )
    @classmethod
    def _split_names(cls, value: object) -> object:
        """`LEVERET_LOOPBACK_USERS=guest,probe`; an empty value means nobody."""
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

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

    @field_validator("durability")
    @classmethod
    def _survives_something(cls, value: Durability) -> Durability:
        """NONE is what transient queues have; for a node it would make every confirm a lie."""
        if value is Durability.NONE:
            raise ValueError("must be 'fsync' or 'os'")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the base class's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: a test's configuration must not depend on who runs it."""
        return (init_settings,)

    @property
    def database_path(self) -> Path:
        """The definitions store."""
        return self.data_dir / "leveret.db"

    @property
    def control_socket_path(self) -> Path:
        """Where the command line reaches the running node."""
        return self.data_dir / "control.sock"


def load_configuration(
    file: Path | None = None, overrides: Mapping[str, object] | None = None
) -> Configuration:
    """Configuration from all sources. `overrides` come from the command line; None is "not given".

    Raises ConfigurationError, whose text an operator can act on.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values |= _read_file(file)
    values |= EnvSettingsSource(Configuration)()
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return Configuration(**values)
    except ValidationError as error:
        raise ConfigurationError(_explain(error)) from None


def _read_file(file: Path) -> dict[str, Any]:
    """Settings of a TOML file, whose keys are the names of the fields."""
    try:
        with file.open("rb") as stream:
            values = tomllib.load(stream)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from None
    for key in values:
        if key not in Configuration.model_fields:
            raise ConfigurationError(f"{file}: unknown setting {key!r}{_suggestion(key)}")
    return values


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, Configuration.model_fields, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _explain(error: ValidationError) -> str:
    """One line for each setting that is wrong."""
    return "\n".join(
        f"setting {'.'.join(str(part) for part in detail['loc'])!r}: {detail['msg']}, "
        f"got {detail['input']!r}"
        for detail in error.errors(include_url=False, include_context=False)
    )
