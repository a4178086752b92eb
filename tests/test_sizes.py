"""Limits on size and shape, so that a file fits in a head. An exception stands here with its reason."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ("compiler", "ir", "renderers", "runtime")
FOLDERS = (*CORE, "kernmill", "tests", "examples", "bench", "tools")

FILE_LINES = 600  # non-blank
FUNCTION_LINES = 60  # non-blank, without the docstring
NESTING = 4  # of if, for, while, with, try and match; class and def do not count
PARAMETERS = 7  # without self and cls
PUBLIC_METHODS = 30  # of a class, properties included
FOLDER_LINES: dict[str, tuple[int, str]] = {  # non-blank lines of a folder, and what raised the budget last
    "ir": (4_010, "rows of machines; a node that waits; rates of products and columns of long rows"),
    "compiler": (11_370, "which rows of a product are long; loops that a number in memory ends"),
    "renderers": (2_235, "matrix units of NVIDIA and AMD as LLVM IR; masks that a machine drops"),
    "runtime": (12_402, "HTP: refused or ended; one plan for large batches; imports at first use; graphs that grow"),
}

# What may be longer, and why. Tables and rule lists are read by looking up a row, not from top to bottom.
LONG_FILES: dict[str, str] = {
    "ir/ops.py": "the op table: one row an op",
}
LONG_FILE_FOLDERS: dict[str, str] = {
    "ir/algebra/": "rule lists: one line a rule",
}
LONG_FUNCTIONS: dict[str, str] = {}
DEEP_FUNCTIONS: dict[str, str] = {}
MANY_PARAMETERS: dict[str, str] = {
    "kernmill/data/loader.py:DataLoader.__init__": "PyTorch's arguments",
    "kernmill/nn/layers.py:_Conv.__init__": "PyTorch's arguments",
    "kernmill/nn/layers.py:ConvTranspose2d.__init__": "PyTorch's arguments",
    "kernmill/nn/recurrent.py:Recurrent.__init__": "PyTorch's arguments",
    "kernmill/nn/transformer.py:Transformer.__init__": "PyTorch's arguments",
    "kernmill/nn/transformer.py:TransformerDecoderLayer.__init__": "PyTorch's arguments",
    "kernmill/nn/transformer.py:TransformerEncoderLayer.__init__": "PyTorch's arguments",
}
MANY_PARAMETER_FOLDERS: dict[str, str] = {
    "kernmill/onnx/operators/": "a row of ONNX's table: inputs and attributes of the standard",
    "kernmill/torch_backend/": "a row of ATen's table: its arguments in their order",
}
LARGE_CLASSES: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def line_count(path: Path) -> int:
    """Non-blank lines."""
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Every function and class below a node, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):  # an expression holds no statement
            yield from definitions(child, prefix)


def function_lines(function: Function, lines: list[str]) -> int:
    """Non-blank lines from `def` to the end, without the docstring."""
    count = sum(1 for line in lines[function.lineno - 1 : function.end_lineno] if line.strip())
    if ast.get_docstring(function) is not None:
        text = function.body[0]
        count -= sum(1 for line in lines[text.lineno - 1 : text.end_lineno] if line.strip())
    return count


def nesting(node: ast.AST) -> int:
    """How deep blocks stand in blocks; an `elif` is as deep as its `if`, a function inside starts again."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def parameters(function: Function) -> int:
    """Named parameters, without self and cls."""
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(1 for parameter in named if parameter.arg not in ("self", "cls"))


def public_methods(node: ast.ClassDef) -> int:
    """Methods and properties that a user sees."""
    return len({item.name for item in node.body if isinstance(item, Function) and not item.name.startswith("_")})


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def function_figures(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """For each function: its name, lines, nesting, parameters."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for name, node in definitions(tree(path)):
        if not isinstance(node, ast.ClassDef):
            yield f"{name_of(path)}:{name}", function_lines(node, lines), nesting(node), parameters(node)


@cache
def all_figures() -> list[tuple[str, int, int, int]]:
    """The figures of every function."""
    return [figures for path in SOURCES for figures in function_figures(path)]


def test_files_are_short() -> None:
    lines = {name_of(path): line_count(path) for path in SOURCES}
    excused = tuple(LONG_FILE_FOLDERS)
    assert {
        name: count
        for name, count in lines.items()
        if count > FILE_LINES and name not in LONG_FILES and not name.startswith(excused)
    } == {}


def test_functions_are_short() -> None:
    assert {
        name: lines for name, lines, _, _ in all_figures() if lines > FUNCTION_LINES and name not in LONG_FUNCTIONS
    } == {}


def test_functions_are_shallow() -> None:
    assert {name: depth for name, _, depth, _ in all_figures() if depth > NESTING and name not in DEEP_FUNCTIONS} == {}


def test_functions_take_few_parameters() -> None:
    excused = tuple(MANY_PARAMETER_FOLDERS)
    assert {
        name: count
        for name, _, _, count in all_figures()
        if count > PARAMETERS and name not in MANY_PARAMETERS and not name.startswith(excused)
    } == {}


def test_classes_have_few_public_methods() -> None:
    found = {
        f"{name_of(path)}:{name}": public_methods(node)
        for path in SOURCES
        for name, node in definitions(tree(path))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in found.items() if count > PUBLIC_METHODS and name not in LARGE_CLASSES} == {}


@pytest.mark.parametrize("folder", CORE)
def test_a_folder_keeps_its_budget(folder: str) -> None:
    most, reason = FOLDER_LINES[folder]
    assert reason
    assert sum(line_count(path) for path in SOURCES if name_of(path).startswith(f"{folder}/")) <= most


def test_exceptions_are_still_needed_and_have_a_reason() -> None:
    places = {name for name, *_ in all_figures()} | {name_of(path) for path in SOURCES}
    excused = {**LONG_FILES, **LONG_FUNCTIONS, **DEEP_FUNCTIONS, **MANY_PARAMETERS}
    assert [name for name in excused if name not in places and (ROOT / name.split(":")[0]).exists()] == []
    assert all(
        (*excused.values(), *LARGE_CLASSES.values(), *LONG_FILE_FOLDERS.values(), *MANY_PARAMETER_FOLDERS.values())
    )


def test_import_loads_nothing_heavy() -> None:
    """`import kernmill` is quick because these come when they are used."""
    heavy_ones = "{'llvmlite', 'numpy', 'torch'}"
    code = f"import sys, kernmill; print(hasattr(kernmill, 'Tensor'), *{heavy_ones} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    has_tensor, *heavy = run.stdout.split()
    assert heavy == []
    if has_tensor == "False":
        pytest.skip("kernmill has no Tensor yet, so its import says little")


SAMPLE: str = '''
def long(self, a, b, *, c):
    """Two lines
    of docstring."""
    if a:
        pass
    elif b:
        for x in c:
            def inner():
                while True:
                    pass

            with x:
                pass
    else:
        pass
'''


def test_the_measures_measure() -> None:
    function = next(node for _, node in definitions(ast.parse(SAMPLE)) if not isinstance(node, ast.ClassDef))
    assert (function_lines(function, SAMPLE.splitlines()), nesting(function), parameters(function)) == (12, 3, 3)
