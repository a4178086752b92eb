"""Kernels that are made: schedules, given and chosen. What is found instead: test_build.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import Action
from kernmill.ir import Kernel, Target
from kernmill.runtime import (
    Device,
    GroupTooLarge,
    compile_with,
    counters,
    get_device,
    heuristic_schedule,
    later,
    render,
    schedule_of,
)
from tests.compiler.kernels import data, kernels, scheduled


def test_a_schedule_that_is_given_is_followed_and_nothing_is_kept() -> None:
    (kernel,) = kernels(scheduled(data(0, 48, 32) * 3.0))
    device, before = get_device("LLVM"), counters.compiled
    assert schedule_of(device, kernel) == heuristic_schedule(device, kernel)
    assert compile_with(device, kernel, [Action("thread", ("i0",))]).threads > 1
    assert render(device, kernel, []).threads == 1
    assert counters.compiled == before


def test_a_kernel_that_is_made_in_smaller_groups_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = kernels(scheduled(data(0, 40, 32) * 3.0))
    device, before, sizes = get_device("LLVM"), counters.compiled, list[int]()

    def made(device: Device, kernel: Kernel, actions: None, target: Target) -> later.compiling.Rendered:
        sizes.append(target.group_items)
        if target.group_items > 8:
            raise GroupTooLarge("too large")
        return render(device, kernel, [])

    monkeypatch.setattr(later.compiling, "render", made)
    unfinished = later.compiling.Unfinished(device, kernel, "0" * 64, None)
    unfinished.target = replace(device.target, group_items=32)
    unfinished.begin(is_one_of_many=False)
    unfinished.finish()
    assert sizes == [32, 16, 8]
    assert counters.compiled == before + 1
