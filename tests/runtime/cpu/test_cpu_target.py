"""The Target of a CPU, from its features."""

from __future__ import annotations

import pytest

from kernmill.ir import Ops, dtypes
from kernmill.runtime import arm, cpu_target, host

V4 = tuple(f"+{name}" for name in ("avx2", "fma", "f16c", "ssse3", "avx512f", "avx512bw", "avx512vl", "avx512vnni"))


@pytest.mark.parametrize(("features", "vector", "registers", "most"), [
    (V4, 64, 32, 255), (V4[:4], 32, 16, 127), (("+ssse3", "+sse4.1"), 16, 16, 127),
])  # fmt: skip
def test_x86(features: tuple[str, ...], vector: int, registers: int, most: int) -> None:
    target = cpu_target.host_target(host.Host("x86_64", "x", features, 32 << 10, 1 << 20, 0))
    assert (target.vector_bytes, target.vector_registers, target.dot_most) == (vector, registers, most)
    assert target.instructions == "x86"
    assert target.dots == {(dtypes.uint8, dtypes.int8)}
    assert (Ops.SCALE in target.ops) == (vector == 64)


def test_aarch64() -> None:
    target = cpu_target.host_target(host.named_host("neoverse-v2"))
    assert (target.vector_bytes, target.vector_registers, target.table_bytes) == (16, 32, 64)
    assert target.instructions == "aarch64"
    assert (dtypes.bfloat16, dtypes.bfloat16) in target.dots
    assert dtypes.float16 in target.compute_dtypes
    assert target.accumulators == 24
    old = host.named_host("neoverse-n1")._replace(features=arm.feature_list(set()))
    assert not cpu_target.host_target(old).dots


def test_another_machine_has_16_bytes_and_no_instructions_of_its_own() -> None:
    target = cpu_target.host_target(host.Host("riscv64", "generic", (), 32 << 10, 1 << 20, 0))
    assert target.instructions == ""
    assert target.vector_bytes == 16
    assert not target.dots
