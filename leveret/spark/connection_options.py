"""Options that say how the broker is reached, of tables that are read, consumed and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from leveret.spark.option_reader import OptionError

if TYPE_CHECKING:
    from leveret.spark.option_reader import OptionReader

__all__ = ["ConnectionOptions", "read_connection"]

DEFAULT_PORT: Final = 15672
RETRY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How the broker is reached. `servers` are URLs of management ports, tried in turn."""

    servers: tuple[str, ...]
    user: str
    password: str = field(repr=False)
    vhost: str
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    retry_timeout_s: float


def read_connection(options: OptionReader) -> ConnectionOptions:
    """Return how the broker is reached. Raises OptionError."""
    servers = options.needed("servers", "HOST:PORT of the management port, several with commas")
    password, path = options.text("password"), options.text("passwordFile")
    if password is not None and path is not None:
        raise OptionError("both 'password' and 'passwordFile' are given: one must do")
    if path is not None:
        try:
            password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"the file of option 'passwordFile' cannot be read: {error}"
            ) from None
    cert, key = options.text("tlsCertFile"), options.text("tlsKeyFile")
    if key is not None and cert is None:
        raise OptionError("option 'tlsKeyFile' is given, and 'tlsCertFile' is missing")
    return ConnectionOptions(
        servers=tuple(_url(each.strip()) for each in servers.split(",")),
        user=options.text("user", "guest") or "guest",
        password="guest" if password is None else password,
        vhost=options.text("vhost", "/") or "/",
        ca_file=options.text("tlsCaFile"),
        cert_file=cert,
        key_file=key,
        retry_timeout_s=options.duration_s("retryTimeout", RETRY_TIMEOUT_S),
    )


def _url(server: str) -> str:
    place = urlsplit(server if "://" in server else f"http://{server}")
    try:
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if place.scheme not in {"http", "https"} or not host or place.path.strip("/") or place.query:
        raise OptionError(f"option 'servers' has '{server}', which is no HOST:PORT and no URL")
    if place.username is not None or place.password is not None:
        raise OptionError("option 'servers' has a password: it belongs in 'user' and 'password'")
    host = f"[{host}]" if ":" in host else host
    return f"{place.scheme}://{host}:{port or DEFAULT_PORT}"
