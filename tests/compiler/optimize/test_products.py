"""Which loops of a product are rows and columns, and what is none."""

from __future__ import annotations

from kernmill.compiler import Product, analyze, find_product
from kernmill.ir import UOp, dtypes
from tests.compiler.kernels import VECTORS, data, matmul, only, softmax, total
from tests.compiler.tiles import BF16, I8, U8, product


def found_in(ast: UOp) -> Product | None:
    return find_product(analyze(ast, VECTORS))


def test_rows_columns_and_operands() -> None:
    ast = product((8, 16, 24), (U8, I8))
    found = found_in(ast)
    assert found is not None
    sizes = analyze(ast, VECTORS).sizes
    assert [sizes[name] for name in (found.rows, found.inner, found.columns)] == [8, 16, 24]
    assert [operand.node.dtype for operand in (found.left, found.right)] == [U8, I8]
    assert [operand.steps for operand in (found.left, found.right)] == [{"i0": 16, "k0": 1}, {"k0": 24, "i1": 1}]
    assert found.dtype is dtypes.int32


def test_turned_operands() -> None:
    found = found_in(product((8, 16, 24), turned=(True, True)))
    assert found is not None
    assert [operand.steps for operand in (found.left, found.right)] == [{"i0": 1, "k0": 8}, {"k0": 1, "i1": 16}]


def test_a_product_of_vectors_has_neither() -> None:
    a, b = (data(slot, 64, dtype=BF16).cast(dtypes.float32) for slot in (0, 1))
    found = found_in(only(total(a * b, 0)))
    assert found is not None
    assert (found.rows, found.columns) == ("", "")


def test_other_kernels_are_none() -> None:
    assert found_in(only(total(data(0, 8, 8), 1))) is None
    assert found_in(only(softmax(data(0, 8, 8)))) is None
    assert found_in(only(matmul(data(0, 8, 8), data(1, 8, 8)))) is None  # nobody widens the operands
