"""Products with rows of x in 8 bits: as near as half a scale of each value allows, for every type and both layouts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, SettingError, ShapeError, Tensor, dtypes, jit
from kernmill.ir import Ops
from kernmill.quant import BLOCKS, QuantizedTensor, block_type, grids, tensor
from kernmill.quant.block import BlockType
from kernmill.quant.product import ACTIVATIONS, quantized_rows

ROWS = 32
TYPES = [name for name, block in BLOCKS.items() if block.write is not None and not block.looked_up]
GRIDS = [block.name for block in grids.BLOCKS]
READ_ONLY = ["Q1_0", "Q2_0", "NVFP4", *GRIDS]


def weight(name: str, blocks: int = 1, count: int = ROWS) -> QuantizedTensor:
    """Rows of a type, of at least 64 values."""
    if name in GRIDS:
        pytest.importorskip("gguf", reason="the codebooks of these types are in the package gguf")
    kind = block_type(name)
    blocks = max(blocks, 64 // kind.values)
    return QuantizedTensor(Tensor(written(name)[:count, :blocks]), name, (count, blocks * kind.values))


@cache
def written(name: str) -> Any:
    """Bytes of rows of 512 values: from values where kernmill writes the type, else such that make no infinite scale.

    They are written once, on LLVM whatever the device: in Python that takes seconds, and test_k.py and others test it.
    """
    kind, rng = block_type(name), np.random.default_rng(len(name))
    if name in TYPES:
        x = rng.standard_normal((ROWS, 512)).astype(np.float32)
        return QuantizedTensor.quantize(Tensor(x, device="LLVM"), name).data.numpy()
    data = rng.integers(0, 256, (ROWS, 512 // kind.values, kind.size_bytes), dtype=np.uint8)
    data[..., [1, -1]] &= 0x3F  # where scales end; IQ1_M has its own at the end
    return data


def bound(x: Any, values: Any) -> Any:
    """Of the error: half a scale of x for each value of a block, and the roundings of float32 sums."""
    half = np.abs(x).reshape(len(x), -1, ACTIVATIONS).max(-1) / 254
    size = np.abs(values).reshape(len(values), -1, ACTIVATIONS).sum(-1)
    return half @ size.T * 1.001 + 2e-5 * (np.abs(x) @ np.abs(values).T) + 1e-6


@pytest.mark.parametrize("name", TYPES + READ_ONLY)
def test_error_is_bounded(name: str, device: str) -> None:
    """One row, and nine: more than a tile; and more tiles, for which codes and scales are unpacked once."""
    if device != "LLVM":
        check(weight(name, count=ROWS // 2), 2)
        return
    one, two = weight(name), weight(name, 2)
    check(one, 1)
    check(one, 9)
    check(two, 25)


def check(mine: QuantizedTensor, rows: int) -> None:
    """Both layouts with both settings, against the values."""
    values = mine.dequantize().numpy().astype(np.float64)
    x = np.random.default_rng(rows).standard_normal((rows, mine.shape[1])).astype(np.float32)
    want, limit = x @ values.T, bound(x.astype(np.float64), values)
    for form in (mine, mine.interleaved()):
        got = form.linear(Tensor(x)).numpy()
        assert got.shape == want.shape
        assert (np.abs(got - want) <= limit).all()
        with Context(QUANT_ACT="float"):
            plain = form.linear(Tensor(x)).numpy()
        np.testing.assert_allclose(plain, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.fixture(params=[16, 32])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows of a group: their words side by side, or the blocks of 16 by turns with those of 16 more."""
    monkeypatch.setattr(tensor, "rows_together", lambda kind, device=None: request.param)
    return int(request.param)


@pytest.mark.parametrize("form", ["fast", "small"])
@pytest.mark.parametrize("name", ["Q4_0", "Q2_K", "Q6_K", "TQ1_0", "IQ2_S"])
def test_groups_of_any_size_give_the_same_products(name: str, form: str, together: int, device: str) -> None:
    """One row, a tile, several tiles; the last group is filled up."""
    if device != "LLVM":
        pytest.skip("what lies where is the same on all devices")
    mine = weight(name, 2, ROWS - 1)
    with Context(QUANT_FORM=form):
        for rows in (1, 5, 25):
            check(mine, rows)


@pytest.mark.parametrize("count", [1, 3, 17])
@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ3_XXS", "IQ2_S"])
def test_few_rows_of_points(name: str, count: int, device: str) -> None:
    """Rows as they lie in a file have their numbers far apart."""
    if device != "LLVM" and count > 3:
        pytest.skip("slow in Python, and nothing else than with 3 rows")
    few = weight(name, 2, count)
    for rows in (1, 2, 5) if device == "LLVM" else (1,):
        check(few, rows)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_S"])
def test_points_are_looked_up_once_for_several_rows(name: str) -> None:
    """They were looked up again for each tile of rows of x: 128 rows took 25 times as long."""
    with Context(QUANT_FORM="small"):
        mine = weight(name, 2).interleaved()
    few, many = (mine.linear(Tensor.zeros(rows, mine.shape[1])) for rows in (2, 9))
    sizes = [[node.dtype for node in result.uop.toposort() if node.op is Ops.CONTIGUOUS] for result in (few, many)]
    assert [kinds.count(dtypes.uint8) for kinds in sizes] == [0, 1]


FORMS = [(b.name, form) for b in grids.BLOCKS for form in ("laid", "held", "written") if b.held or form == "written"]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_products_of_all_forms(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the target has: a weight keeps the form it was laid in, on another device as well."""

    def chosen(kind: BlockType, device: str) -> object:
        return getattr(kind, form) or (kind, dict)

    monkeypatch.setattr(tensor, "_interleaved_layout", chosen)
    mine = weight(name, 2)
    other = mine.interleaved()
    assert other.form is chosen(mine.type, "")[0]  # type: ignore[index]
    monkeypatch.undo()
    for rows in (1, 5):
        check(other, rows)
    again = other.to("PYTHON")
    assert again.form is other.form
    index = Tensor([3], device="PYTHON")
    np.testing.assert_array_equal(again.rows(index).numpy(), mine.rows(Tensor([3])).numpy())


@pytest.mark.parametrize("name", TYPES + READ_ONLY)
def test_interleaved_rows_are_the_same_values(name: str, together: int) -> None:
    mine = weight(name)
    other = mine.interleaved()
    groups = mine.shape[0] // together
    assert other.interleave == together
    assert other.data.shape == (groups, mine.data.shape[1], together * other.form.size_bytes)
    assert (other.nbytes, other.shape, other.interleaved()) == (other.data.numel(), mine.shape, other)
    np.testing.assert_array_equal(other.dequantize().numpy(), mine.dequantize().numpy())
    index = Tensor([[5, 31], [0, 16]])
    np.testing.assert_array_equal(other.rows(index).numpy(), mine.rows(index).numpy())
    again = QuantizedTensor(other.data, name, other.shape, interleave=together)
    np.testing.assert_array_equal(again.dequantize().numpy(), mine.dequantize().numpy())


@pytest.mark.parametrize("count", [1, 19])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K"])
def test_rows_that_are_no_whole_group_are_filled_up(name: str, count: int, together: int, device: str) -> None:
    """What fills the last rows up is seen nowhere: not in values, nor in products, nor behind a negative index."""
    mine = weight(name, 256 // block_type(name).values, count)
    other = mine.interleaved()
    assert (other.interleave, other.shape, other.interleaved()) == (together, (count, 256), other)
    np.testing.assert_array_equal(other.dequantize().numpy(), mine.dequantize().numpy())
    index = Tensor([count - 1, 0, -1, -count])
    np.testing.assert_array_equal(other.rows(index).numpy(), mine.rows(index).numpy())
    with pytest.raises(IndexRangeError):
        other.rows(Tensor([count])).realize()
    for rows in (1, 3) if device == "LLVM" else (1,):
        a = Tensor(np.random.default_rng(8).standard_normal((rows, 1, 256)).astype(np.float32))
        np.testing.assert_allclose(other.linear(a).numpy(), mine.linear(a).numpy(), rtol=1e-4, atol=1e-3)
        with Context(QUANT_ACT="float"):
            np.testing.assert_allclose(other.linear(a).numpy(), mine.linear(a).numpy(), rtol=1e-4, atol=1e-3)


def test_rows_are_laid_out_anew_in_each_replay() -> None:
    @jit
    def laid(x: Tensor) -> Tensor:
        return QuantizedTensor.quantize(x, "Q8_0").interleaved().data

    x = np.random.default_rng(9).standard_normal((4, 32, 64)).astype(np.float32)
    got = [laid(Tensor(part)) for part in x]
    for part, data in zip(x, got, strict=True):
        want = QuantizedTensor.quantize(Tensor(part), "Q8_0").interleaved().data
        np.testing.assert_array_equal(data.numpy(), want.numpy())


def test_a_tensor_without_rows_stays() -> None:
    mine = QuantizedTensor(Tensor.zeros(0, dtype=dtypes.uint8), "Q8_0", (0, 32))
    assert mine.interleaved() is mine


def test_quantized_rows() -> None:
    """Codes reach from -127 to 127 in each block; a block of zeros has scale 0 and codes 0."""
    x = np.random.default_rng(1).standard_normal((3, 96)).astype(np.float32) * [[1e-6], [1.0], [1e6]]
    x[1, :32] = 0
    rows = quantized_rows(Tensor(x.astype(np.float32)))
    codes, scale = rows.codes.numpy(), rows.scale.numpy()
    assert codes.dtype == np.int8
    assert (codes.shape, scale.shape) == ((3, 3, 32), (3, 3, 1))
    assert (codes[1, 0] == 0).all()
    assert scale[1, 0, 0] == 0
    assert set(np.abs(codes.astype(int)).max(-1).reshape(-1)) == {0, 127}
    np.testing.assert_allclose(codes * scale, x.reshape(3, 3, 32), atol=0, rtol=1, err_msg="signs")
    assert (np.abs(codes * scale - x.reshape(3, 3, 32)) <= scale * 0.5001).all()


@pytest.mark.parametrize("interleave", [1, 16])
def test_zeros_infinities_and_no_numbers(interleave: int) -> None:
    """They stay in their own row; zeros give zeros, whatever the sizes of the values around them."""
    mine = weight("Q4_0") if interleave == 1 else weight("Q4_0").interleaved()
    x = np.random.default_rng(3).standard_normal((6, 64)).astype(np.float32)
    x[0] = 0
    x[1, 5] = np.nan
    x[2, 40] = np.inf
    x[3, :32] = 1e-38
    x[4] *= 1e30
    got = mine.linear(Tensor(x)).numpy()
    values = mine.dequantize().numpy().astype(np.float64)
    assert (got[0] == 0).all()
    assert np.isnan(got[1]).all()
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ values.T
    assert not np.isfinite(got[2]).any()
    assert (np.isnan(got[2]) | (np.sign(got[2]) == np.sign(want[2]))).all()
    for row in (3, 4, 5):
        assert (np.abs(got[row] - want[row]) <= bound(x[row : row + 1].astype(np.float64), values)[0]).all()


def test_dtypes_and_shapes() -> None:
    mine, x = weight("Q8_0"), np.random.default_rng(5).standard_normal((2, 1, 64)).astype(np.float32)
    values = mine.dequantize().numpy()
    want = x @ values.T
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32):
        got = mine.linear(Tensor(x).cast(dtype))
        assert (got.shape, got.dtype) == ((2, 1, ROWS), dtypes.float32)
        np.testing.assert_allclose(got.numpy(), want, atol=0.25)
    exact = mine.linear(Tensor(x.astype(np.float64)))
    assert exact.dtype is dtypes.float64
    np.testing.assert_allclose(exact.numpy(), want, rtol=1e-5, atol=1e-5)
    assert mine.linear(Tensor(x[0, 0])).shape == (ROWS,)
    assert mine.linear(Tensor.zeros(0, 64)).shape == (0, ROWS)
    bias = mine.linear(Tensor(x), Tensor.ones(ROWS)).numpy()
    np.testing.assert_allclose(bias, mine.linear(Tensor(x)).numpy() + 1, rtol=1e-6)


def test_gradients_take_the_float_product() -> None:
    """Rounding has no slope."""
    mine, x = weight("Q8_0"), Tensor.ones(2, 64, requires_grad=True)
    mine.linear(x).sum().backward()
    assert x.grad is not None
    want = np.broadcast_to(mine.dequantize().numpy().sum(0), (2, 64))
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-4, atol=1e-4)


def test_mistakes() -> None:
    with pytest.raises(ShapeError, match="are not a multiple of the block size"):
        QuantizedTensor.quantize(Tensor.ones(2, 40), "Q8_0")
    with pytest.raises(ShapeError, match="its last axis must equal that of x"):
        weight("Q8_0").linear(Tensor.ones(2, 32))
    with pytest.raises(ShapeError, match=r"Q8_0 of shape \(1, 17, 32\) with 16 rows interleaved: must have two"):
        QuantizedTensor(Tensor.zeros(17 * 34, dtype=dtypes.uint8), "Q8_0", (1, 17, 32), interleave=16)
    with pytest.raises(ShapeError, match=r"578 bytes for Q8_0 of shape \(17, 32\), which needs 1088"):
        QuantizedTensor(Tensor.zeros(17 * 34, dtype=dtypes.uint8), "Q8_0", (17, 32), interleave=16)
    with pytest.raises(SettingError, match="QUANT_ACT"), Context(QUANT_ACT="int4"):
        pass


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q6_K"])
def test_weights_that_are_quantized_on_the_way(name: str, device: str) -> None:
    """Named regression: LLVM found 16 products of bytes in a ladder of halves and added only a fourth of them."""
    if device == "PYTHON":
        pytest.skip("of LLVM, and slow in Python: test_k.py writes there")
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((32, 256)).astype(np.float32), rng.standard_normal((2, 256)).astype(np.float32)
    mine = QuantizedTensor.quantize(Tensor(w), name)
    values = mine.dequantize().numpy()
    assert (np.abs(mine.linear(Tensor(x)).numpy() - x @ values.T) <= bound(x, values)).all()


def test_rows_of_one_block_whose_bytes_hold_codes_of_several_loops() -> None:
    """The next panel was asked for in a loop that was unrolled by then, so the kernel lost its schedule."""
    rng = np.random.default_rng(3)
    weights, x = rng.standard_normal((512, 256)).astype(np.float32), rng.standard_normal((48, 256)).astype(np.float32)
    packed = QuantizedTensor.quantize(Tensor(weights), "TQ1_0")
    close = packed.interleaved().linear(Tensor(x)).numpy(), packed.linear(Tensor(x)).numpy()
    np.testing.assert_allclose(*close, rtol=1e-4, atol=1e-3)
