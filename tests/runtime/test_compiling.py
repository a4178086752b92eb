"""Kernels that are made: schedules, given and chosen. What is found instead: test_build.py."""

from __future__ import annotations

from kernmill.compiler import Action
from kernmill.runtime import compile_with, counters, get_device, heuristic_schedule, render, schedule_of
from tests.compiler.kernels import data, kernels, scheduled


def test_a_schedule_that_is_given_is_followed_and_nothing_is_kept() -> None:
    (kernel,) = kernels(scheduled(data(0, 48, 32) * 3.0))
    device, before = get_device("LLVM"), counters.compiled
    assert schedule_of(device, kernel) == heuristic_schedule(device, kernel)
    assert compile_with(device, kernel, [Action("thread", ("i0",))]).threads > 1
    assert render(device, kernel, []).threads == 1
    assert counters.compiled == before
