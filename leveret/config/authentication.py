"""Settings: logins and sources of users."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from leveret.config.settings import Settings, split_names

__all__ = ["AuthBackend", "AuthenticationSettings"]


class AuthBackend(StrEnum):
    """A source of users."""

    INTERNAL = "internal"
    OAUTH2 = "oauth2"
    HTTP = "http"


class AuthenticationSettings(Settings):
    """Logins, and where users come from."""

    login_delay_seconds: float = Field(
        3.0,
        ge=0,
        description="Seconds before a failed login is answered: slows the guessing of passwords.",
    )
    loopback_users: tuple[str, ...] = Field(
        ("guest",),
        description="Users who may connect from this machine only, since their password is well "
        "known. In the environment a comma-separated or JSON list; `[]` for no user.",
    )
    anonymous_login_user: str = Field(
        "",
        description="User of clients that log in anonymously (mechanism ANONYMOUS); empty "
        "disables the mechanism. RabbitMQ 4 uses guest; here anonymous logins are off by default.",
    )

    auth_backends: tuple[AuthBackend, ...] = Field(
        (AuthBackend.INTERNAL,),
        min_length=1,
        description="Authentication backends, in the order in which they are tried: `internal` "
        "(users of this node), `oauth2` (tokens), `http` (a service). The first that accepts a "
        "login also authorizes the user. `internal` is slow to refuse a password: put it last.",
    )
    auth_cache_ttl_seconds: float = Field(
        15.0,
        gt=0,
        description="Seconds for which answers of `http` are cached, refusals a fifth of it: "
        "RabbitMQ's default. A revoked permission still counts for up to twice as long, a tag or "
        "password until a browser's session ends, half an hour after the sign-in.",
    )

    # The service that `http` asks.
    auth_http_user_path: str = Field("", description="URL that authenticates logins.")
    auth_http_vhost_path: str = Field(
        "", description="URL that authorizes access to virtual hosts."
    )
    auth_http_resource_path: str = Field(
        "", description="URL that authorizes access to exchanges and queues."
    )
    auth_http_topic_path: str = Field(
        "",
        description="URL that authorizes routing keys of topic exchanges; empty allows all of "
        "them.",
    )
    auth_http_method: Literal["get", "post"] = Field(
        "get",
        description="HTTP method: `get` is RabbitMQ's default and puts passwords into the URL, "
        "which servers tend to log; `post` does not.",
    )
    auth_http_timeout_seconds: float = Field(
        5.0,
        gt=0,
        description="Seconds to wait for an answer before the login is refused: half the "
        "handshake timeout.",
    )

    # The provider whose tokens `oauth2` takes.
    auth_oauth2_resource_server_id: str = Field(
        "", description="Resource server id: the audience that a token must name."
    )
    auth_oauth2_scope_prefix: str | None = Field(
        None,
        description="Prefix of this broker's scopes; the resource server's id and a dot unless "
        "set.",
    )
    auth_oauth2_jwks_url: str = Field("", description="URL of the provider's keys (JWK set).")
    auth_oauth2_jwks_file: Path | None = Field(
        None, description="File with the provider's keys (JWK set), if there is no URL."
    )
    auth_oauth2_jwks_refresh_seconds: float = Field(
        3600.0,
        gt=0,
        description="Seconds after which the keys are read again; a token with an unknown key "
        "triggers it at once. A withdrawn key is accepted until then.",
    )
    auth_oauth2_hs256_key_file: Path | None = Field(
        None, description="File with a secret of 32 bytes or more that signs tokens (HS256)."
    )
    auth_oauth2_additional_scopes_key: str = Field(
        "", description="Claim, or path of claims with dots, that holds more scopes."
    )
    auth_oauth2_scope_aliases: dict[str, str] = Field(
        {}, description="Aliases of scopes: `{'admin': 'broker.tag:administrator …'}`."
    )
    auth_oauth2_preferred_username_claims: tuple[str, ...] = Field(
        ("sub", "client_id"),
        description="Claims that name the user; the first one present is used: RabbitMQ's "
        "defaults.",
    )
    auth_oauth2_leeway_seconds: float = Field(
        5.0,
        ge=0,
        le=300,
        description="Clock skew in seconds: a token is valid that much earlier and longer.",
    )

    @field_validator(
        "loopback_users", "auth_backends", "auth_oauth2_preferred_username_claims", mode="before"
    )
    @classmethod
    def _split_names(cls, value: object) -> object:
        """Split names, as in `LEVERET_LOOPBACK_USERS=guest,probe`; an empty list is `[]`."""
        return split_names(value)
