"""What the forms of exchanges, queues and bindings have in common: a virtual host and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.bodies import understand
from leveret.mgmt_ui.api.problems import ApiError, bad_request

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["arguments_of", "open_names"]


def arguments_of(form: Form, field: str = "arguments") -> dict[str, Any]:
    """The JSON object in a field; blank is an empty one. Raises ApiError 400."""
    text = form.word(field)
    if not text:
        return {}
    try:
        return understand(text.encode())
    except ApiError:
        raise bad_request("the arguments are no JSON object") from None


def open_names(viewer: Viewer) -> list[str]:
    """Names of the virtual hosts in which the viewer may list, and perhaps declare, things."""
    return sorted(vhost.name for vhost in viewer.caller.open_vhosts())
