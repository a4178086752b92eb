"""Gradients of small models at random sizes, against PyTorch: what users train, not what graphs can be."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernmill

torch = pytest.importorskip("torch")
SEEDS = int(os.environ.get("FUZZ_SEEDS", "3"))
Array = np.ndarray[Any, Any]
Loss = Callable[..., Any]


def mlp(rng: random.Random) -> tuple[list[tuple[int, ...]], Loss]:
    batch, inner, hidden, classes = (rng.randint(1, 50) for _ in range(4))

    def loss(x: Any, first: Any, bias: Any, second: Any) -> Any:
        logits = (x @ first.T + bias).relu() @ second
        return -(logits.log_softmax(-1)[:, 0]).mean()

    return [(batch, inner), (hidden, inner), (hidden,), (hidden, classes)], loss


def convnet(rng: random.Random) -> tuple[list[tuple[int, ...]], Loss]:
    batch, size = rng.choice([1, 2, 3, 4, 5, 7, 8]), rng.choice([8, 9, 12, 14])

    def loss(x: Any, first: Any, second: Any, last: Any) -> Any:
        conv = kernmill.Tensor.conv2d if isinstance(x, kernmill.Tensor) else torch.nn.functional.conv2d
        pool = kernmill.Tensor.max_pool2d if isinstance(x, kernmill.Tensor) else torch.nn.functional.max_pool2d
        y = pool(conv(x, first).relu(), 2)
        y = conv(y, second).relu()
        return -((y.mean((2, 3)) @ last.T).log_softmax(1)[:, 0]).mean()

    a, b = rng.choice([(4, 8), (3, 5), (16, 32)])
    return [(batch, 1, size, size), (a, 1, 3, 3), (b, a, 2, 2), (10, b)], loss


def block(rng: random.Random) -> tuple[list[tuple[int, ...]], Loss]:
    """Attention with several heads behind a layer norm, and what was there before added."""
    batch, tokens, heads, width = rng.randint(1, 4), rng.randint(1, 40), rng.choice([1, 2, 3]), rng.randint(1, 9)
    model = heads * width
    is_causal = rng.random() < 0.6

    def loss(x: Any, qkv: Any, out: Any, scale: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        y = centred / ((centred * centred).mean(-1, keepdim=True) + 0.1).sqrt() * scale
        parts = (y @ qkv).reshape(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        if isinstance(x, kernmill.Tensor):
            z = parts[0].scaled_dot_product_attention(parts[1], parts[2], is_causal=is_causal)
        else:
            attend = torch.nn.functional.scaled_dot_product_attention
            z = attend(parts[0], parts[1], parts[2], is_causal=is_causal)
        z = z.permute(0, 2, 1, 3).reshape(batch, tokens, model) @ out + x
        return (z * z).mean()

    return [(batch, tokens, model), (model, 3 * model), (model, model), (model,)], loss


@pytest.mark.parametrize("model", [mlp, convnet, block])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_gradients_are_those_of_torch(seed: int, model: Any) -> None:
    shapes, loss = model(random.Random(seed))
    values = np.random.default_rng(seed)
    arrays = [values.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    theirs = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in arrays]
    want = loss(*theirs)
    want.backward()
    ours = [kernmill.Tensor(array, requires_grad=True) for array in arrays]
    got = loss(*ours)
    got.backward()
    for mine, reference in zip([got, *(x.grad for x in ours)], [want, *(x.grad for x in theirs)], strict=True):
        expected = reference.detach().numpy()
        scale = max(1e-2, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(mine.numpy(), expected, rtol=0, atol=5e-4 * scale)
