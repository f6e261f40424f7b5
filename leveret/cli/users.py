"""`leveret user …`: users, passwords and tags."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from leveret.cli.group import Group, with_json
from leveret.cli.output import show_done, show_json
from leveret.cli.session import PasswordStdin, as_json, ask, fail, read_password

__all__ = ["app", "hash_password"]

app = Group("Users, their passwords and tags.")

ADMINISTRATOR = "administrator"

Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask, even if it is the last administrator.")
]
Name = Annotated[str, typer.Argument(help="The user's name.")]
Tags = Annotated[
    list[str], typer.Option("--tag", help="A tag, such as administrator; may be repeated.")
]


PasswordHash = Annotated[
    str | None,
    typer.Option(
        "--password-hash", help="Hash of the password, in the format of RabbitMQ's definitions."
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--hashing-algorithm",
        help="How the hash was made.  [default: rabbit_password_hashing_sha256]",
    ),
]


@app.command("add")
def add(
    name: Name,
    tag: Tags = [],  # noqa: B006  # read, never changed
    password_stdin: PasswordStdin = False,
    password_hash: PasswordHash = None,
    hashing_algorithm: Algorithm = None,
) -> None:
    """Add a user; the password is asked for, or is the first line of standard input.

    `--tag administrator` lets the user sign in to the web UI and change everything.
    `leveret permission set` sets what the user may do as a client.
    """
    secret = _secret(password_stdin, password_hash, hashing_algorithm)
    ask("user.add", name=name, tags=tag, **secret)
    show_done(f"user '{name}' was added")


@app.list("user.list", ["name", "tags"])
def list_() -> None:
    """Show all users and their tags."""


@app.command("delete")
def delete(name: Name, yes: Yes = False) -> None:
    """Delete a user and its permissions."""
    _confirm_last_administrator(name, yes=yes)
    ask("user.delete", name=name)
    show_done(f"user '{name}' was deleted")


@app.command("set-password")
def set_password(
    name: Name,
    password_stdin: PasswordStdin = False,
    password_hash: PasswordHash = None,
    hashing_algorithm: Algorithm = None,
) -> None:
    """Replace a user's password."""
    secret = _secret(password_stdin, password_hash, hashing_algorithm)
    ask("user.set_password", name=name, **secret)
    show_done(f"the password of user '{name}' was replaced")


@app.command("set-tags", also=("set",))
def set_tags(
    name: Name,
    tag: Annotated[
        list[str] | None, typer.Argument(help="All tags of the user; none removes them.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Replace a user's tags."""
    if ADMINISTRATOR not in (tag or ()):
        _confirm_last_administrator(name, yes=yes)
    ask("user.set_tags", name=name, tags=tag or [])
    show_done(f"the tags of user '{name}' were replaced")


def _confirm_last_administrator(name: str, *, yes: bool) -> None:
    """Ask for confirmation before the last administrator is removed."""
    administrators = [row["name"] for row in ask("user.list") if ADMINISTRATOR in row["tags"]]
    if yes or administrators != [name]:
        return
    warning = (
        f"user '{name}' is the last administrator: without it nobody can sign in to the web UI"
    )
    if not sys.stdin.isatty():
        fail(f"{warning}; add another one before, or state --yes")
    typer.confirm(f"{warning}. Go on?", abort=True, err=True)


@with_json
def hash_password(password_stdin: PasswordStdin = False) -> None:
    """Print the hash of a password in the format of RabbitMQ's definitions (salted SHA-256)."""
    from leveret.core.access.passwords import RABBITMQ_SALT_BYTES, hash_password_as_rabbitmq

    password = read_password(password_stdin)
    if not password:
        fail("a password cannot be blank")
    made = hash_password_as_rabbitmq(password, os.urandom(RABBITMQ_SALT_BYTES))
    algorithm = "rabbit_password_hashing_sha256"
    row = {"password_hash": made, "hashing_algorithm": algorithm}
    if as_json():
        show_json(row)
    else:
        typer.echo(made)


def _secret(
    password_stdin: bool, password_hash: str | None, hashing_algorithm: str | None
) -> dict[str, str | None]:
    """Return the hash if one was given, else the password from prompt or standard input."""
    if password_hash is None:
        return {"password": read_password(password_stdin)}
    return {"password_hash": password_hash, "hashing_algorithm": hashing_algorithm}
