"""Rendering of templates."""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from leveret import __version__
from leveret.mgmt_ui.pages import formats
from leveret.mgmt_ui.pages.assets import DIRECTORY, Assets
from leveret.mgmt_ui.pages.celery import task_of
from leveret.mgmt_ui.pages.navigation import sections_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from leveret.mgmt_ui.pages.viewing import Viewer

__all__ = ["Renderer", "page", "renderer_of"]

THEME_COOKIE = "leveret_theme"
THEMES = frozenset({"light", "dark"})
RUN_SECONDS = 0.00005  # of a thread that renders, ...
REST_SECONDS = 0.001  # ... before it leaves the interpreter to the event loop for this time
# Threads for pages only, so that sign-ins do not wait behind them. They mostly sleep.
THREADS = ThreadPoolExecutor(8, "page")


class Renderer:
    """Renders templates. Names that a template lacks raise, as they are mistakes of ours."""

    def __init__(self, assets: Assets) -> None:
        self._environment = _environment()
        self._assets = assets

    def render(self, template: str, **values: Any) -> str:
        """Return the text of a page."""
        return self._environment.get_template(template).render(asset=self._assets.address, **values)


@functools.cache
def _environment() -> Environment:
    """Return the environment of the pages. A template is compiled at the first page that needs it.

    All of them take a second of the interpreter, which no node that starts spends at once.
    """
    environment = Environment(
        loader=FileSystemLoader(DIRECTORY.with_name("templates")),
        autoescape=True,  # for templates of any name
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=YieldingFinalizer(),
    )
    environment.filters.update({each.__name__: each for each in formats.FILTERS})
    environment.globals.update(
        celery_task=task_of,
        path=formats.path,
        with_query=formats.with_query,
        version=__version__,
    )
    return environment


class YieldingFinalizer:
    """Makes a rendering thread sleep now and then; called with each value that a page shows.

    A message that comes in needs the interpreter several times before it is on its way, and waits
    for this thread each time. So the thread is mostly asleep, and a page takes tens of milliseconds
    longer, which nobody sees.
    """

    def __init__(self) -> None:
        self._began = 0.0  # shared by threads: one sleeps for all

    def __call__(self, value: object) -> object:
        """Return the value, perhaps a millisecond later."""
        if time.perf_counter() - self._began > RUN_SECONDS:
            time.sleep(REST_SECONDS)
            self._began = time.perf_counter()
        return value


class Page(HTMLResponse):
    """Page that is rendered when it is sent, in a thread, as that takes milliseconds.

    So a template is given values that do not change, and no objects of the broker.
    """

    def __init__(self, render: Callable[[], str], status: int) -> None:
        super().__init__("", status)
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Render and send the page (see the ASGI specification)."""
        text = await asyncio.get_running_loop().run_in_executor(THREADS, self._render)
        self.body = text.encode()
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def renderer_of(request: Request) -> Renderer:
    """Return the renderer of the application."""
    renderer: Renderer = request.app.state.renderer
    return renderer


def page(
    request: Request,
    viewer: Viewer | None,
    template: str,
    *,
    status: int = 200,
    **values: Any,
) -> Page:
    """Return the answer that renders a template for a user, or for an unknown one (None).

    Every template is given the `viewer`, the `sections` of the navigation, the pending `notices`,
    and `address`, its own path. When htmx renews a part of a page, notices stay pending.
    """
    is_part = "hx-request" in request.headers
    theme = request.cookies.get(THEME_COOKIE, "")
    render = functools.partial(
        renderer_of(request).render,
        template,
        viewer=viewer,
        node=request.app.state.node,
        sections=sections_for(viewer.caller) if viewer is not None else [],
        notices=[] if viewer is None or is_part else viewer.session.take_notices(),
        csrf_token=viewer.session.csrf_token if viewer is not None else "",
        address=request.url.path,
        theme=theme if theme in THEMES else "",
        **values,
    )
    return Page(render, status)
