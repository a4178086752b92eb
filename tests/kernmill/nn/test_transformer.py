"""Transformer layers against PyTorch's with the same weights, and against each other without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import SettingError, ShapeError, Tensor, jit, nn

from ..against import close, only_on, values

on_device = only_on("LLVM")
NN: Any = nn


def both(name: str, *given: Any, **options: Any) -> tuple[Any, Any]:
    """A layer here and PyTorch's, with the same weights."""
    torch: Any = pytest.importorskip("torch")
    theirs = getattr(torch.nn, name)(*given, **options, batch_first=True, dropout=0.0).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.tensor(values(*weight.shape, seed=len(weight))) * 0.3)
    if "activation" in options:
        options["activation"] = Tensor.gelu
    own = getattr(NN, name)(*given, **options, dropout=0.0)
    own.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    return own, lambda *x, **masks: theirs(*(torch.tensor(t) for t in x), **masks).detach().numpy()


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_is_pytorchs(norm_first: bool) -> None:
    own, theirs = both("TransformerEncoderLayer", 8, 2, 16, norm_first=norm_first, activation="gelu")
    x = values(3, 5, 8)
    close(own(Tensor(x)).detach(), theirs(x), 1e-4, 1e-5)
    torch: Any = pytest.importorskip("torch")
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    close(own(Tensor(x), is_causal=True).detach(), theirs(x, src_mask=hidden), 1e-4, 1e-5)
    close(own(Tensor(x), Tensor(~hidden.numpy())).detach(), theirs(x, src_mask=hidden), 1e-4, 1e-5)
    padding = np.arange(5) >= np.array([[5], [3], [4]])
    seen = own(Tensor(x), Tensor(~padding).reshape(3, 1, 1, 5)).detach().numpy()
    want = theirs(x, src_key_padding_mask=torch.tensor(padding))
    np.testing.assert_allclose(seen[~padding], want[~padding], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_is_pytorchs(norm_first: bool) -> None:
    own, theirs = both("TransformerDecoderLayer", 8, 2, 16, norm_first=norm_first)
    x, memory = values(3, 5, 8), values(3, 4, 8, seed=1)
    close(own(Tensor(x), Tensor(memory)).detach(), theirs(x, memory), 1e-4, 1e-5)


def test_a_transformer_is_pytorchs() -> None:
    own, theirs = both("Transformer", 8, 2, 2, 2, 16)
    x, y = values(3, 5, 8), values(3, 4, 8, seed=1)
    close(own(Tensor(x), Tensor(y)).detach(), theirs(x, y), 1e-3, 1e-4)


def test_layers_of_a_stack_are_copies_that_train_alone() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    x = Tensor(values(2, 5, 8))
    close(stack(x).detach(), stack.norm(layer(layer(x))).detach().numpy(), 1e-5, 1e-5)  # type: ignore[misc]
    assert len(stack.parameters()) == 2 * len(layer.parameters()) + 2
    optimizer = nn.optim.SGD(stack.parameters(), lr=0.1)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = (stack(x) * Tensor(values(2, 5, 8, seed=3))).mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    first, second = (NN.Module.state_dict(one)["linear1.weight"].numpy() for one in stack.layers)
    assert np.abs(first - second).max() > 1e-6


def test_other_layers_with_weights() -> None:
    x, y = values(3, 4), values(3, 5, seed=1)
    layer = nn.Bilinear(4, 5, 2)
    bias: Any = layer.bias
    want = np.einsum("bi,kij,bj->bk", x, layer.weight.numpy(), y) + bias.numpy()
    close(layer(Tensor(x), Tensor(y)).detach(), want, 1e-5, 1e-5)
    image = values(2, 3, 4)
    slopes = nn.PReLU(3, 0.1)
    slopes.weight.assign(Tensor([0.1, 0.2, 0.3]).detach()).realize()
    want = np.where(image > 0, image, image * np.array([0.1, 0.2, 0.3])[:, None])
    close(slopes(Tensor(image)).detach(), want, 1e-5, 1e-6)
    close(nn.PReLU()(Tensor(x)).detach(), np.where(x > 0, x, 0.25 * x), 1e-5, 1e-6)


def test_dropout_of_channels() -> None:
    x = Tensor(np.ones((50, 40, 3, 2), np.float32))
    found = nn.Dropout2d(0.25)(x).numpy()
    assert (found == found[:, :, :1, :1]).all()
    assert set(np.unique(found)) == {0, np.float32(1 / 0.75)}
    assert abs(float((found == 0).mean()) - 0.25) < 0.05
    assert (nn.Dropout2d(0.25).eval()(x).numpy() == 1).all()


def test_mistakes() -> None:
    x = Tensor(values(3, 4))
    with pytest.raises(ShapeError, match=r"^Bilinear: x of shape \(3, 4\) and y of shape \(3, 4\): give \(..., 4\)"):
        nn.Bilinear(4, 5, 2)(x, x)
    with pytest.raises(ShapeError, match=r"^PReLU: x of shape \(3, 4\): axis 1 must have 3 channels."):
        nn.PReLU(3)(x)
    with pytest.raises(
        ShapeError, match=r"^TransformerEncoder: num_layers=0: must be an integer >= 1, and at most 4096."
    ):
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 0)
    with pytest.raises(SettingError, match=r"activation='relu'. Give a function of a tensor, such as Tensor.gelu."):
        nn.TransformerEncoderLayer(8, 2, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"^Dropout1d: x of shape \(4,\) has no channels, axis 1."):
        nn.Dropout2d()(x[0])
