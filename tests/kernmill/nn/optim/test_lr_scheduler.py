"""Schedules of the rate: PyTorch's where it is installed, their formulas, and captured steps that follow them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, Tensor, jit, nn
from kernmill.nn.optim import lr_scheduler
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
OURS: Any = lr_scheduler
CASES: dict[str, tuple[Any, ...]] = {
    "LambdaLR": (lambda i: 1 / (1 + i),),
    "StepLR": (3, 0.5),
    "MultiStepLR": ([2, 5, 5, 9], 0.5),
    "ExponentialLR": (0.9,),
    "ConstantLR": (0.25, 4),
    "LinearLR": (0.1, 0.8, 6),
    "PolynomialLR": (7, 2.0),
    "CosineAnnealingLR": (8, 0.01),
    "CosineAnnealingWarmRestarts": (3, 2, 0.01),
    "OneCycleLR": (0.5, 20),
}


def optimizer_of(rate: float = 0.1) -> nn.optim.Optimizer:
    return nn.optim.SGD([Tensor([1.0], requires_grad=True)], lr=rate)


def rates(schedule: Any, optimizer: Any, steps: int = 18) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(float(optimizer.lr.item()))
        schedule.step()
    return found


def theirs(make: Any, steps: int = 18) -> list[float]:
    torch: Any = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule, found = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("name", CASES)
def test_rates_are_pytorchs(name: str) -> None:
    own = optimizer_of()
    found = rates(getattr(OURS, name)(own, *CASES[name]), own)
    assert found == pytest.approx(theirs(lambda them, other: getattr(them, name)(other, *CASES[name])), rel=1e-5)


def test_schedules_of_schedules_are_pytorchs() -> None:
    def sequential(module: Any, optimizer: Any) -> Any:
        parts = [module.LinearLR(optimizer, 0.1, 1.0, 4), module.CosineAnnealingLR(optimizer, 10)]
        return module.SequentialLR(optimizer, parts, [4])

    def chained(module: Any, optimizer: Any) -> Any:
        return module.ChainedScheduler([module.ConstantLR(optimizer, 0.5, 4), module.ExponentialLR(optimizer, 0.9)])

    for make in (sequential, chained):
        own = optimizer_of()
        assert rates(make(OURS, own), own) == pytest.approx(theirs(make), rel=1e-5)


def test_formulas() -> None:
    own = optimizer_of()
    found = rates(lr_scheduler.WarmupCosineLR(own, 4, 12, 0.02), own, 14)
    cosine = [0.02 + 0.08 * (1 + math.cos(math.pi * min(1, i / 8))) / 2 for i in range(10)]
    assert found == pytest.approx([0.025, 0.05, 0.075, 0.1, *cosine], rel=1e-5)
    own = optimizer_of()
    assert rates(lr_scheduler.StepLR(own, 2, 0.5), own, 5) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])


def test_a_plateau() -> None:
    losses = [5, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3]
    own = optimizer_of()
    schedule = lr_scheduler.ReduceLROnPlateau(own, factor=0.5, patience=2, cooldown=1, min_lr=0.03)
    found = []
    for loss in losses:
        schedule.step(Tensor(float(loss)))
        found.append(own.lr.item())
    assert found == pytest.approx([0.1] * 4 + [0.05] * 5 + [0.03] * 0 + [0.03] * 0 + [0.03] * 3, rel=1e-5)
    torch: Any = pytest.importorskip("torch")
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(other, factor=0.5, patience=2, cooldown=1, min_lr=0.03)
    for loss, rate in zip(losses, found, strict=True):
        peer.step(loss)
        assert other.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-5)


def test_a_captured_step_follows_and_is_not_captured_again() -> None:
    weight = Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=1.0)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)

    @jit
    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    for _ in range(6):
        step()
        schedule.step()
    np.testing.assert_allclose(weight.numpy(), [1 - sum(0.5**i for i in range(6))], rtol=1e-6)
    assert step.cache_info().captures == 1


def test_groups_and_states() -> None:
    make: Any = lambda: nn.optim.SGD(  # noqa: E731
        [{"params": [Tensor([1.0], requires_grad=True)]}, {"params": [Tensor([1.0], requires_grad=True)], "lr": 0.5}]
    )
    first, second = make(), make()
    schedule, again = (lr_scheduler.StepLR(o, 2, 0.1) for o in (first, second))
    for _ in range(3):
        schedule.step()
    again.load_state_dict(schedule.state_dict())
    assert again.get_last_lr() == schedule.get_last_lr() == pytest.approx([1e-4, 0.05])
    assert second.groups[1].lr.item() == pytest.approx(0.05)


def test_mistakes() -> None:
    own = optimizer_of()
    calls: tuple[tuple[Any, str], ...] = (
        (lambda: OURS.StepLR(3, 3), "StepLR: int is not an optimizer. Give one of kernmill.nn.optim."),
        (lambda: OURS.StepLR(own, 0), "StepLR: step_size=0. Give an integer, 1 or more."),
        (lambda: OURS.WarmupCosineLR(own, 5, 5), "WarmupCosineLR: total_iters=5. Give an integer, 6 or more."),
        (lambda: OURS.SequentialLR(own, [], [1]), "SequentialLR: 0 schedulers with milestones"),
        (lambda: OURS.ChainedScheduler([]), "ChainedScheduler: no schedulers."),
        (
            lambda: OURS.ReduceLROnPlateau(own).step(),
            "without a number. Write step",
        ),
        (lambda: OURS.ReduceLROnPlateau(own, "most"), "ReduceLROnPlateau: mode='most'. Give 'min' or 'max'."),
        (lambda: OURS.StepLR(own, 3).load_state_dict({}), "StepLR: the state is not that of a schedule over 1 groups."),
        (lambda: OURS.OneCycleLR(own, 1.0, 5).rate(6, 0.1), "OneCycleLR: step 6 of 5. Make the schedule with more"),
    )
    for call, text in calls:
        with pytest.raises(SettingError, match=text):
            call()
