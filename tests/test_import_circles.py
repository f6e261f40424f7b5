"""No more than three modules import each other in a circle, imports for types included."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MEMBERS_MAX = 3
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}
IN_COMPILED = re.compile(r"^\s*from (leveret[\w.]*) c?import (\([^)]*\)|.*)", re.MULTILINE)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name in it), the name empty where the module itself is imported."""
    if path.suffix not in (".py", ".pyi"):
        for module, names in IN_COMPILED.findall(path.read_text()):
            yield from ((module, name) for name in re.findall(r"\w+", names))
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def import_graph() -> dict[str, set[str]]:
    files = [path for path in (ROOT / "leveret").rglob("*.p*") if path.suffix in SUFFIXES]
    graph: dict[str, set[str]] = {module_name(path): set() for path in files}
    for path in files:
        importer = module_name(path)
        for module, name in imported(path):
            submodule = f"{module}.{name}"
            graph[importer].add(submodule if submodule in graph else module)
    return {importer: (found & graph.keys()) - {importer} for importer, found in graph.items()}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        walk(graph, start, seen, order)
    importers: dict[str, set[str]] = {module: set() for module in graph}
    for importer, modules in graph.items():
        for module in modules:
            importers[module].add(importer)
    found, seen = [], set()
    for start in reversed(order):
        members: list[str] = []
        walk(importers, start, seen, members)
        if len(members) > 1:
            found.append(set(members))
    return found


def walk(graph: dict[str, set[str]], start: str, seen: set[str], left: list[str]) -> None:
    """Visit what is reachable and not seen, and append each module to `left` when it is left."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(sorted(graph[start])))]
    while path:
        module, following = path[-1]
        entered = next((other for other in following if other not in seen), None)
        if entered is None:
            left.append(module)
            path.pop()
        else:
            seen.add(entered)
            path.append((entered, iter(sorted(graph[entered]))))


def test_modules_import_each_other_in_small_circles_only():
    assert not [sorted(circle) for circle in circles(import_graph()) if len(circle) > MEMBERS_MAX]


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"f", "a"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d", "e"]]
