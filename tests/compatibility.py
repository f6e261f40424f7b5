"""Tests by the demand of compatibility that they show, gathered from marks without running.

`python -m tests.compatibility` (make docs) writes docs/compatibility.md. The test files are parsed,
not imported, for the clients that interop_tests/ needs are not installed everywhere.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent
DEMANDS = REPOSITORY / "docs" / "compatibility.toml"
DOCUMENT = REPOSITORY / "docs" / "compatibility.md"
MARK = "covers"
SUITES = ("tests", "interop_tests")

INTRODUCTION = """\
# Compatibility

What applications written for RabbitMQ rely on, what Leveret promises beyond that, and the tests
that show it. `make docs` writes this page from `compatibility.toml` and from the tests marked
`@pytest.mark.covers("B-001")`; `make test` fails when a line has neither a test nor a reason.
Conversations under `interop_tests/differential` are held with RabbitMQ as well, and must read the
same.
"""


@dataclass(frozen=True)
class Compatibility:
    """The contents of docs/compatibility.toml."""

    demands: dict[str, dict[str, str]]
    """Section → id → what is demanded."""
    notes: dict[str, str]
    absent: dict[str, str]

    @classmethod
    def load(cls) -> Compatibility:
        return cls(**tomllib.loads(DEMANDS.read_text("utf-8")))

    @property
    def ids(self) -> list[str]:
        return [name for section in self.demands.values() for name in section]

    def problems(self, shown: dict[str, list[str]]) -> list[str]:
        """Return the mistakes in the marks or the file, in words; empty when all is well."""
        known = set(self.ids)
        named = [*shown, *self.notes, *self.absent]
        return [
            *(f"{name}: no such id in {DEMANDS.name}" for name in named if name not in known),
            *(
                f"{name}: neither a test nor a reason why there is none"
                for name in self.ids
                if name not in shown and name not in self.absent
            ),
            *(
                f"{name}: stands under [absent] and has a test: {shown[name][0]}"
                for name in self.absent
                if name in shown
            ),
        ]

    def document(self, shown: dict[str, list[str]]) -> str:
        """The text of docs/compatibility.md."""
        lines = [INTRODUCTION]
        for section, demands in self.demands.items():
            lines += [f"## {section}", "", "| id | demand | shown by |", "|---|---|---|"]
            lines += [self._row(name, demand, shown) for name, demand in demands.items()]
            lines.append("")
        return "\n".join(lines)

    def _row(self, name: str, demand: str, shown: dict[str, list[str]]) -> str:
        said = f"{demand}. *{self.notes[name]}.*" if name in self.notes else demand
        evidence = (
            by_file(shown[name]) if name in shown else f"not here: {self.absent.get(name, '')}"
        )
        return f"| {name} | {said} | {evidence} |"


def by_file(tests: list[str]) -> str:
    """`file::one`, `two`: tests of one file behind its name."""
    files: dict[str, list[str]] = {}
    for file, name in (test.split("::") for test in tests):
        files.setdefault(file, []).append(name)
    return "<br>".join(
        f"{file}::" + ", ".join(f"`{name}`" for name in names) for file, names in files.items()
    )


def marked_tests() -> dict[str, list[str]]:
    """Id → `file::function` of every function that is marked with it, in the order of the files."""
    shown: dict[str, list[str]] = {}
    for suite in SUITES:
        for path in sorted((REPOSITORY / suite).rglob("*.py")):
            for function, name in marks(ast.parse(path.read_text("utf-8"))):
                test = f"{path.relative_to(REPOSITORY)}::{function}"
                tests = shown.setdefault(name, [])
                if test not in tests:
                    tests.append(test)
    return shown


def marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in function.decorator_list:  # parametrize may carry marks inside
                yield from ((function.name, name) for name in _ids(decorator))


def _ids(decorator: ast.expr) -> Iterator[str]:
    for node in ast.walk(decorator):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{MARK}":
            yield from (str(ast.literal_eval(argument)) for argument in node.args)


def main() -> None:
    """Write docs/compatibility.md."""
    DOCUMENT.write_text(Compatibility.load().document(marked_tests()), "utf-8")


if __name__ == "__main__":
    main()
