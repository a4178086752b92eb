"""Who may import whom: the arrows of docs/layout.md, read from the sources with `ast`, nothing installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INNER = ("compiler", "ir", "renderers", "runtime")
ARROWS: dict[str, tuple[str, ...]] = {
    "ir": (),
    "renderers": ("ir",),
    "compiler": ("ir",),
    "runtime": ("ir", "compiler", "renderers"),
    "kernmill": INNER,
}
USES: dict[str, tuple[str, ...]] = {  # inside kernmill/, from the bottom up; what has no row uses anything but commands
    "size": (),
    "variable": ("arguments",),
    "synonyms": (),
    "arguments": ("size", "synonyms"),
    "views": (),
    "lazy": ("arguments", "size", "synonyms", "views"),
    "methods": ("arguments", "lazy", "size", "views"),
    "autograd": ("lazy", "methods"),
    "autocasting": ("lazy",),
    "deferred": ("lazy",),
    "numpy_calls": ("lazy",),
    "recorded": ("autocasting", "deferred", "lazy"),
    "tensor_html": (),
    "tensor": (
        "autocasting",
        "autograd",
        "lazy",
        "methods",
        "deferred",
        "numpy_calls",
        "recorded",
        "size",
        "synonyms",
        "tensor_html",
        "variable",
        "views",
    ),
    "captures": ("autocasting", "lazy", "methods", "size", "tensor", "variable", "views"),
}
FOR_ARCHITECTURES = ("kernmill", "kernmill.quant", "kernmill.formats.quoting")  # the last words their sentences
OUTSIDE = ("tests", "tools", "bench")  # anything, but through the faces
FACES = ("kernmill", "kernmill.llm", "kernmill.quantize")  # what the how-to pages tell users to import
BY_ACCIDENT = ("tests", "docs", "examples", "tools", "kernmill")  # below kernmill in a checkout only
COMMAND_LINE = ("kernmill/__main__.py", "kernmill/commands/cli.py")  # a subcommand is imported when it is called
LAZY_THIRD_PARTY = {("ir/evaluate.py", "numpy")}  # inside functions only


@dataclass(frozen=True)
class Import:
    """One import statement: `module` is absolute, whatever the source says."""

    line: int
    module: str
    names: tuple[str, ...]  # of `from module import names`, else empty
    is_relative: bool
    lazy: str  # "", "a function" or "TYPE_CHECKING"

    @property
    def parts(self) -> list[str]:
        return self.module.split(".")

    @property
    def is_ours(self) -> bool:
        return self.parts[0] == "kernmill"

    def folders(self) -> set[str]:
        """Which of our five folders it reaches."""
        if len(self.parts) > 1:
            return {self.parts[1] if self.parts[1] in INNER else "kernmill"}
        return {name if name in INNER else "kernmill" for name in self.names} or {"kernmill"}

    def devices(self) -> set[str]:
        """Device modules among what it names."""
        return {word for word in (*self.parts, *self.names) if word.startswith("ops_")}


def package_of(file: str) -> list[str]:
    """The package a file stands in: ir/algebra/float.py -> kernmill, ir, algebra."""
    parts = file.split("/")[:-1]
    return parts if parts[0] not in INNER else ["kernmill", *parts]


def imports_of(source: str, file: str) -> Iterator[Import]:
    """Every import statement of a file, with where it stands."""
    yield from _imports_in(ast.parse(source, file), package_of(file), "")


def _imports_in(node: ast.AST, package: list[str], lazy: str) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, (), False, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = package[: len(package) - child.level + 1] if child.level else []
            module = ".".join([*above, *(child.module.split(".") if child.module else [])])
            yield Import(child.lineno, module, tuple(alias.name for alias in child.names), child.level > 0, lazy)
        elif isinstance(child, ast.expr):  # an expression holds no statement
            continue
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports_in(child, package, "a function")
        elif isinstance(child, ast.With) and lazy and "before_forks" in ast.unparse(child.items[0]):
            yield from _imports_in(child, package, "before_forks")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports_in(child, package, lazy or "TYPE_CHECKING")
        else:
            yield from _imports_in(child, package, lazy)


# --- the rules: each yields sentences --------------------------------------------------------------------------------
def anywhere(found: Import) -> Iterator[str]:
    """Rules for every file of the repository."""
    if not found.is_relative and found.parts[0] in INNER:
        yield f"import kernmill.{found.module}, not {found.module}: the bare name would load a second copy"
    below = found.parts[1:2] or list(found.names)
    if found.is_ours and (bad := [name for name in below if name in BY_ACCIDENT]):
        yield f"kernmill.{bad[0]} exists in a checkout by accident: nobody imports it"


def through_the_face(found: Import) -> Iterator[str]:
    """Between folders: `from kernmill.ir import X`, never from a module inside."""
    if found.is_ours and len(found.parts) > 2 and found.parts[1] in INNER:
        yield f"import from kernmill.{found.parts[1]}, not from its inside ({found.module})"


def full_name(folder: str) -> str:
    """The package that a folder is."""
    return folder if folder == "kernmill" else f"kernmill.{folder}"


def arrows(found: Import, file: str) -> Iterator[str]:
    """Which folder may use which."""
    here = file.split("/")[0]
    allowed = ARROWS[here]
    for folder in sorted(found.folders() - {here}):
        if folder not in allowed:
            names = ", ".join(f"kernmill.{name}" for name in allowed) or "nothing of ours"
            yield f"{here}/ may not import {full_name(folder)} (allowed: {names})"
        elif found.is_relative:
            yield f"between folders write `from kernmill.{folder} import ...`"
        else:
            yield from through_the_face(found)
    from_below = file.count("/") > 1 and found.module == "kernmill"  # kernmill/llm/x.py uses kernmill as a user does
    if here in found.folders() and not found.is_relative and not from_below:
        yield "inside a folder imports are relative"
    is_public = found.module in FOR_ARCHITECTURES or found.module.startswith("kernmill.llm.arch")
    if file.startswith("kernmill/llm/arch/") and not is_public:
        yield "kernmill/llm/arch/ may import kernmill only: an architecture is written with what every user has"


def inside_the_front(found: Import, file: str) -> Iterator[str]:
    """Which parts of kernmill/, files and folders, may use which; `from kernmill import ..` is all of it."""
    here = file.split("/")[1].removesuffix(".py")
    parts = found.parts[1:2] or (found.names if found.is_relative else [""])
    for part in (part for part in parts if part not in (here, *INNER) and found.lazy != "TYPE_CHECKING"):
        if part not in USES.get(here, (part,)):
            allowed = ", ".join(f"kernmill.{name}" for name in USES[here]) or "nothing else of kernmill/"
            yield f"{full_name(here)} may not import {f'kernmill.{part}'.rstrip('.')} (allowed: {allowed})"
        if part == "commands" and here != "__main__":
            yield "kernmill.commands is for kernmill/__main__.py only: nothing stands on the command line"


def not_lazily(found: Import, file: str) -> Iterator[str]:
    """No import hidden in a function, or between folders under TYPE_CHECKING: it would hide a cycle.

    Inside one folder the word of a type may come from a module that imports this one (docs/topics/project-rules.md).
    """
    if found.lazy == "TYPE_CHECKING" and found.is_relative and not found.devices():
        return
    only_devices = len(found.devices()) == len(found.names)
    announced = file.endswith("__init__.py") and found.lazy == "TYPE_CHECKING" and only_devices
    subcommand = file in COMMAND_LINE and found.lazy == "a function"
    if found.lazy and not announced and not subcommand:
        yield f"import of {found.module} inside {found.lazy}: move it to the top, or move the code"
    if found.devices() and not announced:
        yield f"{', '.join(sorted(found.devices()))}: a device is loaded by its name, never imported"


def third_party(found: Import, file: str) -> Iterator[str]:
    """The IR needs the standard library only."""
    excused = found.lazy and (file, found.parts[0]) in LAZY_THIRD_PARTY
    if file.startswith("ir/") and found.parts[0] not in sys.stdlib_module_names and not excused:
        yield f"ir/ may not import {found.parts[0]} (allowed: the standard library)"


def not_during_a_fork(found: Import, file: str) -> Iterator[str]:
    """Realizing imports nothing on its way: a child forked meanwhile would wait for the module's lock forever.

    llvm_process.py is a program as well, without kernmill; who calls its function has the block.
    """
    if found.lazy == "a function" and file.split("/")[0] in INNER and file != "runtime/cpu/llvm_process.py":
        yield f"import of {found.module} inside a function: use LazyModule, or import it in `with before_forks()`"


def violations(found: Import, file: str) -> Iterator[str]:
    """All sentences about one import."""
    yield from anywhere(found)
    here = file.split("/")[0]
    if here == "examples":
        if found.is_ours and (found.module not in FACES or set(found.names) & set(INNER)):
            yield "an example imports kernmill only: it shows what a user has"
    elif here in OUTSIDE:
        yield from through_the_face(found)
    elif found.is_ours:
        yield from arrows(found, file)
        if here == "kernmill":
            yield from inside_the_front(found, file)
        yield from not_lazily(found, file)
    elif found.parts[0] not in INNER:
        yield from third_party(found, file)
        yield from not_during_a_fork(found, file)


def compiler_from_devices(imports: dict[str, list[Import]]) -> Iterator[str]:
    """A device file may not reach the compiler, not even by way of its neighbours in runtime/."""
    inside = [file for file in imports if file.startswith("runtime/") and not file.endswith("__init__.py")]
    paths = {Path(file).stem: file for file in inside}  # names are unique in all rooms
    runtime = {name: imports[file] for name, file in paths.items()}
    for device in (name for name in runtime if name.startswith("ops_")):
        seen, todo = {device}, [(device, device)]
        while todo:
            name, path = todo.pop()
            if any("compiler" in one.folders() for one in runtime[name] if one.is_ours):
                yield f"runtime/{device}.py:1: a device may not import the compiler ({path} -> kernmill.compiler)"
            words = {word for one in runtime[name] if one.is_relative for word in (one.parts[-1], *one.names)}
            news = sorted(words & set(runtime) - seen)
            seen.update(news)
            todo += [(new, f"{path} -> {new}") for new in news]


def check(root: Path) -> list[str]:
    """Every violation below `root`, as file:line: sentence."""
    paths = [path for folder in (*ARROWS, *OUTSIDE, "examples") for path in sorted((root / folder).rglob("*.py"))]
    sources = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    imports = {file: list(imports_of(source, file)) for file, source in sources.items()}
    lines = list(compiler_from_devices(imports))
    for file, found in imports.items():
        lines += [f"{file}:{one.line}: {text}" for one in found for text in violations(one, file)]
    return lines


def test_the_arrows_hold() -> None:
    found = check(ROOT)
    assert not found, "\n".join(found)


PLANTED = [
    (
        "ir/a.py",
        "from kernmill.runtime import Device",
        "ir/ may not import kernmill.runtime (allowed: nothing of ours)",
    ),
    ("ir/a.py", "import numpy", "ir/ may not import numpy (allowed: the standard library)"),
    ("ir/a.py", "def f():\n import numpy", "ir/ may not import numpy (allowed: the standard library)"),
    (
        "runtime/a.py",
        "def f():\n import logging",
        "import of logging inside a function: use LazyModule, or import it in `with before_forks()`",
    ),
    ("ir/evaluate.py", "import numpy", "ir/ may not import numpy (allowed: the standard library)"),
    ("ir/a.py", "from kernmill import Tensor", "ir/ may not import kernmill (allowed: nothing of ours)"),
    ("ir/a.py", "from kernmill.ir import UOp", "inside a folder imports are relative"),
    ("ir/algebra/a.py", "from ...compiler import x", "ir/ may not import kernmill.compiler (allowed: nothing of ours)"),
    ("compiler/a.py", "from ir import UOp", "import kernmill.ir, not ir: the bare name would load a second copy"),
    ("compiler/a.py", "import ir.ops", "import kernmill.ir.ops, not ir.ops: the bare name would load a second copy"),
    (
        "compiler/a.py",
        "from kernmill.ir.ops import UOp",
        "import from kernmill.ir, not from its inside (kernmill.ir.ops)",
    ),
    (
        "compiler/a.py",
        "from kernmill.renderers import c",
        "compiler/ may not import kernmill.renderers (allowed: kernmill.ir)",
    ),
    (
        "compiler/a.py",
        "from kernmill import renderers",
        "compiler/ may not import kernmill.renderers (allowed: kernmill.ir)",
    ),
    ("compiler/a.py", "from ..ir import UOp", "between folders write `from kernmill.ir import ...`"),
    (
        "compiler/a.py",
        "def f():\n from .b import c",
        "import of kernmill.compiler.b inside a function: move it to the top, or move the code",
    ),
    (
        "compiler/a.py",
        "if TYPE_CHECKING:\n from kernmill.ir import c",
        "import of kernmill.ir inside TYPE_CHECKING: move it to the top, or move the code",
    ),
    (
        "renderers/a.py",
        "from kernmill.compiler import x",
        "renderers/ may not import kernmill.compiler (allowed: kernmill.ir)",
    ),
    (
        "runtime/ops_x.py",
        "from kernmill.compiler import x",
        "a device may not import the compiler (ops_x -> kernmill.compiler)",
    ),
    ("runtime/ops_x.py", "from .ops_y import Y", "ops_y: a device is loaded by its name, never imported"),
    ("runtime/device.py", "from . import ops_y", "ops_y: a device is loaded by its name, never imported"),
    ("kernmill/a.py", "from .ir import UOp", "between folders write `from kernmill.ir import ...`"),
    ("kernmill/a.py", "from kernmill import Tensor", "inside a folder imports are relative"),
    (
        "kernmill/a.py",
        "from kernmill.tests import x",
        "kernmill.tests exists in a checkout by accident: nobody imports it",
    ),
    ("tests/a.py", "import kernmill.kernmill", "kernmill.kernmill exists in a checkout by accident: nobody imports it"),
    ("tests/a.py", "from kernmill import docs", "kernmill.docs exists in a checkout by accident: nobody imports it"),
    ("tests/a.py", "from kernmill.ir.ops import UOp", "import from kernmill.ir, not from its inside (kernmill.ir.ops)"),
    (
        "kernmill/llm/arch/a.py",
        "from kernmill.ir import UOp",
        "kernmill/llm/arch/ may import kernmill only: an architecture is written with what every user has",
    ),
    (
        "kernmill/methods/a.py",
        "from ..tensor import Tensor",
        "kernmill.methods may not import kernmill.tensor (allowed: kernmill.arguments, kernmill.lazy, kernmill.size, "
        "kernmill.views)",
    ),
    (
        "kernmill/captures/a.py",
        "from kernmill import Tensor",
        "kernmill.captures may not import kernmill (allowed: kernmill.autocasting, kernmill.lazy, kernmill.methods, "
        "kernmill.size, "
        "kernmill.tensor, kernmill.variable, kernmill.views)",
    ),
    (
        "kernmill/size.py",
        "from . import captures",
        "kernmill.size may not import kernmill.captures (allowed: nothing else of kernmill/)",
    ),
    (
        "kernmill/llm/a.py",
        "from ..commands.cli import main",
        "kernmill.commands is for kernmill/__main__.py only: nothing stands on the command line",
    ),
    ("examples/a.py", "from kernmill.ir import UOp", "an example imports kernmill only: it shows what a user has"),
    ("examples/a.py", "from kernmill import ir", "an example imports kernmill only: it shows what a user has"),
]


@pytest.mark.parametrize(("file", "source", "sentence"), PLANTED, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_a_planted_violation_is_reported(tmp_path: Path, file: str, source: str, sentence: str) -> None:
    plant(tmp_path, file, source)
    found = [line.split(": ", 1) for line in check(tmp_path)]
    assert sentence in [text for _, text in found]
    assert {place.rsplit(":", 1)[0] for place, _ in found} == {file}


def test_a_device_may_not_reach_the_compiler_through_a_neighbour(tmp_path: Path) -> None:
    plant(tmp_path, "runtime/ops_x.py", "from .execute import run")
    plant(tmp_path, "runtime/execute.py", "from kernmill.compiler import lower")
    sentence = "a device may not import the compiler (ops_x -> execute -> kernmill.compiler)"
    assert check(tmp_path) == [f"runtime/ops_x.py:1: {sentence}"]


LEGAL = [
    ("ir/a.py", "import math\nfrom .dtype import DType\nfrom .algebra.integer import laws"),
    ("ir/algebra/a.py", "from ..pattern import Rule\nfrom .integer import laws"),
    ("ir/evaluate.py", "def f():\n with before_forks():\n  import numpy"),
    ("compiler/a.py", "from kernmill.ir import UOp, ops\nfrom .fuse import fuse"),
    ("runtime/__init__.py", "if TYPE_CHECKING:\n from . import ops_x as ops_x"),
    (
        "runtime/ops_x.py",
        "import llvmlite\nfrom kernmill.ir import UOp\nfrom kernmill.renderers import c\nfrom .device import Device",
    ),
    ("runtime/a.py", "def f():\n with before_forks():\n  import llvmlite"),
    ("kernmill/__init__.py", "from .tensor import Tensor"),
    ("kernmill/commands/cli.py", "def f():\n from .llm import chat"),
    ("kernmill/nn/a.py", "from kernmill import Tensor\nfrom ..tensor import Tensor\nfrom kernmill.ir import UOp"),
    (
        "kernmill/llm/arch/a.py",
        "from kernmill import Tensor, nn\nfrom ...quant import BLOCKS\nfrom .shared import rope",
    ),
    ("kernmill/methods/a.py", "from kernmill.ir import UOp\nfrom ..lazy import Lazy\nfrom .b import c"),
    ("kernmill/captures/a.py", "from .. import tensor\nfrom ..methods.b import c"),
    ("kernmill/__main__.py", "from .commands import cli"),
    ("tests/ir/test_a.py", "from kernmill.ir import UOp\ndef f():\n from kernmill.compiler import lower"),
    ("tests/runtime/test_a.py", "from kernmill.runtime import ops_x"),
    ("examples/a.py", "import numpy\nimport kernmill\nfrom kernmill import Tensor, nn\nfrom kernmill.llm import Model"),
]


@pytest.mark.parametrize(("file", "source"), LEGAL, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_what_is_legal_is_quiet(tmp_path: Path, file: str, source: str) -> None:
    plant(tmp_path, file, source)
    assert check(tmp_path) == []


def plant(root: Path, file: str, source: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(source, encoding="utf-8")
