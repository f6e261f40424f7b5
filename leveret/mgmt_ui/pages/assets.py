"""Static files of the pages: own style and script, and vendored htmx and uPlot.

Each has an address with a digest of its content: browsers may cache it for ever, and a new version
has another address. They are read once, at the start, and are public.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Response
from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from fastapi import Request

__all__ = ["PREFIX", "Assets"]

PREFIX = "/static/"
DIRECTORY = Path(__file__).with_name("static")
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOR_EVER = "public, max-age=31536000, immutable"
DIGEST_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed."""

    digest: str
    media_type: str
    plain: bytes
    packed: bytes


class Assets:
    """All files by name: `leveret.css`, `vendor/htmx-2.0.11.min.js`. Reads them when made."""

    def __init__(self) -> None:
        self._by_name = {
            file.relative_to(DIRECTORY).as_posix(): _load(file)
            for file in sorted(DIRECTORY.rglob("*"))
            if file.suffix in MEDIA_TYPES
        }

    def address(self, name: str) -> str:
        """Return the address of a file. An unknown name, a template's mistake, raises KeyError."""
        return f"{PREFIX}{self._by_name[name].digest}/{name}"

    def answer(self, request: Request, digest: str, name: str) -> Response:
        """Return the file, or 304. Raises HTTPException 404, also for old digests."""
        asset = self._by_name.get(name)
        if asset is None or asset.digest != digest:
            raise HTTPException(404)
        headers = {
            "cache-control": FOR_EVER,
            "etag": f'"{asset.digest}"',
            "vary": "accept-encoding",
        }
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(asset.packed, headers=headers, media_type=asset.media_type)
        return Response(asset.plain, headers=headers, media_type=asset.media_type)


def _load(file: Path) -> Asset:
    plain = file.read_bytes()
    digest = hashlib.sha256(plain).hexdigest()[:DIGEST_DIGITS]
    return Asset(digest, MEDIA_TYPES[file.suffix], plain, gzip.compress(plain, mtime=0))
