"""IQ1, IQ2 and IQ3: read as the package does, whose tables they need; and what is said without it."""

from __future__ import annotations

import sys

import pytest

from kernmill import Context, FormatError, Tensor, dtypes, jit
from kernmill.quant import QuantizedTensor, grids, tensor
from kernmill.quant.block import BlockType

from . import against


@pytest.mark.parametrize("name", [block.name for block in grids.BLOCKS])
def test_read(name: str) -> None:
    against.check_read_as_the_package(name)


@pytest.mark.parametrize("block", grids.BLOCKS, ids=lambda block: block.name)
def test_every_form_has_the_same_values(block: BlockType) -> None:
    pytest.importorskip("gguf")
    data = Tensor(against.random_blocks(block.name))
    for form, arranged in filter(None, (block.laid, block.held, block.written)):
        parts = arranged(**block.parts(data))
        assert {name: part.shape[-1] for name, part in parts.items()} == form.layout
        against.same_bits(form.values_of(form.read(**parts)).numpy(), block.decode(data).numpy())


@pytest.mark.parametrize("form", ["fast", "small"])
@pytest.mark.parametrize("block", grids.BLOCKS, ids=lambda block: block.name)
def test_tables_are_made_before_a_capture(block: BlockType, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """`kernmill run` said between the words of the text that jit does not look into them."""
    pytest.importorskip("gguf")
    weight = QuantizedTensor(Tensor(against.random_blocks(block.name)), block, (12, block.type.values))
    grids._table.cache_clear()
    grids._planes.cache_clear()
    tensor._make_tables.cache_clear()
    with Context(QUANT_FORM=form):
        laid = jit(weight.interleaved)()
        jit(laid.linear)(Tensor.ones(1, laid.shape[1]))
    assert not caplog.records


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gguf", "gguf.quants"):
        monkeypatch.setitem(sys.modules, name, None)
    grids._table.cache_clear()
    block = grids.BLOCKS[0]
    with pytest.raises(FormatError, match=r"IQ2_XXS: the codebooks of this type are in the package gguf, .*install"):
        block.decode(Tensor.zeros(1, block.size_bytes, dtype=dtypes.uint8))
