"""The text of `--help` of every command."""

import re
import sys
from inspect import unwrap

import pytest
import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.testing import CliRunner

from leveret.cli import spark
from leveret.cli.app import app
from leveret.config import Configuration
from leveret.spark.jobs.runner import main as run_job
from tests.support.command_line import run_here


def commands(command, path=()):
    """Every command, with the words that are typed for it."""
    if isinstance(command, TyperGroup):
        for name in command.commands:
            yield from commands(command.commands[name], (*path, name))
    else:
        yield path, command


COMMANDS = dict(commands(typer.main.get_command(app)))
EVERY = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


@pytest.fixture(autouse=True)
def jobs_run_here(monkeypatch):
    """Have Spark's jobs tell their help here; test_spark.py has one tell it in its process."""
    here = run_here(lambda words: run_job(words, sys.stdout))
    monkeypatch.setattr(spark, "subprocess", here)


def printed_help(*path, columns=200, color=False):
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(columns)}, color=color)
    assert result.exit_code == 0
    return result.output


def help_of(*path):
    return " ".join(printed_help(*path).split())


def test_the_root_lists_every_command():
    shown = help_of()
    for path in COMMANDS:
        assert f" {path[0]} " in shown


@EVERY
def test_each_default_is_shown(path):
    shown = help_of(*path)
    for option in COMMANDS[path].params:
        if isinstance(option, TyperOption) and not option.is_flag and option.default is not None:
            value = getattr(option.default, "value", option.default)
            found = re.search(rf" {option.opts[0]} [^\[]*\[([^\]]*)\]", shown)
            assert value in ("", []) or f"default: {value}" in found[1], option.opts


@EVERY
def test_arguments_are_written_in_capitals_and_flags_want_no_value(path):
    shown = help_of(*path)
    usage, _, rest = shown.partition("Options:")
    for each in COMMANDS[path].params:
        if isinstance(each, TyperArgument):
            name = each.name.rstrip("_").replace("_", "-").upper()
            assert name in usage
            assert f"{{{each.name}}}" not in usage
        elif isinstance(each, TyperOption):
            assert not re.search(rf" {each.opts[0]} <", rest), each.opts


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("color", [False, True], ids=["piped", "terminal"])
def test_help_shows_no_markup(columns, color):
    groups = {path[:length] for path in COMMANDS for length in range(len(path))}
    for path in sorted({*COMMANDS, *groups}):
        shown = printed_help(*path, columns=columns, color=color)
        assert not re.search(r"\\\[|\[/|\x1b", shown), path


def test_the_settings_of_serve_are_shown_with_their_defaults():
    shown = help_of("serve")
    defaults = Configuration()
    for name in ("data_dir", "host", "port", "http_port", "prometheus_port", "durability"):
        option = shown.partition(f" --{name.replace('_', '-')} ")[2].partition(" --")[0]
        value = getattr(defaults, name)
        assert f"[default: {getattr(value, 'value', value)}]" in option, name


def test_who_asks_a_node_can_bound_the_wait():
    assert "--timeout SECONDS" in help_of("queue", "list")
    assert "--timeout" not in help_of("serve")
    wrong = CliRunner().invoke(app, ["queue", "list", "--timeout", "0"])
    assert wrong.exit_code == 2
    assert "above 0" in wrong.output


@pytest.mark.parametrize("path", [path for path in COMMANDS if path[-1] == "clear"], ids=" ".join)
def test_what_is_cleared_can_be_deleted_too(path):
    """rabbitmqctl clears some things and deletes others, and nobody remembers which."""
    other = COMMANDS[(*path[:-1], "delete")]
    assert other.hidden
    assert unwrap(other.callback) is unwrap(COMMANDS[path].callback)
