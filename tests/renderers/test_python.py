"""Python source: golden files, and text that runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Ops, UOp, dtypes, elementwise, pad, permute
from kernmill.renderers import PythonRenderer, function_name, rounder_name
from tests.compiler.kernels import SCALARS, data, lowered, matmul, only, small_kernels, softmax, total

if TYPE_CHECKING:
    from tests.conftest import Golden


def render(root: UOp, schedule: str = "") -> str:
    return PythonRenderer(SCALARS).render(
        "kernel", lowered(only(root), SCALARS, parse_schedule(schedule), is_checked=True)
    )


def test_add(golden: Golden) -> None:
    assert render(elementwise(Ops.ADD, data(0, 4, 5), data(1, 4, 5))) == golden


def test_row_sum(golden: Golden) -> None:
    assert render(total(data(0, 4, 5), 1)) == golden


def test_matmul(golden: Golden) -> None:
    assert render(matmul(data(0, 4, 5), data(1, 5, 6))) == golden


def test_padded(golden: Golden) -> None:
    assert render(pad(data(0, 4, 5), ((1, 0), (0, 2))) * 2.0) == golden


def test_softmax_row(golden: Golden) -> None:
    assert render(softmax(data(0, 4, 5))) == golden


def test_a_tile(golden: Golden) -> None:
    assert render(matmul(data(0, 4, 5), data(1, 5, 6)), "unroll i0 2; unroll i1 3") == golden


def test_the_text_runs_by_itself() -> None:
    """With a rounding function or two and lists for buffers."""
    scope: dict[str, object] = {"f32": lambda v: v}
    exec(render(permute(data(0, 2, 3), (1, 0)) * 2.0), scope)
    out, x = [0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    scope["kernel"](out, x, 0, 1)  # type: ignore[operator]
    assert out == [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e-45])
def test_every_constant_can_be_written(value: float) -> None:
    text = render(elementwise(Ops.MUL, data(0, 3), UOp(Ops.CONST, dtypes.float64, (), value).cast(dtypes.float32)))
    scope: dict[str, object] = {"f32": float}
    exec(text, scope)


@pytest.mark.parametrize("name", small_kernels())
def test_every_kernel_is_python(name: str) -> None:
    text = PythonRenderer(SCALARS).render("kernel", lowered(small_kernels()[name], SCALARS))
    compile(text, name, "exec")
    assert text.startswith("def kernel(b0")


def test_names_do_not_hide_pythons_own() -> None:
    names = [function_name(op) for op in Ops.rows() if op.is_elementwise]
    assert len(set(names)) == len(names)
    assert not {"abs", "max", "min", "pow", "round"} & set(names)
    assert [rounder_name(d) for d in (dtypes.float32, dtypes.uint8, dtypes.bfloat16, dtypes.bool)] == [
        "f32",
        "u8",
        "bf16",
        "boolean",
    ]
