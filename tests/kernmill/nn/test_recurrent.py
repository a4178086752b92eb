"""Recurrent layers with PyTorch's weights give its values, states and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, SettingError, ShapeError, Tensor, jit, nn, no_grad
from kernmill.nn import recurrent
from tests.kernmill.against import close, values

torch = pytest.importorskip("torch")
KINDS = ("RNN", "LSTM", "GRU")
OPTIONS: list[tuple[dict[str, Any], bool]] = [  # and whether the first states are given
    ({}, False),
    ({"num_layers": 2, "batch_first": True}, True),
    ({"num_layers": 2, "bidirectional": True}, True),
    ({"bias": False, "bidirectional": True}, False),
]


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Ours and PyTorch's with the same weights."""
    theirs = getattr(torch.nn, kind)(3, 4, **options)
    ours = getattr(nn, kind)(3, 4, **options)
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    return ours, theirs


def flat(result: Any) -> list[Any]:
    """Values, then each state."""
    out, state = result
    return [out, *state] if isinstance(state, tuple) else [out, state]


@pytest.mark.parametrize(("options", "has_state"), OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_pytorchs(kind: str, options: dict[str, Any], has_state: bool) -> None:
    ours, theirs = pair(kind, **options)
    x = values(*((2, 5, 3) if options.get("batch_first") else (5, 2, 3)))
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    given = [values(count, 2, 4, seed=i) for i in range(2 if kind == "LSTM" else 1)]
    inputs = [x, *given] if has_state else [x]
    own = [Tensor(v, requires_grad=True) for v in inputs]
    other = [torch.tensor(v, requires_grad=True) for v in inputs]

    def call(layer: Any, x: Any, *states: Any) -> list[Any]:
        return flat(layer(x, *([states] if len(states) == 2 else states)))

    got, want = call(ours, *own), call(theirs, *other)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a.detach(), b.detach().numpy(), 1e-5, 1e-5)
        weight = values(*b.shape, seed=50 + i)
        (a * Tensor(weight)).sum().backward()
        (b * torch.tensor(weight)).sum().backward(retain_graph=True)
    for a, b in zip(own, other, strict=True):
        assert a.grad is not None
        close(a.grad, b.grad.numpy(), 1e-5, 1e-5)
    for name, b in theirs.named_parameters():
        close(ours.state_dict()[name].grad, b.grad.numpy(), 1e-5, 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_without_a_batch(kind: str) -> None:
    ours, theirs = pair(kind, num_layers=2)
    x = values(4, 3)
    first = flat(ours(Tensor(x)))
    for a, b in zip(first, flat(theirs(torch.tensor(x))), strict=True):
        close(a.detach(), b.detach().numpy(), 1e-5, 1e-5)
    state = tuple(first[1:]) if kind == "LSTM" else first[1]
    theirs_state = flat(theirs(torch.tensor(x)))[1:]
    want = theirs(torch.tensor(x), tuple(theirs_state) if kind == "LSTM" else theirs_state[0])
    for a, b in zip(flat(ours(Tensor(x), state)), flat(want), strict=True):
        close(a.detach(), b.detach().numpy(), 1e-5, 1e-5)


def test_names_and_start_are_pytorchs() -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    ours, theirs = nn.LSTM(3, 16, **options), torch.nn.LSTM(3, 16, **options)
    assert {n: t.shape for n, t in ours.state_dict().items()} == {
        n: tuple(t.shape) for n, t in theirs.state_dict().items()
    }
    assert len(ours.parameters()) == 16
    assert all(0.2 < t.abs().max().item() <= 0.25 for t in ours.parameters())


def test_dropout_is_between_the_layers_and_in_training_only() -> None:
    layer = nn.GRU(3, 4, num_layers=2, dropout=1.0)
    x = Tensor(values(3, 2, 3))
    plain = layer.eval()(x)[0].numpy()
    dropped = layer.train()(x)[0].numpy()
    assert np.abs(plain - dropped).max() > 1e-3
    close(layer(x * 2)[0].detach(), dropped)  # the second layer sees zeros


def test_a_captured_step_trains() -> None:
    layer, out = nn.LSTM(1, 8), nn.Linear(8, 1)
    optimizer = nn.optim.Adam([*layer.parameters(), *out.parameters()], lr=0.02)
    x = values(6, 16, 1)
    target = x.sum(0)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = out(layer(x)[0][-1]).mse_loss(y)
        loss.backward()
        optimizer.step(loss)
        detached: Tensor = loss.detach()
        return detached

    losses = [step(Tensor(x), Tensor(target)).item() for _ in range(40)]
    assert losses[-1] < losses[0] / 2


def test_faults_say_what_is_wanted() -> None:
    with pytest.raises(ShapeError, match=r"LSTM: x of shape \(2, 3, 4\): give \(positions, batch, 5\)"):
        nn.LSTM(5, 2)(Tensor.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match=r"GRU: a state of shape \(1, 2, 2\). Give one of \(1, 3, 2\)."):
        nn.GRU(4, 2)(Tensor.zeros(2, 3, 4), Tensor.zeros(1, 2, 2))
    for hidden in (Tensor.zeros(1, 3, 2), (Tensor.zeros(1, 3, 2),)):
        with pytest.raises(ShapeError, match=r"LSTM: hx must be 2 tensors, such as \(h, c\). Give them as a tuple."):
            nn.LSTM(4, 2)(Tensor.zeros(2, 3, 4), hidden)
    with pytest.raises(DTypeError, match=r"GRU.forward: hx is .*, of type tuple. Give a Tensor or None"):
        nn.GRU(4, 2)(Tensor.zeros(2, 3, 4), (Tensor.zeros(1, 3, 2),))
    with pytest.raises(SettingError, match=r"RNN: dropout=2: must be a number from 0 to 1"):
        nn.RNN(4, 2, dropout=2)
    with pytest.raises(ShapeError, match=r"GRU: hidden_size=0: must be an integer >= 1."):
        nn.GRU(4, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_a_layer_captures_itself(kind: str) -> None:
    """A forecast of 24 positions built 1,700 nodes in each call: 70 times PyTorch's time."""
    ours, theirs = pair(kind, batch_first=True)
    ours.eval()
    state: Any = None
    their_state: Any = None
    for n in range(5):  # met, first run, captured, replayed; then with other weights
        if n == 4:
            with no_grad(), torch.no_grad():
                ours.weight_hh_l0.assign(ours.weight_hh_l0 * 2)
                theirs.weight_hh_l0 *= 2
        x = values(2, 5, 3, seed=n)
        with no_grad(), torch.no_grad():
            out, state = ours(Tensor(x), state)
            want, their_state = theirs(torch.tensor(x), their_state)
        for a, b in zip(flat((out, state)), flat((want, their_state)), strict=True):
            close(a, b.numpy(), 1e-5, 1e-5)
    assert ours._captured.replays > 0
    x = values(2, 5, 3)
    tracked = ours(Tensor(x, requires_grad=True))[0]  # with gradients it is an ordinary graph
    assert tracked.requires_grad
    close(tracked.detach(), theirs(torch.tensor(x))[0].detach().numpy(), 1e-5, 1e-5)


def test_a_layer_captures_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each capture keeps memory: sequences of many lengths stay ordinary graphs, and nothing warns."""
    monkeypatch.setattr(recurrent, "_MOST_CAPTURED", 1)
    layer = nn.RNN(3, 4)
    with no_grad():
        for length in (1, 2, 1, 2, 1):
            layer(Tensor.ones(length, 1, 3))[0].realize()
    assert layer._captured.cache_info().captures == 1
