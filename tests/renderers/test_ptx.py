"""PTX: every small kernel through LLVM and, where it is installed, through NVIDIA's assembler."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from kernmill.ir import UOp, dtypes
from kernmill.renderers import PTXRenderer
from kernmill.runtime import cuda_target, llvm_codegen
from tests.compiler.kernels import data, lowered, matmul, only, small_kernels, softmax, total

KERNELS = small_kernels()


def ptxas() -> str:
    """NVIDIA's assembler: on the path, or from a package nvidia-cuda-nvcc."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in Path(folder).glob("**/bin/ptxas"):
            return str(found)
    return shutil.which("ptxas") or ""


def ptx(ast: UOp, generation: int = 90) -> str:
    target = cuda_target.cuda_target(generation)
    text = PTXRenderer(target).render("k", lowered(ast, target))
    return llvm_codegen.assembly(text, cuda_target.cuda_host(generation))


def assembled(text: str, generation: int, folder: Path) -> None:
    """Where NVIDIA's assembler is, it must take the text, and keep all values in registers."""
    if program := ptxas():
        (folder / "k.ptx").write_text(text)
        command = [program, "-arch", f"sm_{generation}", "-v", "k.ptx"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "0 bytes spill stores" in done.stderr


@pytest.mark.parametrize("name", KERNELS)
def test_llvm_makes_ptx_of_every_kernel(name: str, tmp_path: Path) -> None:
    text = ptx(KERNELS[name])
    assert ".visible .entry k(" in text
    assert ".extern" not in text, "a function of a library"
    if program := ptxas():
        (tmp_path / "k.ptx").write_text(text)
        done = subprocess.run([program, "-arch", "sm_90", "k.ptx"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("generation", [75, 80, 90, 100])
def test_generations(generation: int, tmp_path: Path) -> None:
    text = ptx(only(matmul(data(0, 256, 256), data(1, 256, 256))), generation)
    assert f".target sm_{generation}" in text
    assembled(text, generation, tmp_path)


def test_groups_share_memory_and_wait() -> None:
    text = ptx(only(matmul(data(0, 256, 256), data(1, 256, 256))))
    assert "bar.sync" in text or "barrier" in text
    assert ".shared" in text
    assert ".reqntid" in text
    assert "ld.global" in text
    assert "ld.shared" in text


def test_a_grid_without_groups_ends_at_its_last_item() -> None:
    text = ptx(only(data(0, 1000) + 1.0))
    assert "%ctaid.x" in text
    assert "setp" in text


def test_vectors_are_one_access() -> None:
    assert "v4" in ptx(only(data(0, 1 << 16) + 1.0))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int8], ids=str)
def test_types(dtype: object) -> None:
    for ast in (softmax(data(0, 64, 256)), total(data(0, 64, 256), 1)):
        assert ".entry" in ptx(only(ast))
    assert ".entry" in ptx(only(data(0, 4096, dtype=dtype) + data(1, 4096, dtype=dtype)))  # type: ignore[arg-type]
