"""AArch64: the instructions that kernels become, compiled here for other machines."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, InternalError, Ops, Target, UOp, const, dtypes, memory_of, take
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


# --- results, under an emulator ---------------------------------------------------------------------------------------
SIZE = 64
EMULATOR, LINKER = shutil.which("qemu-aarch64"), shutil.which("ld.lld")
# Inputs are read from standard input, and the result is written: calls 63, 64 and 93 of Linux. llvmlite has no
# assembler for this architecture: `ask` is mov x8,x0; mov x0,x1; mov x1,x2; mov x2,x3; svc 0; ret.
START = """
@a = internal global [{size} x i8] zeroinitializer, align 64
@b = internal global [{size} x i8] zeroinitializer, align 64
@c = internal global [{out} x i8] zeroinitializer, align 64
@given = internal global [3 x ptr] [ptr {order[0]}, ptr {order[1]}, ptr {order[2]}]
@ask = internal constant [6 x i32] [i32 2852127720, i32 2852193248, i32 2852258785,
  i32 2852324322, i32 3556769793, i32 3596551104], section ".text", align 4
define void @_start() {{
  %1 = call i64 @ask(i64 63, i64 0, ptr @a, i64 {size})
  %2 = call i64 @ask(i64 63, i64 0, ptr @b, i64 {size})
  call void @k(ptr @given, i64 0, i64 {end})
  %3 = call i64 @ask(i64 64, i64 1, ptr @c, i64 {out})
  %4 = call i64 @ask(i64 93, i64 0, ptr null, i64 0)
  unreachable
}}
"""


def numbers(dtype: DType, rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes as they are stored, and their values; with the ends of the range."""
    if dtype is BF16:
        values = rng.integers(-64, 65, (SIZE, SIZE)).astype(np.float32)  # sums are exact in float32
        return (values.view(np.uint32) >> 16).astype(np.uint16), values
    stored = rng.integers(0, 256, (SIZE, SIZE)).astype(np.uint8).view(dtype.name)
    stored[0] = stored.dtype.type(np.iinfo(stored.dtype).min)
    return stored, stored.astype(np.int32)


@pytest.mark.skipif(not EMULATOR, reason="there is no qemu-aarch64: install qemu-user")
@pytest.mark.skipif(not LINKER, reason="there is no ld.lld: install lld")
@pytest.mark.parametrize(("left", "right", "name"), [
    (S8, S8, "smmla"), (U8, U8, "ummla"), (U8, S8, "usmmla"), (BF16, BF16, "bfmmla"),
])  # fmt: skip
def test_results_of_steps_of_two_by_two(left: DType, right: DType, name: str, tmp_path: Path) -> None:
    machine, rng = host.named_host("neoverse-v2"), np.random.default_rng(1)
    target, total = cpu_target.host_target(machine), dtypes.float32 if left.is_float else dtypes.int32
    places = data(0, SIZE, SIZE, dtype=left), data(1, SIZE, SIZE, dtype=right)
    uops = lowered(only(matmul(*(x.cast(total) for x in places))), target)
    written = {memory_of(u.src[0]) for u in uops if u.op is Ops.STORE}
    inputs = iter(("@a", "@b"))
    slots = sorted((u for u in uops if u.op is Ops.PARAM), key=lambda u: u.arg[0])
    (a, left_values), (b, right_values) = numbers(left, rng), numbers(right, rng)
    threads = [u.src[0].arg for u in uops if u.op is Ops.RANGE and u.arg[1].name == "THREAD"]
    text = LLVMRenderer(target).render("k", uops) + START.format(
        size=a.nbytes, out=4 * SIZE * SIZE, end=max(threads, default=1),
        order=["@c" if u in written else next(inputs) for u in slots],
    )  # fmt: skip
    assert f"neon.{name}" in text
    program = tmp_path / "program"
    program.with_suffix(".o").write_bytes(llvm_codegen.compile_ir(text, machine))
    assert LINKER
    assert EMULATOR
    (tmp_path / "input").write_bytes(a.tobytes() + b.tobytes())
    subprocess.run([LINKER, "-static", "-o", program, program.with_suffix(".o")], check=True)
    with (tmp_path / "input").open("rb") as given:
        done = subprocess.run(
            [EMULATOR, "-cpu", "max", program], stdin=given, capture_output=True, check=True, timeout=60
        )
    got = np.frombuffer(done.stdout, total.name).reshape(SIZE, SIZE)
    np.testing.assert_array_equal(got, left_values @ right_values)
