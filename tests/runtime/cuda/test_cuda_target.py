"""Generations of GPUs, as LLVM knows them."""

from __future__ import annotations

import pytest

from kernmill.runtime import cuda_target


@pytest.mark.parametrize(("generation", "cpu", "version"), [
    (75, "sm_75", "+ptx63"), (80, "sm_80", "+ptx70"), (87, "sm_86", "+ptx70"), (90, "sm_90", "+ptx78"),
    (100, "sm_100", "+ptx86"), (120, "sm_100", "+ptx86"), (30, "sm_60", "+ptx63"),
])  # fmt: skip
def test_generations(generation: int, cpu: str, version: str) -> None:
    """Code for an older generation runs on a later one."""
    machine = cuda_target.cuda_host(generation)
    assert (machine.cpu, machine.features) == (cpu, (version,))
    assert cuda_target.cuda_target(generation).group_items == 256
