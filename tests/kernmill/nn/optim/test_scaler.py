"""GradScaler: steps with an overflow change nothing, plain and captured."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kernmill import GradientError, SettingError, Tensor, autocast, dtypes, jit, nn
from tests.kernmill.against import values


def training(is_captured: bool, spoiled: tuple[int, ...] = (), **options: Any) -> tuple[list[Any], Any]:
    """The weight after each step, where the loss is infinite in some of them."""
    weight = Tensor(values(3, 2), requires_grad=True)
    optimizer = nn.optim.Adam([weight], lr=0.1)
    scaler = nn.optim.GradScaler(**options)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with autocast(dtypes.float16):
            loss = (x @ weight).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss

    run: Any = jit(step) if is_captured else step
    found = []
    for i in range(6):
        run(Tensor(values(4, 3, seed=i) * (1e30 if i in spoiled else 1)))
        found.append(weight.numpy().copy())
    return found, scaler


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_step_with_an_overflow_changes_nothing(is_captured: bool) -> None:
    found, scaler = training(is_captured, (1, 4), init_scale=1024.0, growth_interval=2)
    assert [bool((a == b).all()) for a, b in pairwise(found)] == [True, False, False, True, False]
    assert scaler.factor.item() == 1024 / 2 * 2 / 2
    assert scaler.good.item() == 1


def test_the_factor_does_not_change_the_steps() -> None:
    for one, two in zip(training(False, enabled=False)[0], training(True, init_scale=256.0)[0], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-2, atol=1e-2)


def test_states_and_clipping() -> None:
    weight = Tensor([2.0], requires_grad=True)
    optimizer, scaler = nn.optim.SGD([weight], lr=1.0), nn.optim.GradScaler(init_scale=64.0)
    scaler.scale((weight * 3).sum()).backward()
    scaler.unscale(optimizer)
    assert weight.grad is not None
    assert weight.grad.item() == 3
    assert nn.optim.clip_grad_norm([weight], 1.0).item() == 3
    scaler.step(optimizer)
    np.testing.assert_allclose(weight.numpy(), [1.0], rtol=1e-5)
    again = nn.optim.GradScaler()
    again.load_state_dict({name: t.numpy() for name, t in scaler.state_dict().items()})
    assert (again.factor.item(), again.good.item()) == (64, 1)


def test_mistakes() -> None:
    with pytest.raises(SettingError, match=r"^GradScaler: growth_factor is out of range."):
        nn.optim.GradScaler(growth_factor=1.0)
    weight = Tensor([2.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"^GradScaler: no parameter has a gradient. Call backward"):
        nn.optim.GradScaler().step(nn.optim.SGD([weight]))
