"""One frozen configuration: every setting and every limit, with its unit and its reason.

Each file is a group of settings. Code that needs one group only takes it by its own class. `load`
reads all sources and records the source of each value; `load_configuration` returns the values
alone. `Configuration(...)` uses its arguments only.
"""

from leveret.config.authentication import AuthBackend, AuthenticationSettings
from leveret.config.configuration import Configuration
from leveret.config.handshake import HandshakeSettings
from leveret.config.loading import (
    ConfigurationError,
    LoadedConfiguration,
    load,
    load_configuration,
)
from leveret.config.tls import CertificateLogin, TlsSettings, VerifyPeer

__all__ = [
    "AuthBackend",
    "AuthenticationSettings",
    "CertificateLogin",
    "Configuration",
    "ConfigurationError",
    "HandshakeSettings",
    "LoadedConfiguration",
    "TlsSettings",
    "VerifyPeer",
    "load",
    "load_configuration",
]
