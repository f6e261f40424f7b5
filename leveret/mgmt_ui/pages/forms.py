"""Forms: parsing, CSRF tokens, and the commands that they send."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse
from starlette.requests import ClientDisconnect

from leveret.mgmt_ui.api.bodies import understand
from leveret.mgmt_ui.api.problems import ApiError, bad_request
from leveret.mgmt_ui.hosts import require_own_site
from leveret.mgmt_ui.pages.viewing import ViewerHere
from leveret.mgmt_ui.sessions import CSRF_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leveret.core.admin.commands import AnyCommand
    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = [
    "CSRF_FIELD",
    "Form",
    "FormHere",
    "act",
    "arguments_of",
    "json_object_of",
    "open_names",
    "read_form",
    "refusals_told",
    "seeing",
]

FORM_BYTES_MAX = 1 << 20  # a page's arguments, a message to publish
FIELDS_MAX = 200
CSRF_FIELD = "csrf_token"


class Form:
    """Fields of a form by name; the last value counts unless all are wanted."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """Return a field as typed, with line feeds as line ends."""
        return self._fields.get(name, [default])[-1].replace("\r\n", "\n")

    def word(self, name: str, default: str = "") -> str:
        """Return a field without surrounding blanks."""
        return self.text(name, default).strip()

    def all(self, name: str) -> list[str]:
        """Return every value of a field."""
        return list(self._fields.get(name, []))

    def flag(self, name: str) -> bool:
        """Whether a box is checked."""
        return bool(self.word(name))

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer field, or the default if blank. Raises ApiError 400."""
        word = self.word(name)
        if not word:
            return default
        digits = word.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise ApiError(400, "bad_request", f"{name} is not a whole number: {word}")
        return int(word)


async def read_form(request: Request, bytes_max: int = FORM_BYTES_MAX) -> Form:
    """Return the form in a request's body. Raises ApiError 403 if from another site, 400, 413."""
    require_own_site(request, "this form")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > bytes_max:
                raise ApiError(413, "too_large", f"a form has at most {bytes_max} bytes")
    except ClientDisconnect:
        raise ApiError(400, "bad_request", "the form is incomplete") from None
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise ApiError(400, "bad_request", "the request is not a form") from None
    return Form(fields)


async def _checked_form(request: Request, viewer: ViewerHere) -> Form:
    form = await read_form(request)
    token = request.headers.get(CSRF_HEADER) or form.text(CSRF_FIELD)
    if not viewer.session.has_csrf_token(token):
        text = "the form is not from this session (CSRF check): go back, reload and try again"
        raise ApiError(403, "forbidden", text)
    return form


FormHere = Annotated[Form, Depends(_checked_form)]


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


@contextmanager
def refusals_told(viewer: Viewer) -> Iterator[None]:
    """End the block where a command is refused, and tell the user why; missing rights raise."""
    try:
        yield
    except ApiError as error:
        if error.status in {401, 403}:
            raise
        viewer.session.tell(error.reason, failed=True)


async def act(
    viewer: Viewer,
    command: AnyCommand,
    *,
    done: str,
    then: str,
    otherwise: str = "",
    **parameters: Any,
) -> RedirectResponse:
    """Perform a command, then redirect to the page `then` with the notice `done`.

    If the operation is refused, redirect to `otherwise` (or `then`) with the reason. Raises
    ApiError 401 without the command's right.
    """
    with refusals_told(viewer):
        await viewer.caller.perform(command, **parameters)
        viewer.session.tell(done)
        return seeing(then)
    return seeing(otherwise or then)


def seeing(address: str) -> RedirectResponse:
    """Return a redirect after a form (303), so that a reload sends nothing twice."""
    return RedirectResponse(address, 303)
