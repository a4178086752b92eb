"""Both makers' GPUs: what their code may use differs in names, instructions, matrix units, memory and machine."""

from __future__ import annotations

from dataclasses import replace

from kernmill.runtime import amd_target, cuda_target


def test_targets_of_both_makers() -> None:
    amd, cuda = amd_target.amd_target("gfx1100"), cuda_target.cuda_target(90, 64 << 10)
    assert (amd.name, cuda.name) == ("amd-gfx1100-256-64", "cuda-sm_90-256-64")
    assert amd == replace(cuda, name=amd.name, instructions="amdgcn", machine=amd.machine, units=amd.units)
