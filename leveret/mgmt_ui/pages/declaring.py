"""What the forms of exchanges, queues and bindings have in common: a virtual host and arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.problems import bad_request

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["arguments_of", "open_names"]


def arguments_of(form: Form) -> dict[str, Any]:
    """The JSON object in the field `arguments`; blank is an empty one. Raises ApiError 400."""
    text = form.word("arguments")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise bad_request("the arguments are no JSON object") from None
    if not isinstance(found, dict):
        raise bad_request("the arguments are no JSON object")
    return found


def open_names(viewer: Viewer) -> list[str]:
    """Names of the virtual hosts in which the viewer may list, and perhaps declare, things."""
    return sorted(vhost.name for vhost in viewer.caller.open_vhosts())
