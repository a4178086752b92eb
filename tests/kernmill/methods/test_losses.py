from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import IndexRangeError, Tensor, dtypes
from tests.kernmill.against import values, with_torch

REDUCTIONS = ["mean", "sum", "none"]
X, Y = values(4, 5), values(4, 5, seed=1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_regression_losses_are_torchs(name: str, reduction: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn.functional, name)
    with_torch(
        lambda a, b: getattr(a, name)(b, reduction=reduction), lambda a, b: theirs(a, b, reduction=reduction), [X, Y]
    )


def test_smooth_l1_with_beta_zero_is_l1() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.smooth_l1_loss
    with_torch(lambda a, b: a.smooth_l1_loss(b, beta=0.0), lambda a, b: theirs(a, b, beta=0.0), [X, Y])


def test_binary_cross_entropy_of_certain_probabilities_has_a_gradient() -> None:
    p = Tensor([0.0, 1.0, 0.0, 1.0, 0.5], requires_grad=True)
    loss = p.binary_cross_entropy(Tensor([0.0, 1.0, 1.0, 0.0, 1.0]), reduction="none")
    np.testing.assert_allclose(loss.numpy(), [0, 0, 100, 100, np.log(2)], rtol=1e-6)
    loss.sum().backward()
    assert p.grad is not None
    np.testing.assert_allclose(p.grad.numpy(), [1, -1, 0, 0, -2])  # at the cut the gradient is 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropies_are_torchs(reduction: str) -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    p, t = values(4, 5, low=0.05, high=0.95), (Y > 0).astype(np.float32)
    with_torch(lambda a: a.binary_cross_entropy(Tensor(t), reduction=reduction),
               lambda a: f.binary_cross_entropy(a, torch.tensor(t), reduction=reduction), [p], 1e-5)  # fmt: skip
    wide = X * 40
    with_torch(lambda a: a.binary_cross_entropy_with_logits(Tensor(t), reduction=reduction),
               lambda a: f.binary_cross_entropy_with_logits(a, torch.tensor(t), reduction=reduction),
               [wide], 1e-5)  # fmt: skip


@pytest.mark.parametrize("reduction", ["sum", "none", "batchmean"])
def test_kl_div_is_torchs(reduction: str) -> None:
    torch = pytest.importorskip("torch")
    kl_div = torch.nn.functional.kl_div
    t = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
    t[0, 0] = 0
    with_torch(lambda a: a.kl_div(Tensor(t), reduction), lambda a: kl_div(a, torch.tensor(t), reduction=reduction), [X])
    with_torch(lambda a: a.kl_div(Tensor(Y), reduction, log_target=True),
               lambda a: kl_div(a, torch.tensor(Y), reduction=reduction, log_target=True), [X])  # fmt: skip


WEIGHT = values(5, low=0.5, high=2)
OPTIONS: list[dict[str, Any]] = [{}, {"label_smoothing": 0.2}, {"weight": WEIGHT},
                                 {"weight": WEIGHT, "label_smoothing": 0.1}, {"ignore_index": 3},
                                 {"ignore_index": 3, "label_smoothing": 0.1, "weight": WEIGHT}]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_cross_entropy_is_torchs(options: dict[str, Any], reduction: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.cross_entropy
    own = {k: Tensor(v) if k == "weight" else v for k, v in options.items()}
    ref = {k: torch.tensor(v) if k == "weight" else v for k, v in options.items()}
    classes = np.array([0, 3, 4, 1])
    with_torch(lambda a: a.cross_entropy(Tensor(classes), reduction=reduction, **own),
               lambda a: theirs(a, torch.tensor(classes), reduction=reduction, **ref), [X], 1e-5)  # fmt: skip
    pixels = np.random.default_rng(0).integers(0, 5, (2, 3, 4))
    with_torch(lambda a: a.cross_entropy(Tensor(pixels), reduction=reduction, **own),
               lambda a: theirs(a, torch.tensor(pixels), reduction=reduction, **ref),
               [values(2, 5, 3, 4)], 1e-5)  # fmt: skip
    if "ignore_index" not in options:
        p = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
        with_torch(lambda a: a.cross_entropy(Tensor(p), reduction=reduction, **own),
                   lambda a: theirs(a, torch.tensor(p), reduction=reduction, **ref), [X], 1e-5)  # fmt: skip


def test_one_example_and_the_negative_log_likelihood() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    with_torch(lambda a: a.cross_entropy(Tensor(2)), lambda a: f.cross_entropy(a, torch.tensor(2)), [values(5)])
    with_torch(lambda a: a.nll_loss(Tensor([0, 3, 4, 1])), lambda a: f.nll_loss(a, torch.tensor([0, 3, 4, 1])), [X])


def test_a_class_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(IndexRangeError, match="outside axis 1 of size 5"):
        Tensor(X).cross_entropy(Tensor([0, 5, 1, 2])).realize()


def test_minus_infinity_elsewhere_does_not_leak() -> None:
    assert Tensor([[0.0, -np.inf]]).cross_entropy(Tensor([0])).item() == 0


@pytest.mark.parametrize("target", [[-1], [-100]])
def test_a_negative_class_does_not_wrap(target: list[int]) -> None:
    for computed in (Tensor(target), Tensor(target) + 0):
        with pytest.raises(IndexRangeError, match="outside axis 1 of size 2, 0 to 1"):
            Tensor([[1.0, 2.0]]).cross_entropy(computed, ignore_index=-7).realize()
        with pytest.raises(IndexRangeError, match="nll_loss: a class"):
            Tensor([[1.0, 2.0]]).nll_loss(computed, ignore_index=-7).realize()


def test_losses_of_halves_are_computed_in_float32() -> None:
    x, y = Tensor(np.full(4, 300, np.float16)), Tensor(np.zeros(4, np.float16))
    assert x.smooth_l1_loss(y, beta=0.5).item() == 299.75 // 0.25 * 0.25
    assert x.huber_loss(y, delta=300.0).dtype is dtypes.float16
    assert x.mul(0.5).huber_loss(y, delta=300.0).item() == 11248  # 150 * 150 / 2, rounded
    assert x.mse_loss(y, "mean").item() == np.inf  # 90000 is no half
    wide = Tensor(np.array([300, 0, 0, 0], np.float16))
    assert wide.mse_loss(y).item() == 22496  # 22500, rounded; the square alone is no half


@pytest.mark.parametrize("size", [(64, 10), (100, 10), (128, 3), (128, 16), (8, 7), (16, 500)])
def test_the_gradient_of_cross_entropy_at_every_size(size: tuple[int, int]) -> None:
    """Once wrong from 64 rows of few classes on: rows that a kernel keeps lay over each other."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    wanted = np.arange(size[0]) % size[1]
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    ours.cross_entropy(Tensor(wanted)).backward()
    torch.nn.functional.cross_entropy(theirs, torch.tensor(wanted)).backward()
    assert ours.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), atol=1e-7)
