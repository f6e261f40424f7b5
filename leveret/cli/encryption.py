"""`leveret encryption …`: encryption at rest and its keys."""

from __future__ import annotations

from pathlib import Path  # read when the command is built
from typing import Annotated, Any

import typer

from leveret.cli.group import JSON, KEYS, Group
from leveret.cli.listing import Listing, show_list, whole
from leveret.cli.options import with_options_of
from leveret.cli.output import iso, show_done
from leveret.cli.session import InVhost, ask, fail
from leveret.errors import LeveretError

__all__ = ["app"]

app = Group("Encryption at rest.")

COLUMNS = ["vhost", "key", "state", "created", "segments", "removable"]

OfVhost = Annotated[str, typer.Option("--vhost", help="The virtual host's name.")]


@app.command("status", common=KEYS)
@with_options_of(Listing)
def status(
    *,
    vhost: InVhost = None,
    **options: Any,
) -> None:
    """Show the keys, and how many segments use each; `plain` segments are not encrypted."""
    rows = ask("encryption.status", vhost=vhost)
    show_list(whole([_readable(row) for row in rows]), COLUMNS, options)


@app.command("enable", common=KEYS)
def enable(
    vhost: OfVhost,
) -> None:
    """Encrypt new messages; stored ones stay as they are until they are deleted."""
    begun = ask("encryption.enable", vhost=vhost)
    show_done(f"vhost '{vhost}' is {'' if begun else 'already '}encrypted")


@app.command("disable", common=KEYS)
def disable(
    vhost: OfVhost,
) -> None:
    """Stop encrypting new messages; keys stay while stored messages need them."""
    ended = ask("encryption.disable", vhost=vhost)
    show_done(f"vhost '{vhost}' is {'no longer' if ended else 'not'} encrypted")


@app.change(
    "rotate",
    "encryption.rotate",
    "vhost '{vhost}' is encrypted with the new key {result} from now on",
    common=KEYS,
)
def rotate(vhost: OfVhost) -> None:
    """Encrypt new messages with a new key."""


@app.command("rotate-master", common=KEYS)
def rotate_master(
    new_key_file: Annotated[
        Path, typer.Option("--new-key-file", help="File with the new master key.")
    ],
) -> None:
    """Replace the master key; name its file in encryption_key_file before the next start."""
    file = new_key_file.absolute()
    ask("encryption.rotate_master", new_key_file=str(file))
    show_done(
        f"{file} holds the master key from now on: name it in encryption_key_file before the "
        "next start, and keep the old one for as long as backups need it"
    )


@app.command("generate-key", common=JSON)
def generate_key(file: Annotated[Path, typer.Argument(help="The file to create.")]) -> None:
    """Create a master key in a new file that only you may read."""
    from leveret.storage.master_key import generate_master_key_file

    try:
        made = generate_master_key_file(file)
    except LeveretError as error:
        fail(str(error))
    show_done(
        f"{file} holds the new master key {made.fingerprint}: keep a copy where the data is not"
    )


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    created = row.pop("created_ms")
    return {**row, "created": "" if created is None else iso(created)}
