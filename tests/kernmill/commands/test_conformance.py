"""The score counts what differs, and the table is broad."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kernmill import Context, dtypes
from kernmill.commands import cli, conformance
from kernmill.ir import Ops, UOp, elementwise


def test_a_wrong_answer_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    array = np.array([1.0, 2.0, 3.0], np.float32)
    right = conformance.Case("unary", "NEG", ((array, dtypes.float32),), lambda leaves: elementwise(Ops.NEG, *leaves))
    bad = conformance.Case("unary", "BAD", ((array, dtypes.float32),), lambda leaves: UOp(Ops.TAKE, dtypes.float32, ()))
    monkeypatch.setattr(conformance, "cases", lambda: iter([right, right]))
    assert conformance.run(device)
    monkeypatch.setattr(conformance, "cases", lambda: iter([right, bad]))
    assert not conformance.run(device)
    assert "1 of     2" in capsys.readouterr().out
    monkeypatch.setattr(conformance, "evaluate", lambda root, arrays: array)
    assert conformance.check(right, device) == "3 of 3 differ, first at (0,): -1.0, not 1.0"


def test_the_table_holds_every_group() -> None:
    found = {case.group for case in conformance.cases()}
    assert found == {"unary", "binary", "compare", "ternary", "convert", "reduction", "movement", "tensor"}


def test_a_sample_is_right(device: str) -> None:
    plain = [
        c for c in conformance.cases() if c.name.startswith(("ADD float32", "MUL int32", "LT int8", "RESHAPE float32"))
    ]
    for case in itertools.islice(plain, 12):
        assert conformance.check(case, device) == "", case.name


def test_the_default_device_is_that_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regressions: `kernmill conformance` without --device was refused; with a list each case was placed on it,
    which took longer than ten minutes and judged no device by itself."""
    seen: list[str] = []

    def run(device: str, shown: int) -> bool:
        seen.append(device)
        return shown == 20

    monkeypatch.setattr(conformance, "run", run)
    with Context(DEVICE="PYTHON"):
        assert cli.main(["conformance"]) == 0
    assert cli.main(["conformance", "--device", "NULL,PYTHON"]) == 0
    assert seen == ["PYTHON", "NULL", "PYTHON"]
