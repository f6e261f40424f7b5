"""Common parts of forms: virtual host, arguments, and other JSON fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.mgmt_ui.api.bodies import understand
from leveret.mgmt_ui.api.problems import ApiError, bad_request

if TYPE_CHECKING:
    from leveret.mgmt_ui.pages.forms import Form
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["arguments_of", "json_object_of", "open_names"]


def arguments_of(form: Form) -> dict[str, Any]:
    """Return the arguments in a form. Raises ApiError 400."""
    return json_object_of(form, "arguments")


def json_object_of(form: Form, field: str) -> dict[str, Any]:
    """Return the JSON object in a field; blank is an empty one. Raises ApiError 400."""
    text = form.word(field)
    if not text:
        return {}
    try:
        return understand(text.encode())
    except ApiError:
        raise bad_request(f"the {field} are not a JSON object") from None


def open_names(viewer: Viewer) -> list[str]:
    """Return the names of the virtual hosts whose contents the user may list."""
    return sorted(vhost.name for vhost in viewer.caller.open_vhosts())
