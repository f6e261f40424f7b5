from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from leveret.cli.options import with_options_of


@dataclass(frozen=True)
class Colours:
    red: Annotated[int, typer.Option(min=0, help="How red.")] = 1
    names: Annotated[list[str] | None, typer.Option(help="What it is called.")] = None


@dataclass(frozen=True)
class Paint(Colours):
    gloss: Annotated[bool, typer.Option(help="Whether it shines.")] = False


def run(*arguments):
    seen = {}
    app = typer.Typer()

    @app.command()
    @with_options_of(Paint)
    def paint(*, wall: Annotated[str, typer.Option()] = "north", **options: Any) -> None:
        seen.update(options, wall=wall, paint=Paint(**options))

    result = CliRunner().invoke(app, list(arguments))
    return seen, result


def test_fields_of_the_class_and_of_its_bases_are_options():
    seen, _ = run("--red", "5", "--names", "a", "--names", "b", "--gloss", "--wall", "east")
    assert seen == {
        "red": 5,
        "names": ["a", "b"],
        "gloss": True,
        "wall": "east",
        "paint": Paint(5, ["a", "b"], True),
    }


def test_defaults_are_the_fields_defaults():
    assert run()[0]["paint"] == Paint()


def test_what_the_annotation_forbids_is_refused():
    assert run("--red", "-1")[1].exit_code == 2
