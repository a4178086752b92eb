"""Each layer against PyTorch's of the same weights: values, and gradients of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import DType, ShapeError, Tensor, dtypes, manual_seed, nn, train
from tests.kernmill.against import close, values

torch = pytest.importorskip("torch")


def together(ours: nn.Module, theirs: Any, *arrays: Any, tolerance: float = 1e-5, **options: Any) -> None:
    """The same state, the same inputs: values and gradients of the parameters agree."""
    ours.load_state_dict({n: t.detach().numpy() for n, t in theirs.state_dict().items() if t.ndim})
    got = ours(*(Tensor(a) for a in arrays), **options)
    want = theirs(*(torch.tensor(a) for a in arrays))
    want = want[0] if isinstance(want, tuple) else want
    close(got.detach(), want.detach().numpy(), tolerance, tolerance)
    weight = values(*want.shape, seed=9)
    (got * Tensor(weight)).sum().backward()
    (want * torch.tensor(weight)).sum().backward()
    named = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        close(parameter.grad, named[name].grad.numpy(), tolerance * 4, tolerance * 4)


def test_linear() -> None:
    together(nn.Linear(5, 3), torch.nn.Linear(5, 3), values(2, 4, 5))
    together(nn.Linear(5, 3, bias=False), torch.nn.Linear(5, 3, bias=False), values(2, 5))


def test_convolutions() -> None:
    together(nn.Conv1d(2, 4, 3, padding=1, groups=2), torch.nn.Conv1d(2, 4, 3, padding=1, groups=2), values(2, 2, 5))
    together(nn.Conv2d(2, 3, (3, 2), stride=2), torch.nn.Conv2d(2, 3, (3, 2), stride=2), values(2, 2, 5, 4))
    together(nn.ConvTranspose2d(2, 3, 2, stride=2), torch.nn.ConvTranspose2d(2, 3, 2, stride=2), values(1, 2, 3, 3))


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 2, 2)])
def test_batch_norm_in_training_and_in_use(shape: tuple[int, ...]) -> None:
    theirs = torch.nn.BatchNorm1d(3) if len(shape) == 2 else torch.nn.BatchNorm2d(3)
    ours = nn.BatchNorm(3).train()
    theirs.weight.data[:] = torch.tensor([0.5, 1.0, 2.0])
    together(ours, theirs, values(*shape), tolerance=2e-5)
    assert ours.running_mean is not None
    assert ours.running_var is not None
    close(ours.running_mean, theirs.running_mean.numpy(), 1e-5, 1e-6)
    close(ours.running_var, theirs.running_var.numpy(), 1e-5, 1e-6)
    together(ours.eval(), theirs.eval(), values(*shape, seed=2))


def test_an_optimizer_step_computes_running_statistics() -> None:
    layer = nn.BatchNorm(2).train()
    optimizer = nn.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(Tensor(values(4, 2))).square().sum()
    loss.backward()
    optimizer.step(loss)
    assert layer.running_mean is not None
    assert layer.running_mean.is_realized
    assert loss.is_realized


def test_norms() -> None:
    together(nn.LayerNorm(6), torch.nn.LayerNorm(6), values(2, 3, 6), tolerance=2e-5)
    together(nn.LayerNorm((3, 4)), torch.nn.LayerNorm((3, 4)), values(2, 3, 4), tolerance=2e-5)
    together(nn.RMSNorm(6), torch.nn.RMSNorm(6), values(2, 3, 6), tolerance=2e-5)
    together(nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4), values(2, 4, 3), tolerance=2e-5)


def test_root_mean_square_of_whole_numbers() -> None:
    """Named regression: a KeyError, since they have no distance from 1 to the next value."""
    np.testing.assert_allclose(nn.RMSNorm(2)(Tensor([[3, 4]])).numpy(), [[3 / 12.5**0.5, 4 / 12.5**0.5]], rtol=1e-6)


def test_norms_of_an_empty_batch() -> None:
    """Named regression: GroupNorm could not tell its groups."""
    for layer in (nn.GroupNorm(2, 4), nn.LayerNorm((4, 3)), nn.RMSNorm(3), nn.BatchNorm(4).eval()):
        assert layer(Tensor(np.zeros((0, 4, 3), np.float32))).numpy().shape == (0, 4, 3)


def test_embedding() -> None:
    together(nn.Embedding(5, 3), torch.nn.Embedding(5, 3), np.array([[0, 4], [2, 2]]))


@pytest.mark.parametrize("padding", [2, -3])
def test_embedding_of_padding(padding: int) -> None:
    layer = nn.Embedding(5, 3, padding)
    assert layer.weight[2].tolist() == [0, 0, 0]
    assert all(any(layer.weight[i].tolist()) for i in (0, 1, 3, 4))
    assert layer(Tensor([2, -3])).tolist() == [[0, 0, 0]] * 2
    layer(Tensor([-3, 2, 1])).sum().backward()  # counted from the end as well
    assert layer.weight.grad is not None
    assert layer.weight.grad.sum(1).tolist() == [0, 3, 0, 0, 0]
    layer.weight.grad = None
    together(layer, torch.nn.Embedding(5, 3, padding), np.array([[0, 4], [2, 2]]))
    with pytest.raises(ShapeError, match=r"padding_idx=5 of 5 vectors. Give an integer from -5 to 4, or None."):
        nn.Embedding(5, 3, 5)


def test_attention() -> None:
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = values(2, 3, 8)

    class Own(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.inner = theirs

        def state_dict(self) -> Any:
            return theirs.state_dict()

        def named_parameters(self) -> Any:
            return theirs.named_parameters()

        def forward(self, x: Any) -> Any:
            return theirs(x, x, x, attn_mask=torch.ones(3, 3).triu(1).bool(), is_causal=True)

    together(nn.MultiHeadAttention(8, 2), Own(), x, is_causal=True, tolerance=3e-5)


def test_dropout_drops_in_training_only() -> None:
    layer, x = nn.Dropout(0.5), Tensor.ones(1000)
    kept = (layer(x).numpy() == 2).mean()
    assert 0.4 < kept < 0.6
    with train(False):
        assert layer(x) is x
    assert (layer.train()(x).numpy() == 0).any()
    assert layer.eval()(x) is x


def test_sequential() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Tensor.relu, nn.Linear(3, 2))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert model(Tensor(values(5, 4))).shape == (5, 2)
    assert (len(model), model[1]) == (3, Tensor.relu)


def test_weights_start_as_in_pytorch() -> None:
    manual_seed(3)
    for ours, theirs in [
        (nn.Linear(50, 40), torch.nn.Linear(50, 40)),
        (nn.Conv2d(4, 8, 3), torch.nn.Conv2d(4, 8, 3)),
        (nn.ConvTranspose2d(4, 8, 3), torch.nn.ConvTranspose2d(4, 8, 3)),
    ]:
        most = float(theirs.weight.detach().abs().max())  # biases have the same bound
        for own in ours.state_dict().values():
            assert float(own.abs().max()) < 1.1 * most
            assert float(own.abs().max()) > (0.5 if own.ndim == 1 else 0.9) * most
            assert abs(float(own.mean())) < most / 2


@pytest.mark.parametrize("dtype", [None, dtypes.float16])
def test_norms_of_halves_are_computed_in_float32(dtype: DType | None) -> None:
    x = np.array([[0, 600, -600, 1], [700, 2, 3, -800]], np.float16)
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    made: list[tuple[Any, Any]] = [(nn.LayerNorm(4, **options), torch.nn.LayerNorm(4)),
                                   (nn.RMSNorm(4, 1e-5, **options), torch.nn.RMSNorm(4, 1e-5)),
                                   (nn.GroupNorm(2, 4, **options), torch.nn.GroupNorm(2, 4)),
                                   (nn.BatchNorm(4, **options), torch.nn.BatchNorm1d(4))]  # fmt: skip
    for ours, theirs in made:
        with train():
            got = ours(Tensor(x))
        assert got.dtype is (dtype or dtypes.float32)
        close(got.detach().float(), theirs(torch.tensor(x).float()).detach().numpy(), 1e-3, 1e-3)
