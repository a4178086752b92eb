"""Trying the matrix unit before it is used: right, wrong, ended, refused, and what is said about it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from kernmill.ir import Context, Unit
from kernmill.renderers import LLVMRenderer
from kernmill.runtime import get_device, host
from tests.compiler.tiles import UNITS
from tests.renderers.test_amx import amx_host

check: Any = importlib.import_module("kernmill.runtime.cpu.amx_trial")
BYTES = next(unit for unit in UNITS if unit.a is unit.b and unit.a.name == "uint8")


@pytest.fixture(autouse=True)
def _forget() -> None:
    check._fault.cache_clear()


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u.a}-{u.b}")
def test_functions_in_its_place_give_the_right_sums(unit: Unit) -> None:
    assert check.trial(unit, host.this_host(), has_tiles=False)()


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u.a}-{u.b}")
def test_the_unit_itself(unit: Unit) -> None:
    if unit not in check.matrix_unit(host.this_host())[0]:
        pytest.skip("this CPU has no such matrix unit")
    assert check.trial(unit, host.this_host(), has_tiles=True)()


def test_wrong_sums_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    render = LLVMRenderer.render
    monkeypatch.setattr(
        LLVMRenderer, "render", lambda self, *a: render(self, *a).replace("mul <64 x i32>", "add <64 x i32>")
    )
    assert not check.trial(BYTES, host.this_host(), has_tiles=False)()


def test_an_instruction_that_is_not_there_ends_only_the_trial() -> None:
    if host.request_amx():
        pytest.skip("this CPU has a matrix unit")
    fault = check._outcome([check.trial(BYTES, amx_host(), has_tiles=True)])
    assert fault == "a process that tried it ended with -4"


@pytest.mark.parametrize(
    ("trials", "fault"),
    [
        ([lambda: True, lambda: True], ""),
        ([lambda: True, lambda: False], "its products are wrong"),
        ([lambda: os._exit(7)], "a process that tried it ended with 7"),
    ],
)
def test_outcomes(trials: list[Callable[[], bool]], fault: str) -> None:
    assert check._outcome(trials) == fault


@pytest.mark.parametrize(
    ("fault", "units", "message"),
    [
        ("", UNITS, "matrix unit: int8, uint8, bfloat16, float16"),
        ("its products are wrong", (), "matrix unit: not used, its products are wrong"),
    ],
)
def test_the_answer_decides_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, fault: str, units: tuple[Unit, ...], message: str
) -> None:
    asked: list[int] = []

    def outcome(trials: list[Callable[[], bool]]) -> str:
        asked.append(len(trials))
        return fault

    monkeypatch.setattr(check, "trial", lambda unit, host, has_tiles: lambda: True)
    monkeypatch.setattr(check, "_outcome", outcome)
    with Context(TARGET="", CACHE_DIR=str(tmp_path), CACHE="1"):
        assert check.matrix_unit(amx_host()) == (units, message)
        check._fault.cache_clear()
        assert check.matrix_unit(amx_host()) == (units, message)
    assert asked == [len(UNITS)]


def test_a_refusal_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("kernmill.runtime.cpu.host")
    monkeypatch.setattr(module, "_cpuinfo", lambda: ("GenuineIntel", {"amx_tile"}))
    monkeypatch.setattr(module, "request_amx", lambda: False)
    plain = host.Host("x86_64", "x86-64-v4", ("+avx512f",), 1, 1, 1)
    with Context(TARGET=""):
        units, text = check.matrix_unit(plain)
    assert not units
    assert text == "matrix unit: not used, the system denies it to this process (arch_prctl ARCH_REQ_XCOMP_PERM)"


def test_info_says_that_functions_stand_for_it() -> None:
    with Context(TARGET="amx"):
        device = get_device("LLVM")
        assert device.details() == ["matrix unit: emulated by functions (TARGET=amx)"]
        assert device.target.name.endswith("-amx")
