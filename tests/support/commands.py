"""Command lines of ours as documents show them: would the command line take them?"""

from __future__ import annotations

import shlex
from itertools import takewhile

import typer.main

from leveret.cli.app import app

REDIRECTIONS = {"|", ">", ">>", "<", "&&", ";", "#"}


def words_of(line: str) -> list[str]:
    """The words behind `leveret`, up to what is the shell's business."""
    words = shlex.split(line, comments=True)
    assert words[0] == "leveret", line
    return list(takewhile(lambda word: word not in REDIRECTIONS, words[1:]))


def check_command(line: str) -> None:
    """Parse `leveret …` as the command would, and run nothing. Raises what the parser raises."""
    command, name, context = typer.main.get_command(app), "leveret", None
    words = words_of(line)
    while True:
        context = command.make_context(name, words, parent=context)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, rest)


def check_mention(line: str) -> None:
    """`leveret …` in a sentence may lack its arguments; its words and options must exist.

    `leveret backup create|list` mentions two commands.
    """
    command = typer.main.get_command(app)
    words = words_of(line)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        names = words.pop(0).split("|")
        assert set(names) <= set(command.commands), line
        command = command.commands[names[0]]
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    options |= {"--help", "--version"}
    for word in words:
        assert not word.startswith("--") or word.partition("=")[0] in options, (line, word)
