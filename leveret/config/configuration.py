"""The configuration of a node: all groups of settings under names of their own.

The groups are bases of it, not fields: settings have flat names, which files and environments hold.
"""

from __future__ import annotations

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from leveret.config.addresses import AddressSettings
from leveret.config.authentication import AuthenticationSettings
from leveret.config.handshake import HandshakeSettings
from leveret.config.limits import LimitSettings
from leveret.config.observation import ObservationSettings
from leveret.config.service import ServiceSettings
from leveret.config.storage import StorageSettings
from leveret.config.tls import TlsSettings

__all__ = ["Configuration"]


class Configuration(
    AddressSettings,
    TlsSettings,
    HandshakeSettings,
    AuthenticationSettings,
    LimitSettings,
    ServiceSettings,
    ObservationSettings,
    StorageSettings,
    BaseSettings,
):
    """What an operator may decide about one node. Never changes while the node runs."""

    model_config = SettingsConfigDict(env_prefix="LEVERET_")

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
