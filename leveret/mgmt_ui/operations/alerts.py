"""Operations on alerts: their rules, and what fires (see leveret.core.telemetry.alerting)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.features.alerts import COMPONENT
from leveret.ports.definitions import ParameterDefinition

if TYPE_CHECKING:
    from leveret.core.telemetry.alerting import Alerting
    from leveret.features.alerts import Alert
    from leveret.mgmt_ui.operations.administered import Administered, Operations, Parameters

__all__ = ["ALERTS", "alert_row", "rule_rows", "without_secret"]

HIDDEN: Final = "…"


def rule_rows(node: Administered, vhost: str | None) -> list[dict[str, Any]]:
    """The rules of one virtual host or of all, with their secrets hidden."""
    held = node.administration.parameters.select(vhost=vhost, component=COMPONENT)
    return [
        {"vhost": one.vhost, "name": one.name, "rule": without_secret(one.value)} for one in held
    ]


def without_secret(value: Any) -> Any:
    """A rule as it is shown."""
    if isinstance(value, dict) and value.get("secret"):
        return {**value, "secret": HIDDEN}
    return value


def alert_row(alert: Alert) -> dict[str, Any]:
    """Something that fires, or is over."""
    rule = alert.rule
    return {
        "name": rule.name,
        "vhost": rule.vhost,
        "queue": alert.subject,
        "condition": rule.condition.value,
        "value": alert.value,
        "threshold": rule.threshold,
        "below": rule.from_below,
        "severity": rule.severity.value,
        "summary": rule.summary,
        "since": alert.since_ms,
        "firing": alert.is_firing,
    }


async def _list(node: Administered, parameters: Parameters) -> list[dict[str, Any]]:
    return rule_rows(node, parameters["vhost"])


async def _set(node: Administered, parameters: Parameters) -> None:
    vhost, name, rule = parameters["vhost"], parameters["name"], dict(parameters["rule"])
    if rule.get("secret") == HIDDEN:  # it was shown so, and shall stay
        known = [
            held.value.get("secret", "")
            for held in node.administration.parameters.select(vhost=vhost, component=COMPONENT)
            if held.name == name and isinstance(held.value, dict)
        ]
        rule["secret"] = known[0] if known else ""
    node.administration.set_parameter(ParameterDefinition(vhost, COMPONENT, name, rule))


async def _clear(node: Administered, parameters: Parameters) -> None:
    node.administration.clear_parameter(parameters["vhost"], COMPONENT, parameters["name"])


async def _status(node: Administered, parameters: Parameters) -> dict[str, object]:
    """What fires, and what has begun or ended lately, the latest first."""
    alerting, vhost = _alerting(node), parameters["vhost"]
    return {
        "firing": [alert_row(one) for one in alerting.firing if vhost in {None, one.rule.vhost}],
        "past": [
            alert_row(one) for one in reversed(alerting.past) if vhost in {None, one.rule.vhost}
        ],
    }


def _alerting(node: Administered) -> Alerting:
    if node.alerting is None:
        raise AdministrationError("invalid", "this needs a running node: start it first")
    return node.alerting


_NAMED: Final = {"vhost": str, "name": str}
ALERTS: Final[Operations] = {
    "alert.list": (_list, {"vhost": None}),
    "alert.set": (_set, {**_NAMED, "rule": dict}),
    "alert.clear": (_clear, _NAMED),
    "alert.status": (_status, {"vhost": None}),
}
