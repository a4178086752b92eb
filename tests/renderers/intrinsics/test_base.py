"""What an architecture without instructions of its own answers."""

from __future__ import annotations

import pytest

from kernmill.ir import InternalError, Ops, Target, UOp, const, dtypes, elementwise
from kernmill.renderers import LLVMRenderer
from tests.compiler.kernels import data, lowered, only

BARE = Target("bare", vector_bytes=16)


@pytest.mark.parametrize("op", [Ops.DOT, Ops.TABLE, Ops.SCALE])
def test_what_it_lacks_is_a_bug_of_ours(op: Ops) -> None:
    a, b, c = const(dtypes.uint8.vec(16), 1), const(dtypes.int8.vec(16), 1), const(dtypes.int32.vec(4), 0)
    node = UOp(op, c.dtype, (a, b, c))  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="llvmir: bare has no instruction for"):
        LLVMRenderer(BARE).render("k", [a, b, c, node])


def test_a_selection_is_one() -> None:
    text = LLVMRenderer(BARE).render("k", lowered(only(elementwise(Ops.NEG, data(0, 8))), BARE))
    assert "llvm.x86" not in text
