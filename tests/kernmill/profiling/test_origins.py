"""Layers, backward and updates in the origins of kernels, also of replays."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, jit, nn, profile
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
    with nn.scope("attention"):
        first = Tensor.ones(1, 4) * 2
        with nn.scope("out"):
            second = first * 3
    assert split_origin(first.uop.origin)[1] == "attention"
    assert split_origin(second.uop.origin)[1] == "attention.out"
    assert split_origin((first * 5).uop.origin)[1] == ""
