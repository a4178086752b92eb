"""Twenty steps of each optimizer against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes, jit, nn
from tests.kernmill.against import values

torch = pytest.importorskip("torch")
SHAPES = ((2, 3), (3,))


def twenty_steps(name: str, options: dict[str, Any], steps: int = 20) -> float:
    """The largest difference after them."""
    ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in SHAPES]
    own, other = (
        getattr(nn.optim, name)(ours, lr=0.01, **options),
        getattr(torch.optim, name)(theirs, lr=0.01, **options),
    )
    for i in range(steps):
        own.zero_grad()
        other.zero_grad()
        for mine, their, shape in zip(ours, theirs, SHAPES, strict=True):
            target = values(*shape, seed=1)
            ((mine - Tensor(target)) * mine * (0.1 * i)).sum().backward()
            ((their - torch.tensor(target)) * their * (0.1 * i)).sum().backward()
        own.step()
        other.step()
    return max(float(np.abs(a.numpy() - b.detach().numpy()).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {}),
        ("Adam", {"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
        ("Adam", {"betas": (0.0, 0.9)}),
        ("AdamW", {}),
        ("AdamW", {"weight_decay": 0.2}),
    ],
)
def test_steps_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    assert twenty_steps(name, options) < 1e-6


@pytest.mark.parametrize("kind", [nn.optim.SGD, nn.optim.AdamW])
def test_a_captured_step_advances_as_a_plain_one(kind: Any) -> None:
    def train(is_captured: bool) -> Any:
        weight = Tensor(values(3, 2), requires_grad=True)
        optimizer = kind([weight], lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (x @ weight).square().sum()
            loss.backward()
            optimizer.step(loss)
            return loss.detach()

        run = jit(step) if is_captured else step
        for i in range(6):
            if i == 4:
                optimizer.lr = 0.01
            run(Tensor(values(4, 3, seed=i)))
        return weight.numpy().copy()

    np.testing.assert_allclose(train(True), train(False), rtol=1e-6, atol=1e-7)


def test_parameters_without_gradient_stay() -> None:
    used, unused = Tensor([1.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([used, unused], lr=0.5)
    used.sum().backward()
    optimizer.step()
    assert (used.item(), unused.item()) == (0.5, 1.0)
    optimizer.zero_grad()
    assert used.grad is None


def test_the_rate_is_a_tensor() -> None:
    rate, weight = Tensor([0.5]), Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=rate)
    assert optimizer.lr is rate
    optimizer.lr = 0.25
    weight.sum().backward()
    optimizer.step()
    assert (weight.item(), rate.item()) == (0.75, 0.25)


def test_half_parameters_stay_half() -> None:
    weight = Tensor([1.0, 2.0], dtypes.float16, requires_grad=True)
    optimizer = nn.optim.Adam([weight], lr=0.5)
    weight.square().sum().backward()
    optimizer.step()
    assert weight.dtype is dtypes.float16
    assert weight.tolist() == [0.5, 1.5]


def test_clipping_is_pytorchs() -> None:
    ours = [Tensor(values(*s), requires_grad=True) for s in SHAPES]
    theirs = [torch.tensor(values(*s), requires_grad=True) for s in SHAPES]
    for mine, their in zip(ours, theirs, strict=True):
        mine.square().sum().backward()
        their.square().sum().backward()
    norm = nn.optim.clip_grad_norm(ours, 1.0)
    want = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    assert norm.item() == pytest.approx(float(want), rel=1e-5)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        np.testing.assert_allclose(mine.grad.numpy(), their.grad.numpy(), rtol=1e-5)
