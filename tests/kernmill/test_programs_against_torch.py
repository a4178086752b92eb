"""Small programs as a new user writes them, once with kernmill and once with PyTorch: gradients, views and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, nn, no_grad

torch = pytest.importorskip("torch")
F = torch.nn.functional
Program = Callable[..., Any]


def values(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got: Any, want: Any) -> None:
    got, want = (one if isinstance(one, (tuple, list)) else [one] for one in (got, want))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-3, atol=1e-4)


# --- views and writes: the same text for both
def border(x: Any) -> Any:
    x[0], x[-1], x[:, 0], x[:, -1] = 1, 2, 3, 4
    inner = x[1:-1, 1:-1]
    inner *= 10
    return x, inner


def swapped_rows(x: Any) -> Any:
    first = x[0].clone()
    x[0] = x[3]
    x[3] = first
    x[[1, 2]] = x[[2, 1]]
    return x


def ring(x: Any) -> Any:
    for i in range(7):
        x[i % 4] = x[i % 3] + i
    return x, x[2:].sum(0)


def view_of_views(x: Any) -> Any:
    view = x[:3].reshape(2, 6).T[1:4]
    view += 100
    column = x[:, 1]
    column *= 2
    return x, view, column


def values_before_and_after(x: Any) -> Any:
    row = x[1]
    before = row + 1
    x[1] = 0
    after = row + 1
    row[0] = 7
    return x, row, before, after


def rows_by_number(x: Any) -> Any:
    x[[0, 2, 3]] = x[[1, 1, 0]]
    part = x[1:4]
    part[:, 1:] = part[:, :-1] * 2
    return x, part


def kept_keys(x: Any) -> Any:
    found = []
    for t in range(3):
        x[:, t : t + 1] = x[:, t + 1 : t + 2]
        found.append((x[:, : t + 1] * x[:, t : t + 1]).sum())
    return [x, *found]


def chunks(x: Any) -> Any:
    left, right = x.chunk(2, 1)
    left += right
    row = x.unbind(0)[1]
    row *= 0
    x.flatten()[0] = 99
    x[..., None][0, 1] = -3
    return x, left, row


def chosen_by_mask(x: Any) -> Any:
    x[x > 0] = 2
    x[x < -1] = 0
    return x


VIEWS: list[Program] = [border, swapped_rows, ring, view_of_views, values_before_and_after, rows_by_number, kept_keys,
                        chunks, chosen_by_mask]  # fmt: skip


@pytest.mark.parametrize("program", VIEWS, ids=lambda program: program.__name__)
def test_views_and_writes_are_pytorchs(program: Program) -> None:
    x = values(1, 4, 4)
    close(program(Tensor(x.copy())), program(torch.tensor(x.copy())))


# --- gradients: a loss of tensors, `lib` where the libraries differ
def triplet(a: Any, b: Any, c: Any) -> Any:
    def apart(x: Any, y: Any) -> Any:
        return ((x - y) ** 2).sum(1).sqrt()

    return (apart(a, b) - apart(a, c) + 1.0).clip(0).mean()


def tied_weights(a: Any, b: Any, c: Any) -> Any:
    return (a[[0, 2, 2, 1]].mean(1, keepdim=True) @ b[:1] @ a.T).log_softmax(-1)[:, 2].mean() + (c * b).sum()


def largest(a: Any, b: Any, c: Any) -> Any:
    top = a.topk(3, 1)[0] if isinstance(a, Tensor) else a.topk(3, 1).values
    return (top * b[:, :3]).sum() + (c.reshape(6, 2, 3).amax(2) ** 2).sum()


def running(a: Any, b: Any, c: Any) -> Any:
    return a.cumsum(1).cumprod(0).sum() + b.prod(1).sum() + c.clip(-0.5, 0.5).exp().sum()


def slices(a: Any, b: Any, c: Any) -> Any:
    return (a[1:5:2, ::3] * 2).sum() + (b.flip(0)[:3] * b[3:]).sum() + c[[0, 0, 2]].sum() + a[-1] @ b[0]


def causal(a: Any, b: Any, c: Any) -> Any:
    q, k, v = (x.reshape(1, 3, 2, 6).transpose(1, 2) for x in (a, b, c))
    attend = q.scaled_dot_product_attention if isinstance(a, Tensor) else lambda *x, **n: (
        F.scaled_dot_product_attention(q, *x, **n))  # fmt: skip
    return (attend(k, v, is_causal=True) ** 2).mean()


def images(a: Any, b: Any, c: Any) -> Any:
    x, w, v = a.reshape(1, 1, 6, 6), b.reshape(4, 1, 3, 3), c.reshape(9, 4, 1, 1)
    if isinstance(a, Tensor):
        return x.conv2d(w, padding=1).max_pool2d(2).relu().conv2d(v).square().sum()
    return F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1), 2).relu(), v).square().sum()


LOSSES: list[Program] = [triplet, tied_weights, largest, running, slices, causal, images]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_gradients_are_pytorchs(loss: Program) -> None:
    given = [values(seed, 6, 6) for seed in (1, 2, 3)]
    ours, theirs = [Tensor(v, requires_grad=True) for v in given], [torch.tensor(v, requires_grad=True) for v in given]
    got, want = loss(*ours), loss(*theirs)
    got.backward()
    want.backward()
    close([got, *(t.grad for t in ours)], [want, *(t.grad for t in theirs)])


def test_a_gradient_through_steps_of_gradients() -> None:
    w, x, y = values(1, 4, 1), values(2, 5, 4), values(3, 5, 1)
    ours, theirs = Tensor(w, requires_grad=True), torch.tensor(w, requires_grad=True)
    fast, other = ours, theirs
    for _ in range(3):
        (slope,) = ((Tensor(x) @ fast - Tensor(y)) ** 2).mean().gradient(fast)
        fast = fast - 0.1 * slope
        (their_slope,) = torch.autograd.grad(
            ((torch.tensor(x) @ other - torch.tensor(y)) ** 2).mean(), other, create_graph=True
        )
        other = other - 0.1 * their_slope
    (fast**2).sum().backward()
    (other**2).sum().backward()
    close([fast, ours.grad], [other, theirs.grad])


def test_gradients_that_add_up_between_updates() -> None:
    ours, theirs = nn.Linear(4, 2), torch.nn.Linear(4, 2)
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    for i in range(7):
        x = values(i, 3, 4)
        (ours(Tensor(x)).sigmoid() ** 2).sum().backward()
        (theirs(torch.tensor(x)).sigmoid() ** 2).sum().backward()
        if i % 3 == 2:
            with no_grad(), torch.no_grad():
                for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                    assert own.grad is not None
                    own -= 0.1 * own.grad
                    other -= 0.1 * other.grad
                    own.grad = other.grad = None
    close([*ours.parameters(), ours.weight.grad], [*theirs.parameters(), theirs.weight.grad])
