"""Products for a matrix unit, and a target that has one."""

from __future__ import annotations

from dataclasses import replace

from kernmill.ir import DType, UOp, dtypes, permute, reshape
from kernmill.renderers import AMX_UNITS
from tests.compiler.kernels import VECTORS, data, matmul, only

UNITS = tuple(unit for several in AMX_UNITS.values() for unit in several)
TILES = replace(VECTORS, units=UNITS)
BF16, F16, I8, U8 = dtypes.bfloat16, dtypes.float16, dtypes.int8, dtypes.uint8

CUT = (
    "split i0 16; split i1 16; split k0 32; split k0.s 2; unroll i0 2; unroll i1 2; "
    "tensorize i0.s i1.s; order i1 i0 i0.s i1.s"
)
RIGHT = "stage 2 k0 i1.u k0.s i1.s' k0.s.s"
LEFT = "stage 1 i0 k0 i0.u i0.s' k0.s k0.s.s"


def product(
    sizes: tuple[int, int, int] = (96, 96, 96),
    pair: tuple[DType, DType] = (BF16, BF16),
    turned: tuple[bool, bool] = (False, False),
    kept: tuple[DType | None, DType | None] = (None, None),
) -> UOp:
    """The usual matrix product of narrow values, in rows, inner and columns; each operand as it is, or turned, and kept
    in another type that it is converted from."""
    rows, inner, columns = sizes
    shapes = ((rows, inner), (inner, columns))
    wide = dtypes.int32 if pair[0].is_int else dtypes.float32
    operands: list[UOp] = []
    for slot, (shape, dtype, is_turned, found) in enumerate(zip(shapes, pair, turned, kept, strict=True)):
        operand = data(slot, *(shape[::-1] if is_turned else shape), dtype=found or dtype).cast(dtype).cast(wide)
        operands.append(permute(operand, (1, 0)) if is_turned else operand)
    return only(matmul(*operands), has_unit=True)


def laid(
    rows: int, inner: int, columns: int, dtype: DType = BF16, step: int = 32, group: int = 2, kept: DType | None = None
) -> UOp:
    """The same product of operands that lie in memory block by block, as the unit reads them."""
    left = data(0, rows // 16, inner // step, 16, step, dtype=kept or dtype).cast(dtype)
    right = data(1, columns // 16, inner // group, 16, group, dtype=kept or dtype).cast(dtype)
    wide = dtypes.int32 if dtype.is_int else dtypes.float32
    left = reshape(permute(left, (0, 2, 1, 3)), (rows, inner))
    right = reshape(permute(right, (1, 3, 0, 2)), (inner, columns))
    return only(matmul(left.cast(wide), right.cast(wide)), has_unit=True)
