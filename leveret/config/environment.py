"""Settings in the environment: `LEVERET_FRAME_MAX` is the setting `frame_max`.

An empty variable counts as not set, as `${UNSET}` in a compose file leaves it. A Kubernetes service
called `leveret` adds variables of its own, such as LEVERET_PORT=tcp://10.0.0.1:5672: they are
recognized by their form and ignored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_origin

from leveret.config.configuration import Configuration

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONFIG_VARIABLE", "EnvironmentSettings", "read_environment", "variable"]

PREFIX: Final = "LEVERET_"
CONFIG_VARIABLE: Final = "LEVERET_CONFIG"  # names the TOML file where no option does
# Variables that the kubelet sets for a service (kubernetes.io/docs, "Service discovery", and
# Docker's links): X_SERVICE_HOST, X_SERVICE_PORT[_NAME], X_PORT=tcp://…,
# X_PORT_5672_TCP[_PROTO|_PORT|_ADDR].
SERVICE_LINK_NAME: Final = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
SERVICE_LINK_VALUE: Final = re.compile(r"(tcp|udp|sctp)://\S+")


@dataclass(slots=True)
class EnvironmentSettings:
    """Content of the environment: `values` by setting, `unknown` variables, and `notices`."""

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def variable(setting: str) -> str:
    """Return the name of a setting's variable."""
    return PREFIX + setting.upper()


def read_environment(environ: Mapping[str, str]) -> EnvironmentSettings:
    """Return the settings among the variables of `environ`, in any case of letters."""
    found = EnvironmentSettings()
    links = []
    for name, value in environ.items():
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper == CONFIG_VARIABLE:
            continue
        setting = upper.removeprefix(PREFIX).lower()
        if _is_service_link(upper.removeprefix(PREFIX), value):
            links.append(f"{name}={value}")
        elif setting not in Configuration.model_fields:
            found.unknown.append(name)
        elif value == "":
            found.notices.append(f"environment variable {name} is empty and counts as not set")
        else:
            found.values[setting] = _decoded(setting, value)
    if links:
        found.notices.append(_explain_links(links))
    return found


def _is_service_link(name: str, value: str) -> bool:
    """Whether a variable is a Kubernetes service link, as is a port setting with an address."""
    return SERVICE_LINK_NAME.fullmatch(name) is not None or (
        name.endswith("PORT") and SERVICE_LINK_VALUE.fullmatch(value) is not None
    )


def _explain_links(links: list[str]) -> str:
    more = f" and {len(links) - 1} more" if len(links) > 1 else ""
    return (
        f"environment variables of Kubernetes' service links are passed over ({links[0]}{more}): "
        "set `enableServiceLinks: false` in the pod's specification; a port that was meant goes "
        "into the settings file"
    )


def _decoded(setting: str, value: str) -> Any:
    """Return the text, or a table parsed from JSON; invalid JSON is refused by the validation."""
    if get_origin(Configuration.model_fields[setting].annotation) is not dict:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
