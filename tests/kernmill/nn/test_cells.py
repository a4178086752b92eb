"""Layers that PyTorch has too: cells of recurrent layers, instance norms, convolutions of other ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import ShapeError, Tensor, nn

from ..against import close, only_on, values

on_device = only_on("LLVM")
torch: Any = pytest.importorskip("torch")
NN: Any = nn


def both(name: str, *given: Any, **options: Any) -> tuple[Any, Any]:
    """A layer here and PyTorch's, with the same weights."""
    own, theirs = getattr(NN, name)(*given, **options), getattr(torch.nn, name)(*given, **options)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.tensor(values(*weight.shape, seed=len(weight))))
    own.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    return own, theirs


@pytest.mark.parametrize("name", ["RNNCell", "GRUCell", "LSTMCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_torchs(name: str, bias: bool) -> None:
    own, theirs = both(name, 5, 4, bias)
    x = values(3, 5)
    state: Any = values(3, 4, seed=1)
    for given, wanted in ((None, None), (state, state)):
        hx: Any = None if given is None else Tensor(given)
        ref: Any = None if wanted is None else torch.tensor(wanted)
        if name == "LSTMCell" and hx is not None:
            hx, ref = (hx, hx * 2), (ref, ref * 2)
        got, want = own(Tensor(x), hx), theirs(torch.tensor(x), ref)
        pairs = zip(got, want, strict=True) if name == "LSTMCell" else [(got, want)]
        for ours, other in pairs:
            close(ours.detach(), other.detach().numpy(), 1e-5, 1e-5)
    one = own(Tensor(x[0]))
    assert (one[0] if name == "LSTMCell" else one).shape == (4,)
    with pytest.raises(ShapeError, match=rf"^{name}: x of shape \(3, 4\): give \(batch, 5\) or \(5,\)"):
        own(Tensor(state))


def test_a_cell_makes_the_steps_of_its_layer() -> None:
    cell, layer = NN.LSTMCell(3, 4), NN.LSTM(3, 4)
    layer.load_state_dict({f"{name}_l0": tensor for name, tensor in cell.state_dict().items()})
    x: Any = Tensor(values(5, 2, 3))
    state: Any = None
    for i in range(5):
        state = cell(x[i], state)
    assert state is not None
    close(state[0].detach(), layer(x)[1][0][0].detach().numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norms_are_torchs(affine: bool) -> None:
    for name, shape in (("InstanceNorm1d", (2, 3, 8)), ("InstanceNorm2d", (2, 3, 4, 5))):
        own, theirs = both(name, 3, affine=affine)
        x = values(*shape)
        close(own(Tensor(x)).detach(), theirs(torch.tensor(x)).detach().numpy(), 1e-5, 1e-5)


def test_a_norm_over_the_channels_of_an_image() -> None:
    x = values(2, 3, 4, 5)
    want = torch.nn.functional.layer_norm(torch.tensor(x.transpose(0, 2, 3, 1)), (3,)).numpy().transpose(0, 3, 1, 2)
    close(NN.LayerNorm2d(3)(Tensor(x)).detach(), want, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("ConvTranspose1d", (2, 4, 9)), ("ConvTranspose3d", (1, 4, 3, 4, 3)), ("Conv3d", (1, 4, 4, 5, 4))],
)
def test_convolutions_of_other_ranks_are_torchs(name: str, shape: tuple[int, ...]) -> None:
    own, theirs = both(name, 4, 6, 3, stride=2, padding=1)
    x = values(*shape)
    close(own(Tensor(x)).detach(), theirs(torch.tensor(x)).detach().numpy(), 1e-4, 1e-4)
    assert np.isfinite(x).all()
