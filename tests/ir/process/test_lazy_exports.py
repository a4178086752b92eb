"""Faces that import their modules late."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from kernmill.ir import LazyModule
from tests.runtime.processes import run


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "lately"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        'from kernmill.ir import lazy_exports\n__getattr__, __dir__ = lazy_exports(__name__, "one", "two")\n'
    )
    (folder / "one.py").write_text('__all__ = ["first"]\nfirst, hidden = 1, 2\n')
    (folder / "two.py").write_text('__all__ = ["first", "second"]\nfirst, second = 3, 4\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "lately"]:
        monkeypatch.delitem(sys.modules, name)
    return "lately"


def test_names_are_found_in_order(package: str) -> None:
    face = importlib.import_module(package)
    assert "one" not in vars(face)
    assert (face.first, face.second) == (1, 4)
    assert face.two.first == 3
    assert not hasattr(face, "hidden")
    with pytest.raises(AttributeError, match=r"^module 'lately' has no attribute 'third'$"):
        _ = face.third


def test_late_names_are_listed_without_their_import(package: str) -> None:
    face = importlib.import_module(package)
    assert {"one", "two", "lazy_exports"} <= set(dir(face))
    assert "one" not in vars(face)


def test_faces_list_what_they_offer() -> None:
    code = """
import kernmill
import kernmill.llm
print(*({*face.__all__} - {*dir(face)} for face in (kernmill, kernmill.llm)))
print(any(name in sys.modules for name in ("kernmill.nn", "kernmill.llm.train")))
"""
    assert run(code)[0].split("\n")[:2] == ["set() set()", "False"]


def test_the_front_offers_late_names() -> None:
    code = """
import kernmill
print(any(name in sys.modules for name in ("kernmill.nn", "kernmill.captures.jitted", "kernmill.compiler")))
print(kernmill.nn.Linear.__name__, kernmill.jit.__name__, hasattr(kernmill, "nothing"))
from kernmill import *
print(nn is kernmill.nn, jit is kernmill.jit)
"""
    assert run(code)[0].split() == ["False", "Linear", "jit", "False", "True", "True"]


def test_tensors_are_pickled_without_the_late_modules() -> None:
    code = """
import pickle
import kernmill
print(pickle.loads(pickle.dumps(kernmill.Tensor([1.0, 2.0]))).tolist(), "kernmill.nn" in sys.modules)
"""
    assert run(code, DEVICE="PYTHON")[0].strip() == "[1.0, 2.0] False"


def test_a_module_comes_when_it_is_asked_for(package: str) -> None:
    late = LazyModule(f"{package}.two")
    assert f"{package}.two" not in sys.modules
    assert (late.first, late.second, vars(late)["first"]) == (3, 4, 3)
    with pytest.raises(AttributeError, match="third"):
        _ = late.third
