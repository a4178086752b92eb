"""jit: a replay means what plain execution means, and notices when it cannot."""

from __future__ import annotations

import copy
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kernmill import (
    Context,
    GradientError,
    IndexRangeError,
    KernmillError,
    Tensor,
    dtypes,
    jit,
    manual_seed,
    no_grad,
    train,
)
from kernmill.nn import BatchNorm2d, Dropout, Linear, Module
from kernmill.nn.optim import SGD, Adam

Array = np.ndarray[Any, np.dtype[Any]]
SCALE = 2.0


def numbers(*shape: int, start: float = 0.0) -> Array:
    return (np.arange(int(np.prod(shape)), dtype=np.float32) + np.float32(start)).reshape(shape)


def tensor(*shape: int, start: float = 0.0) -> Tensor:
    return Tensor(numbers(*shape, start=start))


# --- arguments and results
def test_first_runs_then_captures_then_replays() -> None:
    calls = []

    @jit
    def double(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 2

    calls.clear()
    for i in range(3):
        np.testing.assert_array_equal(double(tensor(4, start=i)).numpy(), numbers(4, start=i) * 2)
    assert double.cache_info().captures >= 1


def test_a_replay_runs_no_python() -> None:
    @jit
    def double(x: Tensor) -> Tensor:
        return x * 2

    for i in range(5):
        np.testing.assert_array_equal(double(tensor(4, start=i)).numpy(), numbers(4, start=i) * 2)
    assert double.cache_info() == (1, 3, 1, 1)
    double.reset()
    assert double.cache_info() == (0, 0, 0, 0)


@pytest.mark.parametrize("lengths", [(4, 4, 4, 8, 8, 8, 2, 2, 2, 4, 8)])
def test_other_lengths_are_captured_anew(lengths: tuple[int, ...]) -> None:
    double = jit(lambda x: x * 2 + 1)
    for n in lengths:
        np.testing.assert_array_equal(double(tensor(n)).numpy(), numbers(n) * 2 + 1)
    assert double.cache_info().captures == 3


def test_other_dtypes_and_structures_are_captured_anew() -> None:
    double = jit(lambda x: x * 2)
    for dtype in (np.float32, np.int32, np.float32, np.int32, np.float32):
        got = double(Tensor(np.arange(3).astype(dtype))).numpy()
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, np.arange(3).astype(dtype) * 2)
    assert double.cache_info().captures == 2
    shapes = jit(lambda x: x.sum(0))
    for _ in range(2):
        for shape in ((6,), (2, 3), (3, 2)):
            np.testing.assert_array_equal(shapes(tensor(*shape)).numpy(), numbers(*shape).sum(0))


@dataclass
class Pair:
    a: Tensor
    b: Tensor
    scale: float = 1.0


def test_containers_in_and_out() -> None:
    @jit
    def work(items: Any, *, more: Any, pair: Pair) -> Any:
        total = items[0] + items[1][0] + more["z"]
        return {"t": (total, [pair.a * pair.scale]), "plain": 7, "pair": Pair(total * 2, pair.b, 5.0)}

    for i in range(4):
        x, y, z, a, b = (tensor(3, start=10 * i + k) for k in range(5))
        got = work([x, (y,)], pair=Pair(a, b, 3.0), more={"z": z})
        sums = x.numpy() + y.numpy() + z.numpy()
        np.testing.assert_array_equal(got["t"][0].numpy(), sums)
        np.testing.assert_array_equal(got["t"][1][0].numpy(), a.numpy() * 3)
        np.testing.assert_array_equal(got["pair"].a.numpy(), sums * 2)
        assert got["pair"].b is b
        assert (got["plain"], got["pair"].scale) == (7, 5.0)
    assert work.cache_info().replays == 2


def test_keyword_order_does_not_matter() -> None:
    minus = jit(lambda *, a, b: a - b)
    a, b = tensor(3), tensor(3, start=5)
    for _ in range(3):
        np.testing.assert_array_equal(minus(a=a, b=b).numpy(), [-5, -5, -5])
        np.testing.assert_array_equal(minus(b=a, a=b).numpy(), [5, 5, 5])
    assert minus.cache_info().captures == 1


def test_plain_arguments_choose_the_capture() -> None:
    @jit
    def power(x: Tensor, n: Any, mode: str = "up") -> Any:
        return x * n if mode == "up" else x - n

    for _ in range(3):
        for n, mode in ((2, "up"), (2.0, "up"), (2, "down"), (True, "up"), (-0.0, "up"), (0.0, "up")):
            got = power(tensor(3, start=1), n, mode=mode).numpy()
            want = numbers(3, start=1) * n if mode == "up" else numbers(3, start=1) - n
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
            np.testing.assert_array_equal(got, want)
    assert power.cache_info().captures == 6


def test_the_same_tensor_twice() -> None:
    work = jit(lambda x, y: x * 10 + y)
    x, y = tensor(3, start=1), tensor(3, start=5)
    for _ in range(3):
        np.testing.assert_array_equal(work(x, x).numpy(), x.numpy() * 11)
        np.testing.assert_array_equal(work(x, y).numpy(), x.numpy() * 10 + y.numpy())
        np.testing.assert_array_equal(work(x, x.clone()).numpy(), x.numpy() * 11)


def test_an_input_that_comes_back() -> None:
    work = jit(lambda x: (x, x.reshape(2, 2), x + 1))
    for i in range(4):
        x = tensor(4, start=i)
        same, shaped, more = work(x)
        assert same is x
        np.testing.assert_array_equal(shaped.numpy(), numbers(2, 2, start=i))
        np.testing.assert_array_equal(more.numpy(), numbers(4, start=i) + 1)


def test_lazy_and_strided_inputs() -> None:
    work = jit(lambda x: x * 2)
    for i in range(4):
        x = tensor(4, 6, start=i)
        np.testing.assert_array_equal(work(x.T[1::2] + 1).numpy(), (numbers(4, 6, start=i).T[1::2] + 1) * 2)
        np.testing.assert_array_equal(work(Tensor(float(i))).numpy(), i * 2)


def test_results_do_not_alias() -> None:
    work = jit(lambda x: (x + 1, (x * 2).sum()))
    kept = []
    for i in range(6):
        more, total = work(tensor(4, start=i))
        kept.append((i, more.numpy(), total.numpy(), total))
    for i, more, total, tensor_ in kept:
        np.testing.assert_array_equal(more, numbers(4, start=i) + 1)
        assert total == tensor_.item() == (numbers(4, start=i) * 2).sum()


def test_results_used_later_keep_their_values() -> None:
    work = jit(lambda x: x + 1)
    lazy = []
    for i in range(5):
        y = work(tensor(4, start=i))
        lazy.append(y * 10)
        y += 100  # in place: the next replay must not see it, nor undo it
        lazy.append(y)
    for i in range(5):
        np.testing.assert_array_equal(lazy[2 * i].numpy(), (numbers(4, start=i) + 1) * 10)
        np.testing.assert_array_equal(lazy[2 * i + 1].numpy(), numbers(4, start=i) + 101)


def test_constants_made_inside_keep_their_values() -> None:
    @jit
    def work(x: Tensor) -> tuple[Tensor, Tensor]:
        counter = Tensor([1.0, 2.0])
        counter += x
        return counter, Tensor([5.0, 6.0])

    for _ in range(4):
        a, b = work(Tensor([1.0, 1.0]))
        np.testing.assert_array_equal(a.numpy(), [2, 3])
        np.testing.assert_array_equal(b.numpy(), [5, 6])
        b += 1
        b.realize()


def test_nothing_and_zero_sizes() -> None:
    work = jit(lambda x: (x * 2, x.sum()))
    for n in (0, 3, 0, 0, 3):
        y, total = work(tensor(n))
        assert y.shape == (n,)
        assert total.item() == numbers(n).sum()
    nothing = jit(lambda: None)
    assert [nothing() for _ in range(3)] == [None] * 3


def test_numpy_arguments_are_refused() -> None:
    with pytest.raises(KernmillError, match=r"a NumPy array of shape \(3,\).*wrap it in Tensor"):
        jit(lambda x: x)(np.zeros(3))


# --- state
def test_an_assigned_tensor_is_seen_by_the_next_replay() -> None:
    weight = tensor(3)
    storage = []

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return weight * 2

    for i in range(5):
        np.testing.assert_array_equal(step(Tensor(np.ones(3, np.float32))).numpy(), (numbers(3) + i + 1) * 2)
        storage.append(weight.numpy()[0])
    np.testing.assert_array_equal(weight.numpy(), numbers(3) + 5)
    weight.assign(tensor(3, start=100))
    np.testing.assert_array_equal(step(Tensor(np.ones(3, np.float32))).numpy(), (numbers(3) + 101) * 2)
    assert storage == [1, 2, 3, 4, 5]


def test_views_and_clones_of_state_keep_their_values() -> None:
    weight = tensor(3).realize()

    @jit
    def step() -> Tensor:
        weight.assign(weight + 1)
        return weight.sum()

    views, clones, lazies = [], [], []
    for _ in range(6):
        step()
        views.append(weight.numpy())
        clones.append(weight.clone())
        lazies.append(weight * 10)
    for i in range(6):
        np.testing.assert_array_equal(views[i], numbers(3) + i + 1)
        np.testing.assert_array_equal(clones[i].numpy(), numbers(3) + i + 1)
        np.testing.assert_array_equal(lazies[i].numpy(), (numbers(3) + i + 1) * 10)
    assert step.cache_info().captures == 1


def test_old_and_new_values_of_state() -> None:
    weight = tensor(3)

    @jit
    def step() -> tuple[Tensor, Tensor]:
        old = weight.clone()
        weight.assign(weight * 2 + 1)
        return old, weight

    want = numbers(3)
    kept = []
    for _ in range(5):
        old, new = step()
        kept.append((old, want))
        assert new is weight
        want = want * 2 + 1
        np.testing.assert_array_equal(weight.numpy(), want)
    for old, expected in kept:
        np.testing.assert_array_equal(old.numpy(), expected)


def test_an_assigned_argument() -> None:
    @jit
    def bump(x: Tensor) -> Tensor:
        x += 1
        return x.sum()

    for i in range(4):
        x = tensor(3, start=i).realize()
        y, view = x.clone(), x.numpy()
        assert bump(x).item() == (numbers(3, start=i) + 1).sum()
        np.testing.assert_array_equal(x.numpy(), numbers(3, start=i) + 1)
        np.testing.assert_array_equal(y.numpy(), numbers(3, start=i))
        np.testing.assert_array_equal(view, numbers(3, start=i))


def test_state_as_argument_is_another_case() -> None:
    weight = tensor(3)

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return x * 1

    other = tensor(3, start=1).realize()
    step(other), step(other), step(other)
    before = weight.numpy().copy()
    np.testing.assert_array_equal(step(weight).numpy(), before * 2)
    np.testing.assert_array_equal(weight.numpy(), before * 2)
    np.testing.assert_array_equal(step(other).numpy(), other.numpy())
    np.testing.assert_array_equal(weight.numpy(), before * 2 + other.numpy())


class Recurrent:
    def __init__(self) -> None:
        self.h: Any = None
        self.pair: Any = (tensor(2), tensor(2))
        self.list = [tensor(2)]

    @jit
    def __call__(self, x: Tensor) -> Any:
        self.h = x if self.h is None else self.h * 2 + x
        self.pair = (self.pair[1], self.pair[0] + x)
        self.list[0] = self.list[0] + 1
        return self.h * 1


def test_attributes_that_are_exchanged() -> None:
    model = Recurrent()
    h: Any = None
    a, b, c = numbers(2), numbers(2), numbers(2)
    held = []
    for i in range(7):
        x = numbers(2, start=i)
        h = x if h is None else h * 2 + x
        a, b, c = b, a + x, c + 1
        np.testing.assert_array_equal(model(Tensor(x)).numpy(), h)
        held.append((model.h, h))
        for got, want in zip((*model.pair, model.list[0], model.h), (a, b, c, h), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    assert all(np.array_equal(got.numpy(), want) for got, want in held)
    assert Recurrent.__call__.__get__(model).cache_info().captures <= 2


def test_tensors_kept_outside_the_places_that_are_known() -> None:
    kept: list[Tensor] = []
    keep = {"f": kept.append}  # C code: what it holds is not seen

    @jit
    def work(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        keep["f"](y)
        return y * 2

    for i in range(5):
        work(tensor(3, start=i))
    np.testing.assert_array_equal(kept[0].numpy(), numbers(3) + 1)
    np.testing.assert_array_equal(kept[1].numpy(), numbers(3, start=1) + 1)


def test_weights_that_the_user_replaces() -> None:
    class Net:
        def __init__(self) -> None:
            self.weight = tensor(3)

    net = Net()
    work = jit(lambda x: x * net.weight)
    for i in range(6):
        if i >= 3:
            net.weight = tensor(3, start=i)
        np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) * net.weight.numpy())
    net.weight = tensor(1, start=7)
    np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) * 7)


# --- what the function depends on besides its arguments
def test_a_global_float_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    work = jit(lambda x: x * SCALE)
    for value in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", value)
        np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) * value)
    assert work.cache_info().captures == 2


def test_closures_helpers_and_attributes_are_noticed() -> None:
    factor = 2

    class Config:
        offset = 1.0
        steps = (1, 2)

    config = Config()

    def helper(x: Tensor) -> Tensor:
        return x * factor + config.offset

    @jit
    def work(x: Tensor) -> Tensor:
        for step in config.steps:
            x = helper(x) * step
        return x

    def plain(x: Array) -> Array:
        for step in config.steps:
            x = (x * factor + config.offset) * step
        return x

    def change(i: int) -> None:
        nonlocal factor
        if i == 3:
            factor = 5
        if i == 5:
            config.offset = 4.0
        if i == 7:
            Config.steps = (3,)  # type: ignore[assignment]

    for i in range(10):
        change(i)
        np.testing.assert_array_equal(work(tensor(3)).numpy(), plain(numbers(3)))
    assert work.cache_info().captures == 4


def test_modes_and_settings_are_noticed() -> None:
    drop = Dropout(0.5)
    work = jit(lambda x: drop(x))
    x = Tensor(np.ones(64, np.float32))
    for _ in range(3):
        assert not work(x).numpy().all()
        with train(False):
            assert work(x).numpy().all()
    w = Tensor(np.ones(2, np.float32), requires_grad=True)
    grads = jit(lambda: (w * 2).requires_grad)
    for _ in range(3):
        assert grads() is True
        with no_grad():
            assert grads() is False


def test_changes_at_every_call_are_answered_right_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    class Config:
        rate = 0.0

    config = Config()
    work = jit(lambda x: x * config.rate)
    with caplog.at_level(logging.WARNING):
        for i in range(8):
            config.rate = float(i)
            np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) * i)
    assert [r.message.count("rate") for r in caplog.records] == [1]
    assert "Make it a Tensor" in caplog.text


def test_changes_in_place_of_large_values_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    array, many = np.zeros(1 << 18, np.float32), list(range(4096))
    work = jit(lambda x: x + Tensor(array.copy()).sum() + many[-1])
    for i in range(9):
        array[7], many[-1] = i // 3, i // 6
        np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) + i // 3 + i // 6)
    assert (work.cache_info()[:2], caplog.records) == ((3, 5), [])


def test_values_too_large_to_watch_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    array, many = np.zeros((1 << 18) + 1, np.float32), list(range(4097))
    work = jit(lambda x: x + many[-1] + float(array[0]))
    with caplog.at_level(logging.WARNING):
        for n in (1, 1, 2, 2, 3):
            work(tensor(n))
    assert [("'array'" in r.message, "'many'" in r.message) for r in caplog.records] == [(True, False), (False, True)]
    assert all(r.name == "kernmill" and "not noticed. Make it a Tensor argument" in r.message for r in caplog.records)


own_random, own_numpy = random.Random(1), np.random.default_rng(1)


@pytest.mark.parametrize(
    ("draw", "name"),
    [(lambda: random.random(), "random"), (lambda: np.random.rand(), "numpy.random"),
     (lambda: own_random.random(), "own_random"), (lambda: own_numpy.random(), "own_numpy"), (lambda: 0.5, "")],
)  # fmt: skip
def test_drawn_numbers_are_warned_about(draw: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    work = jit(lambda x: x + Tensor.rand(1) + draw())
    with caplog.at_level(logging.WARNING):
        for n in (1, 1, 1, 2, 2):
            work(tensor(n))
    assert [name in r.message and "while it was captured" in r.message for r in caplog.records] == [True][: len(name)]


def test_too_many_shapes_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    work = jit(lambda x: x + 1)
    with caplog.at_level(logging.WARNING):
        for n in range(1, 25):
            np.testing.assert_array_equal(work(tensor(n)).numpy(), numbers(n) + 1)
    assert len(caplog.records) == 1
    assert work.cache_info().entries == 16


# --- errors
def test_values_are_not_read_in_a_capture() -> None:
    @jit
    def work(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 0 else x

    assert work(tensor(3)).numpy()[1] == 2
    with pytest.raises(KernmillError, match="reads values"):
        work(tensor(3))
    np.testing.assert_array_equal((tensor(3) + 1).numpy(), numbers(3) + 1)  # nothing is left behind
    with pytest.raises(KernmillError, match="reads values"):
        work(tensor(3))


def test_an_exception_in_a_capture_leaves_nothing() -> None:
    weight = tensor(3)
    fails = [False]

    @jit
    def work(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        if fails[0]:
            raise ValueError("mine")
        return weight * 2

    one = Tensor(np.ones(3, np.float32))
    work(one)
    fails[0] = True
    with pytest.raises(ValueError, match="mine"):
        work(one)
    fails[0] = False
    for i in range(3):
        np.testing.assert_array_equal(
            work(one).numpy(), (numbers(3) + 3 + i) * 2
        )  # the failed call assigned, as it would plainly


def test_indices_are_checked_in_replays() -> None:
    work = jit(lambda x, i: x[i])
    x = tensor(5)
    for places in ([0, 1], [2, 3], [4, 0]):
        np.testing.assert_array_equal(work(x, Tensor(places)).numpy(), np.array(places, np.float32))
    with pytest.raises(IndexRangeError):
        work(x, Tensor([0, 5]))
    np.testing.assert_array_equal(work(x, Tensor([3, 3])).numpy(), [3, 3])


def test_an_argument_with_history_is_refused() -> None:
    w = Tensor(np.ones(3, np.float32), requires_grad=True)
    work = jit(lambda x: x * 2)
    with pytest.raises(GradientError, match=r"\.detach\(\)"):
        work(w * 2)
    with no_grad():
        for _ in range(3):
            np.testing.assert_array_equal(work(w * 2).numpy(), [4, 4, 4])
    assert not work(w).requires_grad


# --- training
class Net(Module):
    def __init__(self) -> None:
        self.first, self.second = Linear(4, 8), Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x).relu())


Optimizer = Callable[[list[Tensor]], Any]


def trained(
    wrap: Callable[[Any], Any], make: Optimizer, steps: int, *, zero: str
) -> tuple[list[float], list[Array], Any]:
    manual_seed(3)
    net = Net()
    opt = make(net.parameters())

    def step(x: Tensor, y: Tensor) -> Any:
        if zero == "inside":
            opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        if zero != "step outside":
            opt.step(loss)
        return loss

    call = wrap(step)
    rng = np.random.default_rng(1)
    losses = []
    for i in range(steps):
        if i == 4:
            opt.lr = 0.05
        if zero in ("outside", "step outside"):
            opt.zero_grad()
        data = [Tensor(rng.standard_normal(s).astype(np.float32)).realize() for s in ((6, 4), (6, 2))]
        loss = call(*data)
        if zero == "step outside":
            opt.step()
        losses.append(loss.item())
    grads = [p.grad.numpy() for p in net.parameters() if p.grad is not None]
    return losses, [*(p.numpy() for p in net.parameters()), *grads], call


@pytest.mark.parametrize("zero", ["inside", "outside", "never", "step outside"])
@pytest.mark.parametrize(
    "make", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.01)], ids=["sgd", "adam"]
)
def test_training_is_what_it_is_without(make: Optimizer, zero: str) -> None:
    plain = trained(lambda f: f, make, 7, zero=zero)
    fast = trained(jit, make, 7, zero=zero)
    np.testing.assert_allclose(fast[0], plain[0], rtol=1e-5)
    for got, want in zip(fast[1], plain[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert fast[2].cache_info().replays >= 4


def test_running_statistics_advance() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Array]:
        norm = BatchNorm2d(3)
        call = wrap(lambda x: norm(x).sum())
        for i in range(5):
            with train():
                call(tensor(2, 3, 2, 2, start=i))
        return [t.numpy() for t in norm.state_dict().values()]

    for got, want in zip(run(jit), run(lambda f: f), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_random_numbers_go_on() -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Array]:
        manual_seed(11)
        call = wrap(lambda x: x + Tensor.rand(4))
        found = [call(tensor(4)).numpy() for _ in range(3)]
        between = Tensor.rand(3)
        found += [call(tensor(4)).numpy(), between.numpy(), call(tensor(4)).numpy()]
        manual_seed(11)
        return [*found, call(tensor(4)).numpy()]

    plain, fast = run(lambda f: f), run(jit)
    for got, want in zip(fast, plain, strict=True):
        np.testing.assert_array_equal(got, want)
    assert len({f.tobytes() for f in fast[:4]}) == 4
    np.testing.assert_array_equal(fast[0], fast[-1])


# --- where it is used
def test_methods_of_several_objects_and_their_copies() -> None:
    class Counter:
        def __init__(self, start: float) -> None:
            self.value = tensor(2, start=start)
            self.by = 1.0

        @jit
        def add(self, x: Tensor) -> Tensor:
            self.value.assign(self.value + x * self.by)
            return self.value * 1

    a, b = Counter(0), Counter(10)
    for i in range(4):
        np.testing.assert_array_equal(a.add(tensor(2)).numpy(), numbers(2) * (i + 2))
        np.testing.assert_array_equal(b.add(tensor(2)).numpy(), numbers(2, start=10) + numbers(2) * (i + 1))
    a.by = 2.0
    np.testing.assert_array_equal(a.add(tensor(2)).numpy(), numbers(2) * 7)
    c = copy.copy(a)
    c.by = 0.0
    np.testing.assert_array_equal(c.add(tensor(2)).numpy(), numbers(2) * 7)
    assert a.add is a.add
    assert c.add is not a.add


def test_one_captured_function_in_another() -> None:
    inner = jit(lambda x: x * 3)
    outer = jit(lambda x: inner(x) + inner(x + 1))
    for i in range(5):
        np.testing.assert_array_equal(outer(tensor(3, start=i)).numpy(), numbers(3, start=i) * 6 + 3)
        np.testing.assert_array_equal(inner(tensor(3, start=i)).numpy(), numbers(3, start=i) * 3)


def test_forms_of_the_decorator() -> None:
    @jit()
    def doubled(x: Tensor) -> Tensor:
        """Twice."""
        return x * 2

    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Twice.")
    linear = Linear(3, 2)
    call = jit(linear)
    for _ in range(3):
        np.testing.assert_allclose(call(tensor(1, 3)).numpy(), linear(tensor(1, 3)).numpy(), rtol=1e-6)
    assert call.cache_info().replays == 1


def test_several_realizes_and_devices_in_one_capture(on_device: str) -> None:
    other = "PYTHON" if on_device == "LLVM" else "LLVM"

    @jit
    def work(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        z = y.to(other) * 2
        return z.realize().to(on_device) + y

    for i in range(4):
        np.testing.assert_array_equal(work(tensor(3, start=i)).numpy(), (numbers(3, start=i) + 1) * 3)
    moved = jit(lambda x: x.to(other))
    for i in range(4):
        got = moved(tensor(3, start=i))
        assert got.device == other
        np.testing.assert_array_equal(got.numpy(), numbers(3, start=i))


def test_an_input_on_another_device(on_device: str) -> None:
    other = "PYTHON" if on_device == "LLVM" else "LLVM"
    work = jit(lambda x: x * 2)
    for place in (on_device, on_device, other, other, on_device):
        got = work(Tensor(numbers(3), device=place))
        assert got.device == place
        np.testing.assert_array_equal(got.numpy(), numbers(3) * 2)
    with Context(DEVICE=other):
        np.testing.assert_array_equal(work(tensor(3)).numpy(), numbers(3) * 2)


def test_threads_take_turns() -> None:
    weight = Tensor(np.zeros(1, np.float32))
    work = jit(lambda x: (x * 2 + 1, weight.assign(weight + 1))[0])
    wrong: list[Any] = []

    def use(seed: int) -> None:
        try:
            own = jit(lambda x: x * seed)
            for i in range(20):
                x = numbers(5, start=seed * 100 + i)
                if not np.array_equal(work(Tensor(x)).numpy(), x * 2 + 1) or not np.array_equal(
                    own(Tensor(x)).numpy(), x * seed
                ):
                    wrong.append((seed, i))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert weight.item() == 40


def test_memory_is_reported() -> None:
    work = jit(lambda x: ((x + 1).contiguous() * 2).sum())
    for _ in range(2):
        work(tensor(1000))
    kept, least, _ = work.memory()
    assert kept >= least >= 4000


def test_half_types_and_casts() -> None:
    work = jit(lambda x: x.cast(dtypes.float16) * 2)
    for i in range(3):
        np.testing.assert_array_equal(work(tensor(3, start=i)).float().numpy(), numbers(3, start=i) * 2)
