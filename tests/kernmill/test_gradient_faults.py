"""Gradients that were wrong or slow when kernmill was used: a named test for each fault, over its kind."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import GradientError, Tensor, cat, dtypes, jit, no_grad, stack
from kernmill.compiler import estimate
from kernmill.runtime import collecting_kernels
from tests.kernmill.against import close, values


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_several_results_that_are_one_node(dtype: str) -> None:
    made = [Tensor.ones(3, dtype=dtype) for _ in range(3)]
    Tensor.realize(*made, made[0])
    assert [t.tolist() for t in made] == [[1, 1, 1]] * 3
    made[0][0] = 0
    assert made[1].tolist() == [1, 1, 1]


def test_gradients_that_are_one_node_are_realized_and_captured_together() -> None:
    a, b = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor([4.0, 5.0, 6.0], requires_grad=True)

    def gradients(a: Tensor, b: Tensor) -> list[Tensor]:
        return (a + b).sum().gradient(a, b, a)

    found = gradients(a, b)
    Tensor.realize(*found)
    assert [t.tolist() for t in found] == [[1, 1, 1]] * 3
    captured = jit(gradients)
    for _ in range(3):
        assert [t.tolist() for t in captured(a, b)] == [[1, 1, 1]] * 3


TIES: dict[str, Callable[[Any], Any]] = {
    "max": lambda t: t.max(), "min": lambda t: t.min(), "amax": lambda t: t.reshape(2, -1).amax(1).sum(),
    "mean": lambda t: t.mean(), "logsumexp": lambda t: t.logsumexp(0), "std": lambda t: t.std(),
    "norm": lambda t: t.norm(), "var": lambda t: t.var(), "softmax": lambda t: t.softmax(0)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", TIES)
def test_counts_and_sums_inside_gradients_of_half_types_are_float32(name: str) -> None:
    """From 65,520 equal values on, 1 / count was 0."""
    torch = pytest.importorskip("torch")
    own = Tensor.ones(70000, dtype=dtypes.float16).contiguous().detach().requires_grad_()
    TIES[name](own).backward()
    ref = torch.ones(70000).requires_grad_()  # float16 of PyTorch overflows in some of them
    TIES[name](ref).backward()
    assert own.grad is not None
    close(own.grad.float(), ref.grad.numpy(), 1e-2, 1e-7)


def test_the_gradient_of_atan2_at_the_origin_is_zero() -> None:
    y, x = Tensor([0.0, -0.0, 0.0], requires_grad=True), Tensor([0.0, 0.0, -0.0], requires_grad=True)
    angle = y.atan2(x)
    angle.sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    assert (y.grad.tolist(), x.grad.tolist()) == ([0, 0, 0], [0, 0, 0])
    np.testing.assert_array_equal(np.signbit(angle.detach().numpy()), [False, True, False])


def written(x: Tensor, index: Any) -> Tensor:
    z = Tensor.zeros(2, 4, 3)
    z[index] = x
    return z


EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: cat([x, Tensor.ones(2, 4, 3)], 1),
    "cat last": lambda x: cat([Tensor.ones(2, 4, 3), x, x], 1),
    "stack": lambda x: stack([x, x]),
    "slice written": lambda x: written(x, (slice(None), slice(0, 0))),
    "indices written": lambda x: written(x, (slice(None), [])),
    "index_add": lambda x: Tensor.zeros(2, 4, 3).index_add(1, Tensor(np.zeros(0, np.int64)), x),
    "scatter": lambda x: Tensor.zeros(2, 4, 3).scatter(1, Tensor(np.zeros((2, 0, 3), np.int64)), x),
    "scatter_add": lambda x: Tensor.zeros(2, 4, 3).scatter_add(1, Tensor(np.zeros((2, 0, 3), np.int64)), x),
    "sum": lambda x: x.sum(1), "pad": lambda x: x.pad((0, 0, 1, 1)), "matmul": lambda x: x @ Tensor.ones(3, 2),
    "inner": lambda x: x.mT @ Tensor.ones(2, 0, 5), "prod": lambda x: x.prod(1), "mul": lambda x: x * 2,
    "gather": lambda x: x.gather(1, Tensor(np.zeros((2, 0, 3), np.int64))), "index": lambda x: x[:, []],
    "where": lambda x: x.where(x > 0, 1.0), "cumsum": lambda x: x.cumsum(1), "softmax": lambda x: x.softmax(1),
    "norm": lambda x: x.norm(axis=1),
    "expand": lambda x: x.unsqueeze(0).expand(3, 2, 0, 3),
    "sort": lambda x: x.sort(1)[0], "reshape": lambda x: x.reshape(0, 6),
    "mean": lambda x: x.mean(1), "max": lambda x: x.max(2),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_tensor_has_an_empty_gradient(name: str) -> None:
    """Parts without elements were left out of the graph, and their gradients with them."""
    leaf, plain = Tensor.ones(2, 0, 3, requires_grad=True), Tensor.ones(2, 0, 3)
    EMPTY[name](leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.numpy().shape == (2, 0, 3)
    assert EMPTY[name](leaf).sum().gradient(leaf)[0].numpy().shape == (2, 0, 3)
    assert EMPTY[name](plain).sum().gradient(plain)[0].numpy().shape == (2, 0, 3)


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "item": lambda z, w: z.__setitem__(0, w), "slice": lambda z, w: z.__setitem__(slice(1, 3), w),
    "all": lambda z, w: z.__setitem__(slice(None), w),
    "mask": lambda z, w: z.__setitem__(z.detach() > 1, w.reshape(())),
    "known mask": lambda z, w: z.__setitem__([True, False, True], w), "list": lambda z, w: z.__setitem__([0, 2], w),
    "assign": lambda z, w: z.assign(w.expand(3)), "replace": lambda z, w: z.replace(w.expand(3)),
    "+=": lambda z, w: z.__iadd__(w), "*=": lambda z, w: z.__imul__(w), "own": lambda z, w: z.__imul__(2),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_write_into_a_leaf_loses_no_gradient_silently(name: str) -> None:
    z, w = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor([5.0], requires_grad=True)
    with pytest.raises(GradientError, match="a write to a leaf"):
        WRITES[name](z, w)
    assert z.detach().tolist() == [1, 2, 3]
    with no_grad():
        WRITES[name](z, w)
    (z * z).sum().backward()
    assert w.grad is None
    assert z.grad is not None
    assert z.grad.tolist() == (z.detach() * 2).tolist()
    if name == "own":
        return
    inner, value = Tensor([1.0, 2.0, 3.0], requires_grad=True) * 1, Tensor([5.0], requires_grad=True)
    WRITES[name](inner, value)
    inner.sum().backward()
    assert value.grad is not None
    assert value.grad.item() != 0


def test_a_write_through_a_view_of_a_leaf_is_refused_too() -> None:
    z, w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), Tensor([5.0, 6.0], requires_grad=True)
    for write in (lambda: z[0].assign(w), lambda: z.T[0].__setitem__(slice(None), w), lambda: z[1].__iadd__(w)):
        with pytest.raises(GradientError, match="a write to a leaf"):
            write()
    assert z.detach().tolist() == [[1, 2], [3, 4]]


def test_views_are_two_variables_after_a_write_too() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    one, two = x[0], x[0]
    x[0, 0] = 5.0
    assert (one * two).sum().gradient(one)[0].tolist() == [5, 2]
    assert (one * two).sum().gradient(x)[0].tolist() == [[10, 4], [0, 0]]


N, DEPTH = 400, 16


def _linear_cases() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    def set_rows(w: Tensor, i: Tensor, wide: Tensor) -> Tensor:
        z = Tensor.zeros(N, DEPTH)
        z[i] = w
        return z

    def set_columns(w: Tensor, i: Tensor, wide: Tensor) -> Tensor:
        z = Tensor.zeros(DEPTH, N)
        z[:, i] = w.T
        return z

    return {
        "index_add": lambda w, i, wide: Tensor.zeros(N, DEPTH).index_add(0, i, w),
        "index_add 1": lambda w, i, wide: Tensor.zeros(DEPTH, N).index_add(1, i, w.T),
        "scatter_add": lambda w, i, wide: Tensor.zeros(N, DEPTH).scatter_add(0, wide, w),
        "scatter": lambda w, i, wide: Tensor.zeros(N, DEPTH).scatter(0, wide, w),
        "multiply": lambda w, i, wide: Tensor.ones(N, DEPTH).scatter(0, wide, w, reduce="multiply"),
        "rows": set_rows, "columns": set_columns,
    }  # fmt: skip


@pytest.mark.parametrize("name", _linear_cases())
def test_the_gradient_of_what_is_written_at_indices_costs_its_entries(name: str) -> None:
    """index_add compared every entry with every destination once more: 1.4 s where PyTorch takes 10 ms."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, N, 8 * N)
    i, wide = Tensor(index).realize(), Tensor(index[:, None] * np.ones((1, DEPTH), np.int64)).realize()
    w = Tensor(rng.random((8 * N, DEPTH)), dtypes.float32, requires_grad=True).realize()
    result = (_linear_cases()[name](w, i, wide) ** 2).realize()
    (grad,) = result.sum().gradient(w)
    with collecting_kernels() as found:
        grad.realize()
    dense = [ast for _, ast in found if estimate(ast).flops >= N * 8 * N * DEPTH]
    assert len(dense) <= (3 if name == "multiply" else 1)  # the sums themselves, where each entry goes to its own


def test_the_gradient_of_factors_at_indices() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for n, depth in ((40, 3), (400, 50)):
        index, factors = rng.integers(0, n // 4, (n, depth)), rng.standard_normal((n, depth))
        factors[rng.random((n, depth)) < 0.1] = 0
        own, ref = Tensor(factors, requires_grad=True), torch.tensor(factors, requires_grad=True)
        (Tensor(np.ones((n, depth))).scatter(0, Tensor(index), own, reduce="multiply") ** 2).sum().backward()
        ones = torch.ones(n, depth, dtype=torch.float64)
        (ones.scatter_reduce(0, torch.tensor(index), ref, "prod") ** 2).sum().backward()
        assert own.grad is not None
        close(own.grad, ref.grad.numpy(), 1e-12, 1e-12)


def test_detach_stops_without_requires_grad_too() -> None:
    x = Tensor(values(4, low=0.5))
    close((x * x.detach()).sum().gradient(x)[0], x.numpy())
    flagged = Tensor(values(4, low=0.5), requires_grad=True)
    for name in ("log1p", "softmax", "logsumexp", "atan", "clamp"):
        arguments = {"softmax": (0,), "logsumexp": (0,), "clamp": (0.6, 0.9)}.get(name, ())
        got, want = ((getattr(t, name)(*arguments) ** 2).sum().gradient(t)[0].detach() for t in (x, flagged))
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def _plain(*values: float) -> list[Tensor]:
    return [Tensor(list(values)) for _ in range(2)]


def test_equal_tensors_are_two_variables() -> None:
    """The target was found by its node, and equal expressions have one node."""
    w, b = Tensor.ones(4), Tensor.ones(4)
    assert [g.tolist() for g in (w * 3 + b).sum().gradient(w, b)] == [[3] * 4, [1] * 4]
    x, y = Tensor(1.0), Tensor(2.0)
    assert (x * 2 + 1.0).gradient(x)[0].item() == 2
    z = Tensor(2.0)
    assert [g.item() for g in (y * z * 1.5).gradient(y, z, y)] == [3, 3, 3]
    for make in (Tensor.zeros, Tensor.ones, Tensor.eye, lambda n: Tensor.full((n,), 2.0), Tensor.arange):
        first, second = make(3).float(), make(3).float()
        close((first * second.exp()).sum().gradient(first)[0], second.exp().numpy())


@pytest.mark.parametrize("flag", [False, True])
def test_a_target_is_the_tensor_that_is_passed(flag: bool) -> None:
    x = Tensor([1.0, 2.0], requires_grad=flag)
    one, two = x + 1, x + 1
    by_one, by_x = (one * two).sum().gradient(one, x)
    assert (by_one.tolist(), by_x.tolist()) == ([2, 3], [4, 6])
    square, norm = x.square(), x.norm()  # which has x * x inside
    assert (square.sum() + norm).gradient(square)[0].tolist() == [1, 1]
    same = x.reshape(2)
    assert (same * x).sum().gradient(same)[0].tolist() == [1, 2]
    wide = x.reshape(1, 2)
    for other in (wide.reshape(2, 1).reshape(2), wide.T.T.reshape(2), wide.squeeze(0), wide[0]):
        assert (other * other).sum().gradient(wide)[0].tolist() == [[2, 4]]
        assert (other * other).sum().gradient(x)[0].tolist() == [2, 4]
    with no_grad():
        constant = x * 3
    assert [g.tolist() for g in (constant * x).sum().gradient(x, constant)] == [[3, 6], [1, 2]]
    copy = Tensor(x)
    assert (copy * x).sum().gradient(x)[0].tolist() == [1, 2]


@pytest.mark.parametrize("flag", [False, True])
def test_realizing_a_target_changes_no_gradient(flag: bool) -> None:
    x = Tensor([1.0, 2.0], requires_grad=flag)
    y = x * 2
    loss = (y * y).sum()
    y.realize()
    loss = loss + y.sum()
    assert loss.gradient(y)[0].tolist() == [5, 9]
    x.realize()
    assert (y * 1).sum().requires_grad == flag
    value = (x * x).sum()
    value.item()
    if flag:
        assert value.gradient(x)[0].tolist() == [2, 4]
    else:
        with pytest.raises(GradientError, match="was realized or read, and its graph is released"):
            value.gradient(x)


FIRST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y, "matmul": lambda x, y: x @ y, "reshape": lambda x, y: x.reshape(-1) * y.reshape(-1),
    "permute": lambda x, y: x.T.T * y.T, "cat": lambda x, y: cat([x, y]), "index": lambda x, y: x[0] * y[1:],
    "conv": lambda x, y: x.reshape(1, 1, 3, 3).conv2d(y.reshape(1, 1, 3, 3)), "sum": lambda x, y: x.sum(0) * y.sum(1),
    "expand": lambda x, y: x.unsqueeze(0).expand(2, 3, 3) * y, "gather": lambda x, y: x[[0, 0, 1]] * y,
    "where": lambda x, y: x.where(y > 0, y),
    "view": lambda x, y: x.flatten().unflatten(0, (3, 3)).unsqueeze(0) * y.flatten().reshape(1, 3, 3),
    "pad": lambda x, y: x.pad((1, 1)) @ y.pad((0, 0, 1, 1)), "softmax": lambda x, y: x.softmax(1) * y,
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_targets_need_no_requires_grad_whatever_comes_first(name: str) -> None:
    """Some operations refused, or failed inside: a reshape of a reshape left the target out."""
    data = values(3, 3, low=0.3), values(3, 3, seed=1, low=0.3)
    found = [
        (FIRST[name](x, y) ** 2).sum().gradient(x, y)
        for x, y in [[Tensor(d, requires_grad=flag) for d in data] for flag in (True, False)]
    ]
    for flagged, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(flagged.detach().numpy(), plain.numpy())
    x, y = (Tensor(d) for d in data)
    inner = x * 1.5, y.T.T
    by_inner = (FIRST[name](*inner) ** 2).sum().gradient(*inner)
    leaves = [Tensor(t.numpy(), requires_grad=True) for t in inner]
    for own, want in zip(by_inner, (FIRST[name](*leaves) ** 2).sum().gradient(*leaves), strict=True):
        close(own, want.detach().numpy(), 1e-5, 1e-5)


def test_captured_gradients_are_the_eager_ones() -> None:
    def gradients(x: Tensor, y: Tensor) -> list[Tensor]:
        w, b = Tensor.ones(3), Tensor.ones(3)
        inner = x * w + b
        loss = (inner * y + 1.0).square().sum()
        return loss.gradient(x, y, w, b, inner, x)

    x, y = _plain(1.0, 2.0, 3.0)
    want = [g.numpy() for g in gradients(x, y)]
    captured = jit(gradients)
    for _ in range(3):
        for own, eager in zip(captured(x, y), want, strict=True):
            close(own, eager)


def test_gradients_add_up_over_losses_and_repeats() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    shared = x * x
    first, second = shared.sum(), (shared * 3).sum()
    first.backward()
    second.backward()
    first.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10, 20]
    assert [g.tolist() for g in (first + second).gradient(x, x)] == [[8, 16]] * 2


def test_what_is_detached_leaves_no_gradient() -> None:
    """It was a gradient of zeros, by which an optimizer with momentum or decay moves; PyTorch leaves none."""
    x, y = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    (x.detach() * y).sum().backward()
    assert x.grad is None
    assert y.grad is not None
    assert y.grad.tolist() == [1, 2]


def test_equal_programs_have_equal_plans() -> None:
    """Nodes that are one tensor's own are not part of a plan."""
    x = Tensor(values(4, 4)).realize()

    def program() -> None:
        w = Tensor.ones(4, 4)
        ((x.reshape(-1).reshape(4, 4) @ w) + w).sum().gradient(x, w)[0].realize()

    program()
    with collecting_kernels() as first:
        program()
    plans: Any = importlib.import_module("kernmill.runtime.plans.plan").plans
    count = len(plans)
    for _ in range(3):
        program()
    assert len(plans) == count
    assert first
