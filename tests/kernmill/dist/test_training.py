"""Data parallel training: several ranks train as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dist, nn
from kernmill.dist import DistError
from tests.kernmill.dist.ranks import everywhere


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), Tensor.tanh, nn.Linear(8, 3))


def trained(rows: np.ndarray, labels: np.ndarray, pieces: int = 1, **options: Any) -> list[np.ndarray]:
    """Four steps over the whole data; the parameters after them. A step accumulates `pieces` parts of the batch."""
    model = network()
    optimizer = nn.optim.AdamW(model.parameters(), lr=0.05)
    rows, labels = dist.data_parallel(model, optimizer, rows, labels, **options)
    for _ in range(4):
        optimizer.zero_grad()
        for piece in range(pieces):
            part = slice(piece, None, pieces)
            loss = model(Tensor(rows[part])).cross_entropy(Tensor(labels[part])) / pieces
            if piece < pieces - 1 and dist.size() > 1:
                with dist.no_sync():
                    loss.backward()
            else:
                loss.backward()
        nn.optim.clip_grad_norm(optimizer.parameters, 0.1)
        optimizer.step()
    return [p.numpy().copy() for p in model.parameters()]


@pytest.mark.parametrize("pieces", [1, 2])
def test_two_ranks_train_as_one_with_the_whole_batch(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    rng = np.random.default_rng(3)
    rows, labels = rng.normal(size=(16, 5)).astype(np.float32), rng.integers(0, 3, 16)
    start = network()
    state = {name: value.detach().numpy().copy() for name, value in start.state_dict().items()}

    def made() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(5, 8), Tensor.tanh, nn.Linear(8, 3))
        if dist.rank() == 0:  # the others learn it
            model.load_state_dict({name: Tensor(value) for name, value in state.items()})
        return model

    monkeypatch.setattr(f"{__name__}.network", made)
    alone = trained(rows, labels)
    for found in everywhere(2, lambda rank: trained(rows, labels, pieces, check_every=1)):
        for mine, truth in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=2e-5, atol=1e-6)


def test_a_parameter_that_one_rank_does_not_use_is_averaged_with_zeros() -> None:
    def work(rank: int) -> Any:
        used, other = (Tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        optimizer = nn.optim.SGD([used, other], lr=1.0)
        dist.data_parallel([used, other], optimizer)
        (used * 3 + (other if rank else 0)).sum().backward()
        assert used.grad is not None
        assert other.grad is not None
        return used.grad.tolist(), other.grad.tolist()

    assert everywhere(2, work) == [([3.0, 3.0], [0.5, 0.5])] * 2


def test_parameters_that_become_different_are_noticed() -> None:
    def work(rank: int) -> None:
        model = network()
        optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
        dist.data_parallel(model, optimizer, check_every=2)
        for _ in range(3):
            model(Tensor.ones(2, 5)).sum().backward()
            optimizer.step()
            if rank:
                first = next(iter(model.parameters()))
                first.assign(first.detach() + 1).realize()

    with pytest.raises(DistError, match="after 2 steps the parameters of the ranks differ"):
        everywhere(2, work)
