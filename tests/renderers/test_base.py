"""What a kernel is called with."""

from __future__ import annotations

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import Ops, UOp, dtypes, elementwise, reshape
from kernmill.renderers import Renderer, signature
from tests.compiler.kernels import F32, SCALARS, data, lowered, only


def test_buffers_by_slot() -> None:
    uops = lowered(only(elementwise(Ops.ADD, data(1, 4), data(0, 4))), SCALARS)
    found = signature(uops)
    assert [p.arg[0] for p in found.params] == [0, 1, 2]
    assert (found.variables, found.threads) == ((), 1)


def test_the_size_of_the_parallel_loop() -> None:
    assert signature(lowered(only(data(0, 12) + 1.0), SCALARS, parse_schedule("thread i0"))).threads == 12
    assert signature(lowered(only(data(0, 12) + 1.0), SCALARS, parse_schedule("split i0 4; thread i0"))).threads == 3


def test_variables_by_name() -> None:
    size = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 16))
    other = UOp(Ops.VARIABLE, dtypes.index, (), ("b", 1, 16))
    uops = [UOp(Ops.PARAM, F32, (), (0, 4)), size, other]
    assert [v.arg[0] for v in signature(uops).variables] == ["b", "n"]
    assert reshape(data(0, 4), (4,)).shape == (4,)


def test_a_renderer_must_render() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Renderer(SCALARS)  # type: ignore[abstract]
