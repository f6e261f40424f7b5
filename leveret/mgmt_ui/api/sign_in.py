"""/api/login and /api/auth: sign-in as RabbitMQ's management UI does it."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import parse_qs

from fastapi import Request, Response

from leveret.core.access.passwords import RABBITMQ_SALT_BYTES, hash_password_as_rabbitmq
from leveret.mgmt_ui.api.bodies import json_object, read_body, require_fields, text
from leveret.mgmt_ui.api.callers import (
    AdministratorHere,
    CallerHere,
    log_in,
    open_session,
    require_manager,
)
from leveret.mgmt_ui.api.describing import body, form
from leveret.mgmt_ui.api.listing import READ, answer
from leveret.mgmt_ui.api.problems import not_authorized, not_found
from leveret.mgmt_ui.hosts import require_own_site
from leveret.mgmt_ui.routes import LazyRouter

__all__ = ["router"]

FORM_BYTES_MAX = 8192
INSTEAD = (
    "Passing the password in the URL is no longer supported. "
    'Use POST /auth/hash_password with a JSON body {"password": "..."} instead.'
)

router = LazyRouter(tags=["authentication"])


@router.api_route("/api/auth", methods=READ)
async def show_ways() -> Response:
    """Ways to sign in: user name and password only."""
    return answer({"oauth_enabled": False, "enable_uaa": False})


@router.post(
    "/api/login",
    openapi_extra=form({"username": "guest", "password": "guest"}, "username", "password"),
)
async def sign_in(request: Request) -> Response:
    """Open a session; its cookie is in the answer and does not contain the password."""
    require_own_site(request)
    said = await read_body(request, FORM_BYTES_MAX)
    fields = parse_qs(said.decode("latin-1"), encoding="utf-8", max_num_fields=100)
    user, password = fields.get("username"), fields.get("password")
    if not user or not password:
        raise not_authorized()
    caller = await log_in(request, user[0], password[0])
    require_manager(caller)
    response = answer("ok")
    open_session(request, caller, response)
    return response


@router.post("/api/auth/hash_password", openapi_extra=body({"password": "secret"}, "password"))
async def hash_password(_: AdministratorHere, request: Request) -> Response:
    """Hash a password as in RabbitMQ's definitions."""
    asked = await json_object(request)
    require_fields(asked, "password")
    password = text(asked, "password", "")
    salt = os.urandom(RABBITMQ_SALT_BYTES)
    return answer({"ok": await asyncio.to_thread(hash_password_as_rabbitmq, password, salt)})


@router.api_route("/api/auth/hash_password/{password}", methods=READ)
async def refuse_password_in_address(caller: CallerHere, password: str) -> Response:  # noqa: ARG001
    """Not found, as in RabbitMQ 4: addresses are written to logs."""
    caller.require_administrator()
    raise not_found(INSTEAD)
