"""Which loops of a product are rows and columns, and what is none."""

from __future__ import annotations

from kernmill.compiler import find_product
from kernmill.ir import dtypes
from tests.compiler.kernels import data, matmul, only, softmax, total
from tests.compiler.tiles import BF16, I8, U8, product


def test_rows_columns_and_operands() -> None:
    found = find_product(product((8, 16, 24), (U8, I8)))
    assert found is not None
    assert [found.sizes[name] for name in (found.rows, found.inner, found.columns)] == [8, 16, 24]
    assert [operand.dtype for operand in found.operands] == [U8, I8]
    assert [operand.steps for operand in found.operands] == [{"i0": 16, "k0": 1}, {"k0": 24, "i1": 1}]
    assert found.dtype is dtypes.int32


def test_turned_operands() -> None:
    found = find_product(product((8, 16, 24), turned=(True, True)))
    assert found is not None
    assert [operand.steps for operand in found.operands] == [{"i0": 1, "k0": 8}, {"k0": 1, "i1": 16}]


def test_a_product_of_vectors_has_neither() -> None:
    a, b = (data(slot, 64, dtype=BF16).cast(dtypes.float32) for slot in (0, 1))
    found = find_product(only(total(a * b, 0)))
    assert found is not None
    assert (found.rows, found.columns) == ("", "")


def test_other_kernels_are_none() -> None:
    assert find_product(only(total(data(0, 8, 8), 1))) is None
    assert find_product(only(softmax(data(0, 8, 8)))) is None
    assert find_product(only(matmul(data(0, 8, 8), data(1, 8, 8)))) is None  # nobody widens the operands


def test_blocks_of_a_walk() -> None:
    found = find_product(product())
    assert found is not None
    cuts, outer, inside = found.in_blocks(("i1.s", 8, 2), ("i0.s", 6, 1))
    assert ([str(cut) for cut in cuts], outer, inside) == (["split i1 4"], ["i1"], ["i1.s", "i0"])
    assert found.in_blocks(("i1.s", 1, 1), ("i0.s", 4, 4)) == ([], [], ["i0"])
