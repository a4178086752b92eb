"""What is read off a kernel: sizes, steps, reductions, and which loops of a product are rows and columns."""

from __future__ import annotations

from kernmill.compiler import Product, analyze, merge_loops
from kernmill.ir import UOp, dtypes, pad
from tests.compiler.kernels import VECTORS, attention, data, matmul, only, softmax, total
from tests.compiler.tiles import BF16, I8, U8, laid, product


def test_a_product_steps_as_its_operands_lie() -> None:
    facts = analyze(merge_loops(only(matmul(data(0, 6, 20), data(1, 20, 48)))), VECTORS)
    group = facts.main
    assert group is not None
    assert group.loops == ["k0"]
    assert group.around == {"i0", "i1"}
    assert facts.iterations(["i0", "i1", "k0"]) == 6 * 20 * 48
    a, b = sorted(group.loads, key=lambda access: int(access.node.src[0].src[0].arg[0]))
    assert (a.step("i0"), a.step("i1"), a.step("k0")) == (20, 0, 1)
    assert (b.step("i0"), b.step("i1"), b.step("k0")) == (0, 1, 48)


def test_a_map_has_no_group() -> None:
    facts = analyze(merge_loops(only(data(0, 4, 8) + 1.0)), VECTORS)
    assert facts.main is None
    assert facts.work == 1
    assert facts.lanes == VECTORS.vector_bytes // 4


def test_loops_that_fill_kept_rows() -> None:
    facts = analyze(merge_loops(only(attention(data(0, 26, 5), data(1, 25, 5), data(2, 25, 6)))), VECTORS)
    assert (facts.row_loops, facts.row_writers) == (["i0"], ["t1_0", "t0_0"])


def test_places_that_are_digits_of_loops() -> None:
    """Of i // 16 and i % 16, and of nothing behind a gate."""
    ast = merge_loops(laid(96, 128, 64))
    facts = analyze(ast, VECTORS)
    assert all(a.is_blockwise_affine and not a.is_affine for a in facts.loads)
    assert facts.product is not None
    open_part = only(matmul(pad(data(0, 60, 40, dtype=BF16), ((0, 0), (0, 8))).cast(dtypes.float32), data(1, 48, 64)))
    assert [a.is_blockwise_affine for a in analyze(merge_loops(open_part), VECTORS).loads if a.is_gated] == [False]


# --- the product that a kernel is
def found_in(ast: UOp) -> Product | None:
    return analyze(ast, VECTORS).product


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
