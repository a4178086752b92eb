"""Trying the matrix unit before it is used: right, wrong, ended, refused, and what is said about it."""

from __future__ import annotations

import importlib
import json
import subprocess
from typing import Any

import pytest

from kernmill.ir import Context, Unit
from kernmill.renderers import LLVMRenderer
from kernmill.runtime import get_device, host
from tests.compiler.tiles import UNITS
from tests.renderers.test_amx import amx_host

check: Any = importlib.import_module("kernmill.runtime.tile_check")


@pytest.fixture(autouse=True)
def _forget() -> None:
    check._fault.cache_clear()


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str) -> list[object]:
    asked: list[object] = []

    def run(command: object, **_: object) -> object:
        asked.append(command)
        return subprocess.CompletedProcess([], code, out, "")

    monkeypatch.setattr(check.subprocess, "run", run)
    return asked


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u.a}-{u.b}")
def test_functions_in_its_place_give_the_right_sums(unit: Unit) -> None:
    assert check.try_unit(unit, host.this_host(), has_tiles=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: f"{u.a}-{u.b}")
def test_the_unit_itself(unit: Unit) -> None:
    if unit not in check.matrix_unit(host.this_host())[0]:
        pytest.skip("this CPU has no such matrix unit")
    assert check.try_unit(unit, host.this_host(), has_tiles=True)


def test_wrong_sums_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    render = LLVMRenderer.render
    monkeypatch.setattr(
        LLVMRenderer, "render", lambda self, *a: render(self, *a).replace("mul <16 x i32>", "add <16 x i32>")
    )
    unit = next(unit for unit in UNITS if unit.a is unit.b and unit.a.name == "uint8")
    assert not check.try_unit(unit, host.this_host(), has_tiles=False)


def test_what_works_is_used_and_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked = answer(monkeypatch, 0, json.dumps(""))
    with Context(TARGET="", CACHE_DIR=str(tmp_path)):
        units, text = check.matrix_unit(amx_host())
        check._fault.cache_clear()
        assert check.matrix_unit(amx_host())[0] == units == UNITS
    assert text == "matrix unit: int8, uint8, bfloat16, float16"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("code", "out", "message"),
    [
        (0, json.dumps("products are wrong: int8 by int8"), "matrix unit: not used, products are wrong: int8 by int8"),
        (-4, "", "matrix unit: not used, trying it ended a process (-4)"),
    ],
)
def test_what_does_not_work_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, code: int, out: str, message: str
) -> None:
    answer(monkeypatch, code, out)
    with Context(TARGET="", CACHE_DIR=str(tmp_path)):
        assert check.matrix_unit(amx_host()) == ((), message)


def test_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def run(command: object, **_: object) -> object:
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(check.subprocess, "run", run)
    with Context(TARGET="", CACHE_DIR=str(tmp_path)):
        units, text = check.matrix_unit(amx_host())
    assert not units
    assert text.startswith("matrix unit: not used, trying it in a process of its own failed:")


def test_a_refusal_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("kernmill.runtime.host")
    monkeypatch.setattr(module, "_cpuinfo", lambda: ("GenuineIntel", {"amx_tile"}))
    monkeypatch.setattr(module, "request_amx", lambda: False)
    plain = host.Host("x86_64", "x86-64-v4", ("+avx512f",), 1, 1, 1)
    with Context(TARGET=""):
        units, text = check.matrix_unit(plain)
    assert not units
    assert text == "matrix unit: not used, the system does not let this process (arch_prctl ARCH_REQ_XCOMP_PERM)"


def test_the_process_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "this_host", amx_host)
    monkeypatch.setattr(check, "try_unit", lambda unit, host, has_tiles: unit.a.is_int)
    check.main()
    assert json.loads(capsys.readouterr().out) == "products are wrong: bfloat16 by bfloat16, float16 by float16"


def test_info_says_that_functions_stand_for_it() -> None:
    with Context(TARGET="amx"):
        device = get_device("LLVM")
        assert device.details() == ["matrix unit: functions stand for one (TARGET=amx)"]
        assert device.target.name.endswith("-amx")
