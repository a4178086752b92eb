"""A block type: its layout, and what it says of data that are no blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import DTypeError, FormatError, ShapeError, Tensor, dtypes
from kernmill.quant import BlockType, Codes, block_type


def test_a_new_type_is_a_layout_and_two_expressions() -> None:
    def read(d: Tensor, qs: Tensor) -> Codes:
        return Codes(qs, d[..., :1].float() + 1)

    def write(x: Tensor) -> dict[str, Tensor]:
        return {"qs": x.cast(dtypes.uint8), "d": x[..., :2].cast(dtypes.uint8) * 0}

    mine = BlockType("Q8_0", {"d": 2, "qs": 32}, read, write)
    x = Tensor(np.arange(64, dtype=np.float32).reshape(2, 32))
    data = mine.encode(x)
    assert (data.shape, data.dtype, mine.values, mine.size_bytes) == ((2, 34), dtypes.uint8, 32, 34)
    np.testing.assert_array_equal(mine.decode(data).numpy(), x.numpy())


def test_leading_axes_are_free() -> None:
    block = block_type("Q4_K")
    x = np.random.default_rng(2).standard_normal((2, 1, 3, 256)).astype(np.float32)
    data = block.encode(Tensor(x))
    assert data.shape == (2, 1, 3, 144)
    one = block.encode(Tensor(x[1, 0, 2])).numpy()
    np.testing.assert_array_equal(data.numpy()[1, 0, 2], one)
    assert block.decode(data).shape == x.shape


def test_mistakes() -> None:
    block = block_type("Q4_0")
    with pytest.raises(DTypeError, match=r"decode: Q4_0 blocks of int8\. Give their bytes as uint8\."):
        block.decode(Tensor.zeros(1, 18, dtype=dtypes.int8))
    with pytest.raises(ShapeError, match=r"decode: Q4_0 blocks of shape \(2, 17\): the last axis is the 18 bytes"):
        block.decode(Tensor.zeros(2, 17, dtype=dtypes.uint8))
    with pytest.raises(ShapeError, match=r"encode: Q4_0 of shape \(64,\): the last axis is the 32 values of a block"):
        block.encode(Tensor.zeros(64))
    with pytest.raises(DTypeError, match=r"encode: Q4_0 of a int64 tensor\. Cast it with \.float\(\)\."):
        block.encode(Tensor.zeros(32, dtype=dtypes.int64))
    with pytest.raises(FormatError, match=r"encode: kernmill reads NVFP4 and does not write it\. Choose another"):
        block_type("NVFP4").encode(Tensor.zeros(64))
