"""The functions of the resident program; tests/runtime/test_ops_htp.py compares their results with NumPy."""

from __future__ import annotations

from kernmill.runtime import functions, hexagon, llvm_codegen, resident


def test_names() -> None:
    names = functions.function_names()
    assert {"memcpy", "memset", "malloc", "free", "sqrt", "fma", "__hexagon_divdf3", "__hexagon_umoddi3"} <= {*names}
    assert len(names) == len({*names})


def test_llvm_takes_them() -> None:
    assert llvm_codegen.compile_ir(resident.resident_ir(), hexagon.hexagon_host(67))[:4] == b"\x7fELF"
