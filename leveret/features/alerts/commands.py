"""Operations on alert rules and alerts (see leveret.features.alerts.alerting)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running
from leveret.core.admin.rights import MANAGEMENT, POLICYMAKER
from leveret.features.alerts.rules import COMPONENT
from leveret.ports.definitions import ParameterDefinition

if TYPE_CHECKING:
    from leveret.features.alerts.alerting import Alerting
    from leveret.features.alerts.rules import Alert

__all__ = ["alert_row", "rule_rows", "without_secret"]

HIDDEN: Final = "…"


class AlertNode(AdminNode, Protocol):
    """Parts of a node that commands on alerts use."""

    @property
    def alerting(self) -> Alerting | None:
        """Alerts of a running node, else None."""
        ...


def rule_rows(node: AlertNode, vhost: str | None) -> list[dict[str, Any]]:
    """Return the rules of one virtual host or of all, with secrets hidden."""
    held = node.administration.parameters.select(vhost=vhost, component=COMPONENT)
    return [
        {"vhost": one.vhost, "name": one.name, "rule": without_secret(one.value)} for one in held
    ]


def without_secret(value: Any) -> Any:
    """Return a rule for display: of a webhook only the host, since its path may hold a token."""
    if not isinstance(value, dict):
        return value
    shown = {key: _shown(value[key]) for key, _shown in SHOWN.items() if value.get(key)}
    return {**value, **shown}


def _host(webhook: object) -> str:
    """Return an address without path and query, if it has any."""
    parts = urlsplit(str(webhook))
    start = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    return str(webhook) if webhook in {start, start[:-1]} else start + HIDDEN


SHOWN: Final[dict[str, Callable[[object], str]]] = {"secret": lambda _: HIDDEN, "webhook": _host}


def alert_row(alert: Alert) -> dict[str, Any]:
    """Return the row of an alert."""
    rule = alert.rule
    return {
        "name": rule.name,
        "vhost": rule.vhost,
        "queue": alert.subject,
        "group": alert.group,
        "condition": rule.condition.value,
        "value": alert.value,
        "threshold": rule.threshold,
        "unit": rule.condition.unit,
        "below": rule.from_below,
        "severity": rule.severity.value,
        "summary": rule.summary,
        "since": alert.since_ms,
        "firing": alert.is_firing,
    }


@query("alert.list")
async def alert_list(node: AlertNode, *, vhost: str | None = None) -> list[dict[str, Any]]:
    """Return the rules, with secrets hidden."""
    return rule_rows(node, vhost)


@command("alert.set", POLICYMAKER)
async def alert_set(node: AlertNode, *, vhost: str, name: str, rule: dict[str, Any]) -> None:
    """Add or replace a rule; it applies within seconds."""
    rule = dict(rule)
    for key, shown in SHOWN.items():  # a hidden value that comes back stays unchanged
        known = _known(node, vhost, name).get(key)
        if known and rule.get(key) == shown(known):
            rule[key] = known
    node.administration.set_parameter(ParameterDefinition(vhost, COMPONENT, name, rule))


def _known(node: AlertNode, vhost: str, name: str) -> dict[str, Any]:
    """Return the stored rule of a name; empty if there is none."""
    for held in node.administration.parameters.select(vhost=vhost, component=COMPONENT):
        if held.name == name and isinstance(held.value, dict):
            return held.value
    return {}


@command("alert.clear", POLICYMAKER)
async def alert_clear(node: AlertNode, *, vhost: str, name: str) -> None:
    """Delete a rule; its firing alerts are resolved."""
    node.administration.clear_parameter(vhost, COMPONENT, name)


@query("alert.status", MANAGEMENT)
async def alert_status(node: AlertNode, *, vhost: str | None = None) -> dict[str, Any]:
    """Return the firing alerts, and those that began or ended lately, latest first."""
    alerting = _alerting(node)
    return {
        "firing": [alert_row(one) for one in alerting.firing if vhost in {None, one.rule.vhost}],
        "past": [
            alert_row(one) for one in reversed(alerting.past) if vhost in {None, one.rule.vhost}
        ],
    }


def _alerting(node: AlertNode) -> Alerting:
    if node.alerting is None:
        raise not_running()
    return node.alerting
