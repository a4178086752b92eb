from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, dtypes, train
from tests.kernmill.against import close, values, with_torch

Q, K, V = values(2, 4, 3, 8), values(2, 4, 5, 8, seed=1), values(2, 4, 5, 6, seed=2)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
def test_attention_is_torchs(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    with_torch(lambda q, k, v: q.scaled_dot_product_attention(k, v, **options),
               lambda q, k, v: theirs(q, k, v, **options), [Q, K, V], 1e-5)  # fmt: skip


def test_masks() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    seen = np.random.default_rng(0).random((3, 5)) < 0.7
    seen[:, 0] = True
    bias = values(2, 1, 3, 5, seed=4)
    for mask in (seen, bias):
        with_torch(lambda q, k, v, m=mask: q.scaled_dot_product_attention(k, v, Tensor(m)),
                   lambda q, k, v, m=mask: theirs(q, k, v, torch.tensor(m)), [Q, K, V], 1e-5)  # fmt: skip


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_in_memory_is_read_once(is_causal: bool) -> None:
    """It was asked again in both sums and for each column of the values, row by row: a third of PyTorch's speed."""
    q, k, v = values(2, 37, 8), values(2, 37, 8, seed=1), values(2, 37, 6, seed=2)
    seen = np.random.default_rng(0).random((37, 37)) < 0.7
    seen[:, 0] = True
    allowed = seen & np.tri(37, dtype=np.bool_) if is_causal else seen
    scores = np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights @ v / weights.sum(-1, keepdims=True)
    result = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(allowed))
    close(result, want, 1e-5)
    by_place = (Tensor.arange(37).unsqueeze(0) <= Tensor.arange(37).unsqueeze(1)).logical_and(Tensor(seen[0]))
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), by_place).numpy()
    lower = np.where(np.tri(37, dtype=np.bool_) & seen[0], q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf)
    weights = np.exp(lower - lower.max(-1, keepdims=True))
    close(Tensor(got), weights @ v / weights.sum(-1, keepdims=True), 1e-5)


def test_groups_of_heads_share_keys() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.functional.scaled_dot_product_attention
    k, v = K[:, :2], V[:, :2]
    mask = values(2, 4, 3, 5, seed=4)
    with_torch(lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask)),
               lambda q, k, v: theirs(q, k, v, torch.tensor(mask), enable_gqa=True), [Q, k, v], 1e-5)  # fmt: skip
    one = Tensor(Q).scaled_dot_product_attention(Tensor(K[:, :1]), Tensor(V[:, :1]))
    close(one, theirs(torch.tensor(Q), torch.tensor(K[:, :1]), torch.tensor(V[:, :1]), enable_gqa=True).numpy(), 1e-5)


def test_half_precision_attends_in_float32() -> None:
    q = (Q * 30).astype(np.float16)
    got = Tensor(q).scaled_dot_product_attention(Tensor(q), Tensor(q))
    assert got.numpy().dtype == np.float16
    assert np.isfinite(got.numpy()).all()


def test_dropout() -> None:
    ones = Tensor.ones(4000)
    with train(False):
        assert ones.dropout(0.25) is ones
    dropped = ones.dropout(0.25).numpy()
    again = ones.dropout(0.25).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.7 < (dropped != 0).mean() < 0.8
    assert (dropped != again).any()
    assert ones.dropout(1.0, training=True).sum().item() == 0
    assert ones.dropout(0.0, training=True) is ones


@pytest.mark.parametrize("kind", ["bool", "float", "lazy"])
def test_rows_that_see_nothing_are_0(kind: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 7, 16)).astype(np.float32)
    hidden = rng.random((7, 7)) > 0.5 if kind != "lazy" else np.broadcast_to(np.arange(7)[:, None] < 3, (7, 7)).copy()
    hidden[4] = False
    mask = np.where(hidden, 0, -np.inf).astype(np.float32) if kind == "float" else hidden
    lazy = (Tensor.arange(7).unsqueeze(1) < 3).expand(7, 7)
    x = Tensor(q, requires_grad=True)
    ours = x.scaled_dot_product_attention(x, x, lazy if kind == "lazy" else Tensor(mask))
    (ours * ours).sum().backward()
    t = torch.tensor(q, requires_grad=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(t, t, t, torch.tensor(mask))
    (wanted * wanted).sum().backward()
    assert x.grad is not None
    assert t.grad is not None
    assert (ours.numpy()[:, :, 4] == 0).all()
    np.testing.assert_allclose(ours.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_pytorchs_word_for_groups_of_heads() -> None:
    query, key = Tensor(values(1, 4, 2, 8)), Tensor(values(1, 2, 2, 8, seed=1))
    got = query.scaled_dot_product_attention(key, key, enable_gqa=True)
    close(got, query.scaled_dot_product_attention(key, key).numpy())


def test_attention_and_dropout_of_ints_are_floats() -> None:
    """Once weights were cut to whole numbers, and dropout mixed dtypes."""
    x = np.array([[1, 2], [0, 1], [1, 0]])
    found = Tensor(x).scaled_dot_product_attention(Tensor(x), Tensor(x))
    wanted = Tensor(x).float().scaled_dot_product_attention(Tensor(x).float(), Tensor(x).float())
    assert found.dtype is dtypes.float32
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    kept = Tensor(np.ones(1000, np.int64)).dropout(0.5, training=True)
    assert kept.dtype is dtypes.float32
    assert set(kept.tolist()) == {0.0, 2.0}
    np.testing.assert_array_equal(Tensor(x).dropout(1, training=True).numpy(), np.zeros((3, 2)))


def test_softmin_takes_bools() -> None:
    np.testing.assert_allclose(Tensor([True, False]).softmin().numpy(), Tensor([1.0, 0.0]).softmin().numpy())
