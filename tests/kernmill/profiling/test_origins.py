"""Layers, backward and updates in the origins of kernels, also of replays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernmill import Context, Tensor, jit, nn, profile, scope
from kernmill.ir import split_origin
from kernmill.nn import optim
from kernmill.profiling import Profile
from kernmill.runtime import families, plan


@pytest.fixture(autouse=True)
def on_device() -> None:
    """The default one."""
    plan.plans.clear()
    families.families.clear()


class Block(nn.Module):
    def __init__(self) -> None:
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.up(x)
        change: Tensor = self.down(hidden.tanh())
        return x + change


class Net(nn.Module):
    def __init__(self) -> None:
        self.blocks = [Block(), Block()]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def parts(found: Profile) -> set[tuple[str, str]]:
    """Layers and roles of all launched kernels."""
    origins = [o for ran in found.recorder.ran.values() for kernel in ran.kernels for o in kernel.origins]
    return {split_origin(origin)[1:] for origin in origins}


def test_layers_are_named_by_their_path() -> None:
    net, x = Net(), Tensor(np.ones((2, 8), np.float32))
    with profile() as found:
        net(x).realize()
    names = {layer for layer, _ in parts(found)}
    assert {f"Net.blocks.{n}.{name}" for n in (0, 1) for name in ("up", "down")} <= names


def test_a_captured_step_names_layers_backward_and_parameters() -> None:
    net, x = Net(), Tensor(np.ones((2, 8), np.float32))
    optimizer = optim.Adam(net.parameters())

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        out: Tensor = net(x)
        loss = (out**2).mean()
        loss.backward()
        optimizer.step()
        return loss

    step(x), step(x)
    with profile() as found:
        step(x)
    seen = parts(found)
    assert ("Net.blocks.1.up", "backward") in seen
    assert {f"update of {name}" for name, _ in net.named_parameters()} <= {role for _, role in seen}
    rows = [row for row in found.rows if row.line.endswith(", update")]
    assert any("blocks.0.up.weight" in row.layers for row in rows)


def test_a_layer_outside_of_a_model_is_its_own_root() -> None:
    layer = nn.Linear(4, 4)
    line = layer(Tensor.ones(1, 4)).uop.origin
    assert split_origin(line)[1] == "Linear"
    assert split_origin((Tensor.ones(1, 4) * 2).uop.origin)[1:] == ("", "")


def test_a_layer_that_fails_leaves_no_name_behind() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(Exception, match="shape"):
        layer(Tensor.ones(1, 5))
    assert split_origin((Tensor.ones(1, 4) * 2).uop.origin)[1] == ""


def test_a_block_has_a_name() -> None:
    with scope("attention"):
        first = Tensor.ones(1, 4) * 2
        with scope("out"):
            second = first * 3
    assert split_origin(first.uop.origin)[1] == "attention"
    assert split_origin(second.uop.origin)[1] == "attention.out"
    assert split_origin((first * 5).uop.origin)[1] == ""


STEP = """
from kernmill import Tensor, nn, profile
class Net(nn.Module):
    def __init__(self): self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
    def forward(self, x): return self.down(self.up(x).tanh())
net, x = Net(), Tensor.ones(2, 8)
optimizer = nn.optim.SGD(net.parameters(), lr=0.1)
with profile() as found:
    loss = (net(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    loss.realize()
print(found.totals.compiled)
for row in sorted(found.rows, key=lambda row: (row.name, row.line, row.layers)):
    print(row.name, row.line, sorted(row.others), sorted(row.layers))
"""


def test_plans_from_disk_have_the_same_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "step.py").write_text(STEP)
    first, second = (
        subprocess.run(
            [sys.executable, str(tmp_path / "step.py")], capture_output=True, text=True, check=True, env=environment
        ).stdout.partition("\n")
        for _ in range(2)
    )
    assert int(first[0]) > 0
    assert second[0] == "0"
    assert first[2] == second[2]
    assert "step.py:9, backward" in second[2]
    assert "['up.weight']" in second[2]
    assert "Net.down" in second[2]


@pytest.mark.parametrize("devices", ["LLVM,PYTHON", "PYTHON,LLVM"])
def test_parts_of_a_graph_that_is_divided_have_their_lines(devices: str) -> None:
    net, x = Block(), Tensor(np.ones((2, 8), np.float32)).realize()
    Tensor.realize(*net.parameters())
    with Context(DEVICE=devices, PIN=r"Block\.up=LLVM;Block\.down=PYTHON"), profile() as found:
        net(x).realize()
    layers = {(row.device, layer) for row in found.rows for layer in row.layers}
    assert {("LLVM", "Block.up"), ("PYTHON", "Block.down")} <= layers
    assert all(row.line.rpartition(":")[0] == __file__ for row in found.rows)


def test_a_kernel_with_a_reduction_is_at_the_line_of_that() -> None:
    a, b = Tensor.ones(6, 1, 8).contiguous().realize(), Tensor.ones(1, 20, 8).contiguous().realize()
    with scope("distances"):
        distances = ((a - b) ** 2).sum(2)
    with scope("nearest"):
        nearest = distances.argmin(1)
    with profile() as found:
        nearest.realize()
    assert {row.name.partition("_")[0]: row.layers[0] for row in found.rows} == {"sum": "distances", "min": "nearest"}
