"""Values written out: which weights are, what they take, and that they are the same values everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Context, ShapeError, Tensor, dtypes
from kernmill.quant import QuantizedTensor, block_type, decoded, interleave, interleaved_bytes, tensor
from kernmill.runtime import get_device

from . import against

SIZES = {"IQ2_XXS": 102, "IQ2_XS": 106, "IQ2_S": 106, "IQ3_XXS": 134, "IQ3_S": 134, "IQ1_S": 70, "IQ1_M": 78}


def weight(name: str, rows: int = 21) -> QuantizedTensor:
    """Random blocks; with more rows than whole groups have."""
    pytest.importorskip("gguf")
    blocks = np.random.default_rng(rows).integers(0, 256, (rows, 2, block_type(name).size_bytes), np.uint8)
    blocks[..., [1, 3]] &= 0x3F  # where most types have the upper halves of scales: none is infinite
    blocks[0, :, :] = against.random_blocks(name)[0]
    return QuantizedTensor(Tensor(blocks), name, (rows, 512))


@pytest.fixture
def with_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out on every device: as if it had dot products of bytes."""
    plain = tensor._interleaved_layout
    monkeypatch.setattr(tensor, "_interleaved_layout", lambda kind, device: kind.written or plain(kind, device))


def test_sizes() -> None:
    assert {name: form.size_bytes for name, form in decoded.FORMS.items()} == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_the_same_values_on_every_device(name: str, with_dots: None) -> None:
    mine = weight(name)
    other = mine.interleaved()
    assert (other.form, other.nbytes) == (decoded.FORMS[name], 2 * 16 * 2 * SIZES[name])
    index = Tensor([20, 3, -1])
    against.same_bits(other.dequantize().numpy(), mine.dequantize().numpy())
    against.same_bits(other.rows(index).numpy(), mine.rows(index).numpy())
    again = other.to("PYTHON")
    assert again.form is other.form
    against.same_bits(again.rows(index.to("PYTHON")).numpy(), mine.rows(index).numpy())


@pytest.mark.parametrize("name", ["IQ1_M", "IQ2_S", "IQ3_S", "Q5_K"])
@pytest.mark.parametrize("rows", [5, 16, 33, 47])
def test_laid_piece_by_piece(name: str, rows: int, with_dots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of rows at a time, the last one filled up; two at a time, of which the last two pieces share one."""
    mine = weight(name, rows)
    for groups in (1, 2):
        monkeypatch.setattr(interleave, "_PIECE", groups * 16 * 512)
        against.same_bits(mine.interleaved().dequantize().numpy(), mine.dequantize().numpy())


@pytest.mark.parametrize("name", ["IQ1_S", "Q4_K"])
def test_the_setting(name: str) -> None:
    """Types whose values lie in their codes have no other form."""
    mine = weight(name)
    has_dots = bool(get_device().target.dots) and name == "IQ1_S"
    forms = {}
    for word in ("fast", "small"):
        with Context(QUANT_FORM=word):
            forms[word] = mine.interleaved()
            assert forms[word].nbytes == interleaved_bytes(mine.type.type, mine.shape)
    least = 32 * 2 * mine.type.size_bytes
    assert (forms["small"].nbytes, forms["fast"].nbytes > least) == (least, has_dots)
    x = Tensor(np.random.default_rng(1).standard_normal((1, 512), np.float32))
    fast, small = (form.linear(x).numpy() for form in forms.values())
    np.testing.assert_allclose(fast, small, rtol=1e-5, atol=1e-5 * np.nanmax(np.abs(small)))


def test_mistakes(with_dots: None) -> None:
    """Bytes of another form."""
    data = Tensor.zeros(16 * 50, dtype=dtypes.uint8)
    assert QuantizedTensor(data, "IQ1_S", (16, 256), interleave=16, form=block_type("IQ1_S")).nbytes == 800
    with pytest.raises(ShapeError, match=r"800 bytes for IQ1_S of shape \(16, 256\), which needs 1120\. Give all"):
        QuantizedTensor(data, "IQ1_S", (16, 256), interleave=16)
