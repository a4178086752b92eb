"""LAMB, Lion and Muon by their formulas, and every new optimizer in a captured step and from a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, ShapeError, Tensor, jit, nn
from tests.kernmill.against import only_on, values

on_device = only_on("LLVM")
OPTIM: Any = nn.optim
NAMES = ("Adadelta", "Adamax", "NAdam", "RAdam", "LAMB", "Lion", "Muon")


def train(name: str, steps: int, *, is_captured: bool = False, state: Any = None, **options: Any) -> Any:
    weight = Tensor(values(4, 3), requires_grad=True)
    optimizer = getattr(OPTIM, name)([weight], **options)
    if state is not None:
        weight.assign(state[0]).realize()
        optimizer.load_state_dict(state[1])

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (x @ weight).square().mean().backward()
        optimizer.step()

    run = jit(step) if is_captured else step
    first = 0 if state is None else 5
    for i in range(first, first + steps):
        run(Tensor(values(5, 4, seed=i)))
    return weight.numpy().copy(), optimizer


def by_formula(step: Any, steps: int = 5) -> Any:
    """The weight after the steps of a NumPy function of (step number, weight, gradient, state)."""
    w, state = values(4, 3).astype(np.float64), dict[str, Any]()
    for i in range(steps):
        x = values(5, 4, seed=i).astype(np.float64)
        w = step(i + 1, w, 2 * x.T @ (x @ w) / 15, state)
    return w


def lamb(t: int, w: Any, g: Any, state: dict[str, Any]) -> Any:
    m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    v = state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.1 * w
    return w - 0.01 * np.linalg.norm(w) / np.linalg.norm(step) * step


def lion(t: int, w: Any, g: Any, state: dict[str, Any]) -> Any:
    m = state.get("m", 0)
    state["m"] = 0.99 * m + 0.01 * g
    return w - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * w)


def muon(t: int, w: Any, g: Any, state: dict[str, Any]) -> Any:
    m = state["m"] = 0.95 * state.get("m", 0) + 0.05 * g
    x = (0.05 * g + 0.95 * m).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return w * (1 - 0.01 * 0.1) - 0.01 * np.sqrt(4 / 3) * x.T


@pytest.mark.parametrize(("name", "formula"), [("LAMB", lamb), ("Lion", lion), ("Muon", muon)])
def test_steps_are_the_formulas(name: str, formula: Any) -> None:
    for is_captured in (False, True):
        found, _ = train(name, 5, is_captured=is_captured, lr=0.01, weight_decay=0.1)
        np.testing.assert_allclose(found, by_formula(formula), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_captured_steps_and_saved_states(name: str) -> None:
    want, _ = train(name, 8)
    np.testing.assert_allclose(train(name, 8, is_captured=True)[0], want, rtol=1e-5, atol=1e-6)
    weight, optimizer = train(name, 5)
    saved = {key: tensor.numpy().copy() for key, tensor in optimizer.state_dict().items()}
    again, _ = train(name, 3, state=(weight, saved))
    np.testing.assert_allclose(again, want, rtol=1e-5, atol=1e-6)


def test_the_step_of_muon_has_equal_singular_values() -> None:
    weight = Tensor(values(6, 4), requires_grad=True)
    before = weight.numpy().copy()
    (weight * Tensor(values(6, 4, seed=1))).sum().backward()
    nn.optim.Muon([weight], lr=1.0, weight_decay=0).step()
    sizes = np.linalg.svd((before - weight.numpy()) / np.sqrt(6 / 4))[1]
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3


def test_mistakes() -> None:
    with pytest.raises(ShapeError, match=r"^Muon: parameter 0 of shape \(3,\) is not a matrix. Give it to AdamW."):
        nn.optim.Muon([Tensor(values(3), requires_grad=True)])
    with pytest.raises(SettingError, match=r"^Muon: adjust_lr='x'. Give 'original' or 'match_rms_adamw'."):
        nn.optim.Muon([Tensor(values(3, 3), requires_grad=True)], adjust_lr="x")
    with pytest.raises(SettingError, match=r"^Lion: betas=2. Give two numbers from 0 to below 1"):
        nn.optim.Lion([Tensor(values(3), requires_grad=True)], betas=2)  # type: ignore[arg-type]
