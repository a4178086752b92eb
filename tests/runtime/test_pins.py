"""PIN: patterns of source lines and layers give what they compute a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import CompileError, Context, SettingError, Tensor, jit, nn
from kernmill.ir import Pin, pin_of, split_origin
from kernmill.runtime import collecting_placements

ROOT = Path(__file__).parents[2]
X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).relu())
        return y


def placed(pin: str, run: Any, devices: str = "LLVM,PYTHON") -> dict[str, set[str]]:
    """The devices of each layer's units."""
    found: dict[str, set[str]] = {}
    with Context(DEVICE=devices, PIN=pin, CACHE="0"), collecting_placements() as graphs:
        run()
    for plan, _ in graphs:
        for unit in plan.placement().units if plan.placement is not None else ():
            found.setdefault(split_origin(unit.origin).layer, set()).add(unit.device)
    return found


def test_the_first_pattern_that_is_found_decides() -> None:
    pins = (Pin(r"blocks\.3", "A"), Pin("train.py", "B"))
    assert pin_of(pins, "train.py:41 in Net.blocks.3.q, backward") == pins[0]
    assert pin_of(pins, "train.py:41 in Net.blocks.4.q") == pins[1]
    assert pin_of(pins, "other.py:41") is pin_of(pins, None) is None


def test_a_layer_is_computed_where_it_is_pinned() -> None:
    net, x = Net(), Tensor(X)
    want = net(x).numpy()
    for value in net.parameters():
        value.realize()
    got: list[Any] = []
    found = placed(r"Net\.second=PYTHON", lambda: got.append(net(x).numpy()))
    assert found["Net.second"] == {"PYTHON"}
    assert found["Net.first"] == {"LLVM"}
    np.testing.assert_allclose(got[0], want, rtol=1e-6)


def test_a_plan_of_another_line_is_not_used() -> None:
    """Both lines compute graphs of one structure."""
    x = Tensor(X).realize()

    def both() -> list[Tensor]:
        a = (x * 3 + 1).realize()  # here
        b = (x * 3 + 1).realize()  # there
        return [a, b]

    line = both.__code__.co_firstlineno + 2
    got: list[Tensor] = []
    placed(rf"test_pins\.py:{line}\b=PYTHON", lambda: got.extend(both()))
    assert [t.device for t in got] == ["LLVM", "PYTHON"]
    np.testing.assert_array_equal(got[0].numpy(), got[1].numpy())


def test_captured_functions_follow_the_pins() -> None:
    net = Net()
    step = jit(lambda x: net(x).sum())
    want = step(Tensor(X)).item()
    for pin, device in (("second=PYTHON", "PYTHON"), ("", "LLVM")):
        with Context(DEVICE="LLVM,PYTHON", PIN=pin):
            for _ in range(3):
                got = step(Tensor(X))
        assert got.item() == pytest.approx(want, rel=1e-5)
        assert got.device == "LLVM" or device == "PYTHON"


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("first", r"Context: 'first' is not a value of PIN\. Valid: REGEX=DEVICE, several separated by ;"),
        ("(=LLVM", r"Context: '\(=LLVM' is not a value of PIN\."),
        ("=LLVM", r"is not a value of PIN\."),
        ("first=", r"is not a value of PIN\."),
        ("first=CL", r"PIN=first=CL: CL is not a device of DEVICE=LLVM,PYTHON\. Add it to DEVICE, or pin to one of"),
    ],
)
def test_pins_that_cannot_be(pin: str, message: str) -> None:
    with pytest.raises(SettingError, match=message), Context(DEVICE="LLVM,PYTHON", PIN=pin):
        (Tensor(X) + 1).realize()


def test_one_device_that_is_not_the_pins() -> None:
    with (
        Context(PIN="x=PYTHON"),
        pytest.raises(SettingError, match=r"PIN=x=PYTHON: PYTHON is not a device of DEVICE=L"),
    ):
        (Tensor(X) + 2).realize()


def test_a_pin_to_a_device_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernmill.ir import Ops
    from kernmill.runtime import get_device

    python = type(get_device("PYTHON"))
    monkeypatch.setattr(python, "supports", lambda self, op, node: "no EXP here" if op is Ops.EXP else True)
    message = r"PIN=test_pins=PYTHON: PYTHON cannot compute .*test_pins.py:\d+ \(no EXP here\)\. Pin it to another"
    with Context(DEVICE="LLVM,PYTHON", PIN="test_pins=PYTHON", CACHE="0"), pytest.raises(CompileError, match=message):
        Tensor(X).exp().realize()


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from kernmill import Tensor\nprint((Tensor([1.0, 2.0]) + 1).numpy())\n")
    given = {"PATH": "", "PYTHONPATH": str(ROOT), "CACHE": "0"}
    for pin, is_named in (("fc9=LLVM", True), (r"program\.py:2=LLVM", False)):
        done = subprocess.run(
            [sys.executable, str(program)], env={**given, "PIN": pin}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["[2.", "3.]"]
        assert (f"PIN: {pin.partition('=')[0]!r} matched nothing that was computed." in done.stderr) is is_named
