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
        description="Users who may connect from this machine only, since their password is known "
        "to the world. In the environment a list with commas or of JSON; `[]` is nobody.",
    )
    anonymous_login_user: str = Field(
        "",
        description="User that clients become who say nothing of themselves (mechanism ANONYMOUS); "
        "empty offers it to nobody. RabbitMQ 4 makes them guest: here nobody gets in unasked.",
    )

    auth_backends: tuple[AuthBackend, ...] = Field(
        (AuthBackend.INTERNAL,),
        min_length=1,
        description="Who is asked about a login, in this order: `internal` (users of this node), "
        "`oauth2` (tokens), `http` (a service). The first that accepts also says what the user may "
        "do. `internal` takes its time to say no: put it last.",
    )
    auth_cache_ttl_seconds: float = Field(
        15.0,
        gt=0,
        description="Seconds for which answers of `http` are remembered, refusals a fifth of it: "
        "RabbitMQ's number. A permission that is taken away still counts for up to twice as long, "
        "a tag or password until a browser's session ends, half an hour after the sign-in.",
    )

    # The service that `http` asks.
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

    # The provider whose tokens `oauth2` takes.
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
    auth_oauth2_preferred_username_claims: tuple[str, ...] = Field(
        ("sub", "client_id"),
        description="Claims that name the user, the first that is there: RabbitMQ's.",
    )
    auth_oauth2_leeway_seconds: float = Field(
        5.0,
        ge=0,
        le=300,
        description="Seconds by which the provider's clock may differ: a token counts that much "
        "longer and earlier.",
    )

    @field_validator(
        "loopback_users", "auth_backends", "auth_oauth2_preferred_username_claims", mode="before"
    )
    @classmethod
    def _split_names(cls, value: object) -> object:
        """Split names, as in `LEVERET_LOOPBACK_USERS=guest,probe`; an empty list is `[]`."""
        return split_names(value)
