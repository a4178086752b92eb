"""The pass list: names, order and stages, and the same meaning after each pass that the evaluator reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernmill.compiler import PIPELINE, lower
from kernmill.ir import InternalError, Ops, Stage, UOp, dtypes
from tests.compiler.kernels import SCALARS, close, inputs, run_ast, run_on, small_kernels
from tests.compiler.passes import after


def test_names_are_unique_and_known() -> None:
    names = [step.name for step in PIPELINE]
    assert len(set(names)) == len(names)
    assert {name for step in PIPELINE for name in step.after} <= set(names)


def test_every_pass_stands_behind_those_it_needs() -> None:
    seen: set[str] = set()
    for step in PIPELINE:
        assert set(step.after) <= seen, f"{step.name} needs {step.after}"
        seen.add(step.name)


def test_stages_follow_each_other() -> None:
    order = [*Stage]
    places = [order.index(step.stage) for step in PIPELINE]
    assert places == sorted(places)
    assert (PIPELINE[0].stage, PIPELINE[-1].stage) == (Stage.KERNEL, Stage.LINEAR)


ELSEWHERE = ("simplify", "optimize")  # passes whose file has another name: the IR's, and a folder of its own


@pytest.mark.parametrize("name", [step.name for step in PIPELINE if step.name not in ELSEWHERE])
def test_a_pass_its_function_and_its_file_have_one_name(name: str) -> None:
    folder = Path(__file__).resolve().parents[2] / "compiler"
    (file,) = (path for room in ("kernel", "lower") if (path := folder / room / f"{name}.py").exists())
    assert re.search(rf"\ndef {name}\((ast: UOp|uops: )", file.read_text(encoding="utf-8"))


def test_every_pass_says_why_it_stands_there() -> None:
    for step in PIPELINE:
        assert len(step.why.split()) > 5
        assert not step.why.endswith(".")


@pytest.mark.parametrize("name", small_kernels())
def test_the_reference_device_runs_every_kernel(name: str) -> None:
    ast = small_kernels()[name]
    arrays = inputs(ast)
    close(run_on("PYTHON", ast, arrays), run_ast(ast, arrays))
    expanded = after("expand_loops", ast, "", SCALARS)
    close(run_ast(expanded, arrays), run_ast(ast, arrays))


def test_a_pass_that_leaves_something_illegal_is_named() -> None:
    broken = UOp(Ops.SINK, dtypes.void, (UOp(Ops.IOTA, dtypes.int64, (), 4),), small_kernels()["map"].arg)
    with pytest.raises(InternalError, match="build_kernels: IOTA is not legal at stage kernel"):
        lower(broken, SCALARS, broken, is_checked=True)
    with pytest.raises(InternalError, match="optimize: IOTA is not legal at stage optimized"):
        lower(broken, SCALARS, small_kernels()["map"], is_checked=True)
