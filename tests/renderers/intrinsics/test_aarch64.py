"""AArch64: the instructions that kernels become, compiled here for other machines."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, InternalError, Ops, Target, UOp, const, dtypes, take
from kernmill.renderers import LLVMRenderer
from kernmill.runtime import cpu_target, host, llvm_codegen
from tests.compiler.kernels import data, lowered, matmul, only

S8, U8, BF16 = dtypes.int8, dtypes.uint8, dtypes.bfloat16


def assembly(root: UOp, core: str, target: Target | None = None, schedule: str | None = None) -> str:
    machine = host.named_host(core)
    actions = None if schedule is None else parse_schedule(schedule)
    target = target or cpu_target.host_target(machine)
    return llvm_codegen.assembly(LLVMRenderer(target).render("k", lowered(only(root), target, actions)), machine)


def product(pair: tuple[DType, DType], rows: int = 16) -> UOp:
    left, right = data(0, rows, 64, dtype=pair[0]), data(1, 64, 64, dtype=pair[1])
    total = dtypes.float32 if pair[0].is_float else dtypes.int32
    return matmul(left.cast(total), right.cast(total))


@pytest.mark.parametrize(("core", "pair", "name"), [
    ("neoverse-n1", (S8, S8), "sdot"), ("neoverse-n1", (U8, U8), "udot"), ("neoverse-n1", (U8, S8), "sdot"),
    ("neoverse-v2", (U8, S8), "usdot"), ("neoverse-v2", (BF16, BF16), "bfdot"), ("apple-m1", (S8, S8), "sdot"),
])  # fmt: skip
def test_dot_products(core: str, pair: tuple[DType, DType], name: str) -> None:
    assert f"\t{name}" in assembly(product(pair), core) or f"\t{name}.4s" in assembly(product(pair), core)


@pytest.mark.parametrize(("pair", "name"), [
    ((S8, S8), "smmla"), ((U8, U8), "ummla"), ((U8, S8), "usmmla"), ((BF16, BF16), "bfmmla"),
])  # fmt: skip
def test_steps_of_two_by_two_results(pair: tuple[DType, DType], name: str) -> None:
    """Many rows: sixteen sums in registers, and the copies of both operands are read as whole registers."""
    text = assembly(product(pair, 64), "neoverse-v2")
    loop = next(block for block in text.split("\n.LBB") if f"\t{name}" in block)
    assert loop.count(f"\t{name}") == 16
    assert "sp" not in loop[: loop.rindex(name)], "a sum is not in a register"
    assert "mmla" not in assembly(product(pair, 64), "neoverse-n1")


@pytest.mark.parametrize("registers", [2, 4])
@pytest.mark.parametrize("tables", [1, 2])
def test_bytes_of_a_table_in_registers(registers: int, tables: int) -> None:
    size = 16 * registers * tables
    places = (data(1, 64, dtype=U8) & (size - 1)).cast(dtypes.int32)
    target = replace(cpu_target.host_target(host.named_host("neoverse-n1")), table_bytes=16 * registers)
    text = assembly(take(data(0, 256, dtype=S8), places, 0), "neoverse-n1", target, "vectorize i0 16")
    assert text.count("\ttbl") == tables
    assert "ldrb" not in text


def test_halves_are_multiplied_as_halves() -> None:
    text = assembly(data(0, 64, dtype=dtypes.float16) * data(1, 64, dtype=dtypes.float16), "neoverse-n1")
    assert ".4h" in text
    assert "fcvt" not in text


@pytest.mark.parametrize("core", ["neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"])
def test_a_product_of_floats_does_not_spill(core: str) -> None:
    """Named regression: rows of one cache line, read in place and prefetched, took 13 registers of the stack."""
    text = assembly(matmul(data(0, 512, 512), data(1, 512, 512)), core)
    loop = max(re.split(r"\n\.?LBB", text), key=lambda block: block.count("\tfmla"))
    assert loop.count("\tfmla") == 48
    assert "[sp" not in loop[: loop.rindex("\tfmla")]
    assert "st1w" not in text
    assert ".z" not in text.split("fmla")[0].splitlines()[-1]


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN])
def test_a_maximum_keeps_nan(op: object) -> None:
    """`fmaxnm` and `fminnm` return the number where one side is nan."""
    text = assembly(UOp(op, dtypes.float32, (data(0, 64), data(1, 64))), "neoverse-n1")  # type: ignore[arg-type]
    assert "nm" not in text


def test_what_a_machine_lacks_is_a_bug_of_ours() -> None:
    target = Target("bare", vector_bytes=16)
    c = const(dtypes.int32.vec(4), 0)
    a, b = const(U8.vec(16), 1), const(S8.vec(16), 1)
    with pytest.raises(InternalError, match="llvmir: bare has no instruction for"):
        LLVMRenderer(target).render("k", [a, b, c, UOp(Ops.DOT, c.dtype, (a, b, c))])
