"""The texts of a kernel: passes in order, each line of the code with its UOp, each instruction with its line."""

from __future__ import annotations

import pytest

from kernmill import Tensor
from kernmill.compiler import PIPELINE
from kernmill.ir import Kernel, Ops
from kernmill.runtime import get_device, kernel_page, passes_of, recording_profile, relative_names, split_locations


def kernels_of(device: str) -> list[Kernel]:
    x, w = Tensor.rand(8, 24, device=device), Tensor.rand(24, 16, device=device)
    Tensor.realize(x, w)
    with recording_profile() as found:
        (x @ w).softmax(1).realize()
    return [kernel for ran in found.ran.values() for kernel in ran.kernels]


def test_the_passes_are_those_of_the_pipeline(device: str) -> None:
    names = ["kernel", *(step.name for step in PIPELINE)]
    for kernel in kernels_of(device):
        page = kernel_page(get_device(device), kernel)
        shown = [step.name for step in page.passes]
        assert shown == [name for name in names if name in shown]
        assert shown[0] == "kernel"
        assert shown[-1] == "linearize"
        assert all(step.why for step in page.passes)
        assert float(page.cost["flops"]) > 0


@pytest.mark.parametrize("name", ["LLVM", "CL"])
def test_each_line_of_code_has_the_uop_that_wrote_it(name: str, request: pytest.FixtureRequest) -> None:
    if name == "CL":
        request.getfixturevalue("opencl")
    device = get_device(name)
    for kernel in kernels_of(name):
        page = kernel_page(device, kernel)
        _, uops, _ = passes_of(device, kernel)
        code = page.code.split("\n")
        assert len(page.code_uops) == len(code)
        stores = [number for number, uop in enumerate(uops) if uop.op is Ops.STORE]
        for number in stores:
            own = [line for line, of in zip(code, page.code_uops, strict=True) if of == number]
            assert any("store" in line or "=" in line for line in own), (number, own)
        assert max(page.code_uops) < len(uops)
        assert {number for number in page.code_uops if number >= 0} >= set(stores)


def test_instructions_have_the_line_of_the_code() -> None:
    device = get_device("LLVM")
    for kernel in kernels_of("LLVM"):
        page = kernel_page(device, kernel)
        assembly, code = page.assembly.split("\n"), page.code.split("\n")
        assert len(assembly) == len(page.assembly_lines)
        assert ".loc" not in page.assembly
        assert ".debug_" not in page.assembly
        known = [line for line in page.assembly_lines if line >= 0]
        assert len(known) > 3
        assert max(known) < len(code)
        called = [
            code[at] for text, at in zip(assembly, page.assembly_lines, strict=True) if at >= 0 and "\tret" in text
        ]
        assert all("ret" in line for line in called)


def test_a_device_without_assembly_has_none() -> None:
    page = kernel_page(get_device("PYTHON"), kernels_of("PYTHON")[0])
    assert page.assembly_lines == [-1] * (page.assembly.count("\n") + 1)
    assert kernel_page(get_device("LLVM"), kernels_of("LLVM")[0], has_assembly=False).assembly == ""


def test_what_is_for_debuggers_is_left_out() -> None:
    text = (
        '\t.file\t1 "a" "b"\nk:\n.Lfunc_begin0:\n\t.loc\t1 7 1\n\tvaddps\tx\n.LBB0_1:\n\tret\n'
        "\t.section\t.debug_abbrev\n\t.byte\t1\n"
    )
    shown, lines = split_locations(text)
    assert shown.split("\n") == ["k:", "\tvaddps\tx", ".LBB0_1:", "\tret"]
    assert lines == [-1, 6, -1, 6]


def test_generated_names_as_distances() -> None:
    code = "  %v12 = add %v3, %v11\n  store %v12, %v4\nentry:\n  float v13 = v12 * v2\n  if (v3 == v4) v5 = 1;"
    shown = relative_names(code)
    assert shown.split("\n")[0] == "  %v~12 = add %v~9, %v~1"
    assert shown.split("\n")[1] == "  store %v~0, %v~8"
