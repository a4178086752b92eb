"""A name means one thing: no class name twice, no public constant with two values, and no private function name in more
than three files.

`SHARED` are private names that are still in more files. The list only shrinks: each count is exact.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernmill", "compiler", "ir", "renderers", "runtime")
MOST_FILES = 3
SHARED: dict[str, int] = {
    "_checked": 7,
    "_memory": 5,
    "_product": 5,
    "_read": 7,
    "_run": 5,
    "_shown": 6,
    "_stored": 5,
    "_tensor": 5,
    "_tiled": 5,
    "_walk": 5,
}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node: an expression holds none."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


@cache
def definitions() -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    """Return the files of each class name, and of each private function name."""
    classes: dict[str, list[str]] = defaultdict(list)
    functions: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(name)
                elif isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.startswith("__"):
                    functions[node.name].add(name)
    return classes, functions


def test_no_class_name_is_defined_twice() -> None:
    classes, _ = definitions()
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_no_private_function_name_is_in_more_than_three_files() -> None:
    _, functions = definitions()
    found = {name: len(files) for name, files in functions.items() if len(files) > MOST_FILES}
    assert {name: count for name, count in found.items() if count > SHARED.get(name, MOST_FILES)} == {}
    assert {name: count for name, count in SHARED.items() if count > found.get(name, MOST_FILES)} == {}


def constants(path: Path) -> Iterator[tuple[str, str]]:
    """Return the public constants of a module that are numbers or strings, each with its value as it is written."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(value := getattr(node, "value", None), (ast.Constant, ast.BinOp, ast.UnaryOp)):
            yield from ((name, ast.unparse(value)) for name in names if name.isupper() and name[0] != "_")


def test_no_public_constant_has_two_values() -> None:
    values: dict[str, set[str]] = defaultdict(set)
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for name, value in constants(path):
            values[name].add(value)
    assert {name: found for name, found in values.items() if len(found) > 1} == {}
