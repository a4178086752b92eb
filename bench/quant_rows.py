"""Rows: one row, and 128 rows, by weights quantized to blocks, the rows of weights interleaved ahead."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np

from .expression import Expression, prepare_expression
from .model_file import random_blocks
from .row import Goal, Row

__all__ = ["QUANT_ROWS"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]
ONE_ROW = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
           "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # fmt: skip
MANY_ROWS = ("Q8_0", "Q4_0", "Q5_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_INNER, _COLUMNS = 4096, 16384  # more than the caches hold, in every type
_ERROR = 0.03  # of the largest result: values of x are rounded to 8 bits


def block_bytes(name: str, size: Size) -> int:
    """Of the weights."""
    from kernmill.quant import block_type

    return size[2] * size[1] // block_type(name).values * block_type(name).size_bytes


def inputs(name: str, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Normal numbers, and the blocks of others; of types that are not written, or slowly, random bytes."""
    from kernmill import Tensor
    from kernmill.quant import QuantizedTensor, block_type

    (rows, inner, columns), kind = size, block_type(name)
    some = min(columns, 64)  # writing blocks takes time: repeated
    if kind.write is None or kind.looked_up:
        blocks = random_blocks(name, rng, (some, inner // kind.values))
        weights = QuantizedTensor(Tensor(blocks), name, (some, inner))
    else:
        weights = QuantizedTensor.quantize(Tensor(rng.standard_normal((some, inner), np.float32)), name)
    data = weights.interleaved().data.numpy()
    layout(name)  # now: a captured product cannot
    return rng.standard_normal((rows, inner), np.float32), np.tile(data, (columns // some, 1, 1))


@cache
def layout(name: str) -> tuple[Any, int]:
    """The form of interleaved blocks on the default device, and how many rows are interleaved. A peer on another device
    computes from the same bytes."""
    from kernmill import Tensor
    from kernmill.quant import QuantizedTensor, block_type

    kind = block_type(name)
    row = QuantizedTensor(Tensor(np.zeros((1, 1, kind.size_bytes), np.uint8)), name, (1, kind.values)).interleaved()
    return row.form, row.interleave


def weight(name: str, size: Size, data: Any) -> Any:
    """The blocks in their layout in memory."""
    from kernmill.quant import QuantizedTensor

    form, together = layout(name)
    return QuantizedTensor(data, name, (data.shape[0] * together, size[1]), interleave=together, form=form)


def reference(name: str, size: Size, x: Array, data: Array) -> Array:
    """By the values of the blocks."""
    from kernmill import Tensor

    return x @ weight(name, size, Tensor(data)).dequantize().numpy().astype(np.float64).T  # type: ignore[no-any-return]


def row(name: str, rows: int, goal: float) -> Row:
    """A share of the read ceiling for one row, of the 8-bit products' for many."""
    columns = _COLUMNS if rows == 1 else 4096
    size, tiny = (rows, _INNER, columns), (rows, 512, 32)

    def product(_: Any, x: Any, data: Any) -> Any:
        return weight(name, (rows, x.shape[-1], 0), data).linear(x)

    def checked(x: Array, data: Array) -> Array:
        return reference(name, (rows, x.shape[-1], 0), x, data)

    is_one = rows == 1
    work = partial(block_bytes, name) if is_one else lambda s: 2.0 * math.prod(s)
    given = Expression(size, tiny, partial(inputs, name), checked, {"kernmill": product}, work, _ERROR,
                       "read" if is_one else "vnni", constants=1)  # fmt: skip
    return Row(f"quant_{name.lower()}_{rows}", f"{rows} x {_INNER} by {columns} rows of {name} blocks",
               partial(prepare_expression, given), "GB/s" if is_one else "GOP/s",
               goals=(Goal("ceiling", goal),))  # fmt: skip


QUANT_ROWS: list[Row] = [*(row(name, 1, 0.85) for name in ONE_ROW), *(row(name, 128, 0.6) for name in MANY_ROWS)]
