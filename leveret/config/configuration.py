"""The configuration of a node: all groups of settings under unique names.

The groups are its bases, not fields: settings have flat names, in files and in the environment.
"""

from __future__ import annotations

from leveret.config.addresses import AddressSettings
from leveret.config.authentication import AuthenticationSettings
from leveret.config.cluster import ClusterSettings
from leveret.config.handshake import HandshakeSettings
from leveret.config.limits import LimitSettings
from leveret.config.management import ManagementSettings
from leveret.config.observation import ObservationSettings
from leveret.config.service import ServiceSettings
from leveret.config.storage import StorageSettings
from leveret.config.tls import TlsSettings

__all__ = ["Configuration"]


class Configuration(
    AddressSettings,
    ManagementSettings,
    TlsSettings,
    HandshakeSettings,
    AuthenticationSettings,
    LimitSettings,
    ServiceSettings,
    ObservationSettings,
    ClusterSettings,
    StorageSettings,
):
    """Configuration of one node. Never changes while the node runs.

    It uses its arguments only: a test's configuration must not depend on its environment. Groups
    are validated from the last to the first, so that a setting may look at those of groups below.
    """
