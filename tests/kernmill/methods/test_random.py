from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from kernmill import Context, DType, IndexRangeError, Tensor, dtypes, jit, manual_seed
from kernmill.compiler import estimate
from kernmill.ir import const, evaluate
from kernmill.methods.random import threefry
from kernmill.runtime import collecting_kernels, counters
from tests.runtime.processes import run

# Random123's known answers, kat_vectors: threefry2x32 20
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_threefry_is_random123s(counter: tuple[int, int], key: tuple[int, int], answer: tuple[int, int]) -> None:
    words = [const(dtypes.uint32, w) for w in (*key, *counter)]
    x, y = threefry((words[0], words[1]), (words[2], words[3]))
    assert (int(evaluate(x)), int(evaluate(y))) == answer


def test_the_seed_decides() -> None:
    manual_seed(1)
    a, b = Tensor.rand(5).numpy(), Tensor.rand(5).numpy()
    manual_seed(1)
    assert (Tensor.rand(5).numpy() == a).all()
    assert (Tensor.rand(5).numpy() == b).all()
    assert (a != b).all()
    manual_seed(2)
    assert (Tensor.rand(5).numpy() != a).all()


def test_numbers_do_not_depend_on_when_they_are_realized() -> None:
    manual_seed(1)
    eager = [Tensor.rand(3).numpy() for _ in range(3)]
    manual_seed(1)
    lazy = [Tensor.rand(3) for _ in range(3)]
    (Tensor([1.0]) + 1).realize()
    for t, want in zip(reversed(lazy), reversed(eager), strict=True):
        assert (t.numpy() == want).all()


def test_every_device_gives_the_same_numbers() -> None:
    numbers = []
    for name in ("LLVM", "PYTHON"):
        with Context(DEVICE=name):
            manual_seed(3)
            numbers.append(Tensor.rand(50).numpy())
    assert (numbers[0] == numbers[1]).all()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_even_numbers(dtype: DType) -> None:
    x = Tensor.rand(20000, dtype=dtype).double().numpy()
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01
    assert abs(x.var() - 1 / 12) < 0.003


def test_normal_numbers() -> None:
    x = Tensor.randn(20000).numpy().astype(np.float64)
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.02
    assert abs((x**3).mean()) < 0.1
    assert abs((x**4).mean() - 3) < 0.2
    y = Tensor.normal(5000, mean=3, std=0.1, dtype=dtypes.float64).numpy()
    assert abs(y.mean() - 3) < 0.01


def test_whole_numbers() -> None:
    x = Tensor.randint(-2, 3, (5000,)).numpy()
    assert x.dtype == np.int64
    assert np.unique(x).tolist() == [-2, -1, 0, 1, 2]
    assert np.bincount(x + 2).min() > 850
    assert Tensor.randint(4, None, (9,), dtype=dtypes.uint8).numpy().max() < 4
    assert Tensor.randint(4, (9, 2)).numpy().max() < 4


def test_whole_numbers_of_one_size() -> None:
    """Named regression: a size as NumPy takes it was told to be no shape, and the bound to be another."""
    assert Tensor.randint(2, 5, 3).shape == Tensor.randint(5, (3,)).shape == (3,)
    assert set(Tensor.randint(2, 5, 200).tolist()) == {2, 3, 4}


def test_uniform_and_initializations() -> None:
    x = Tensor.uniform(1000, low=-3, high=-1).numpy()
    assert -3 <= x.min() <= x.max() <= -1
    w = Tensor.kaiming_uniform(50, 20).numpy()
    assert np.abs(w).max() <= np.sqrt(6 / 20)
    assert np.abs(Tensor.glorot_uniform(50, 20).numpy()).max() <= np.sqrt(6 / 70)
    assert Tensor.glorot_uniform(2, 2, requires_grad=True).requires_grad


def test_permutations_and_draws() -> None:
    for n in (0, 1, 2, 3, 16, 40, 1000):
        assert sorted(Tensor.randperm(n).tolist()) == list(range(n))
    weights = Tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 0.0]])
    drawn = weights.multinomial(500, replacement=True).numpy()
    assert (drawn[1] == 0).all()
    assert (drawn[0] > 0).all()
    assert 0.65 < (drawn[0] == 2).mean() < 0.85
    without = Tensor([1.0, 2.0, 3.0]).multinomial(3).numpy()
    assert sorted(without.tolist()) == [0, 1, 2]


def test_bernoulli() -> None:
    p = Tensor([0.0, 1.0, 0.5]).expand(1000, 3)
    x = p.bernoulli().numpy()
    assert x.mean(0)[:2].tolist() == [0, 1]
    assert 0.4 < x.mean(0)[2] < 0.6


def test_like_another() -> None:
    t = Tensor.zeros(2, 3, dtype=dtypes.float64)
    assert (t.rand_like().shape, t.randn_like().dtype) == ((2, 3), dtypes.float64)


def test_nothing_random() -> None:
    assert Tensor.rand(0, 3).numpy().shape == (0, 3)
    assert Tensor.rand().numpy().shape == ()


FORK = """
import os
from kernmill import Tensor, manual_seed
manual_seed(5)
Tensor.rand(4).realize()
for child in range(3):
    pid = os.fork()
    if pid == 0:
        if child == 2 and os.fork() > 0:
            os.wait()
        print(Tensor.rand(4).tolist(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
print(Tensor.rand(4).tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_draw_other_numbers() -> None:
    """Once they all drew what their parent drew next. They draw the same in each run."""
    numbers = run(FORK)[0].splitlines()
    assert len(set(numbers)) == len(numbers) == 5
    assert run(FORK)[0].splitlines() == numbers


def test_weights_drawn_for_equal_layers_share_a_kernel() -> None:
    """Which call of the generator it is was a constant of the kernel, so that each layer compiled its own."""
    layers = [Tensor.rand(3, 41) for _ in range(5)]
    for layer in layers[:2]:
        layer.realize()
    before = counters.compiled
    for layer in layers[2:]:
        layer.realize()
    assert counters.compiled == before
    assert len({layer.numpy().tobytes() for layer in layers}) == len(layers)


def test_a_state_is_gone_on_from() -> None:
    """What a checkpoint needs so that training goes on with the numbers that it would have had."""
    manual_seed(3)
    Tensor.rand(2).realize()
    draw = jit(lambda: Tensor.rand(3))
    state = Tensor.random_state()
    wanted = [draw().tolist() for _ in range(4)]
    saved = Tensor(state.numpy())
    assert (saved.dtype, saved.tolist()[0]) == (dtypes.uint32, 3)
    Tensor.set_random_state(saved)
    assert [draw().tolist() for _ in range(4)] == wanted
    manual_seed(4)
    early = Tensor.rand(3)  # drawn before, computed after
    Tensor.set_random_state(saved)
    assert early.tolist() != wanted[0]
    assert Tensor.rand(3).tolist() == wanted[0]
    Tensor.set_random_state(Tensor.random_state())
    assert Tensor.rand(3).tolist() == wanted[1]


def test_a_draw_never_ends_at_a_class_of_weight_0() -> None:
    weights = np.zeros((2, 1000), np.float32)
    weights[0, 1::3], weights[1, 5] = np.random.default_rng(0).random(333), 1e-30
    drawn = Tensor(weights).multinomial(3000, replacement=True).numpy()
    assert (np.take_along_axis(weights, drawn, 1) > 0).all()
    without = Tensor(weights[0]).multinomial(333).numpy()
    assert sorted(without.tolist()) == np.flatnonzero(weights[0]).tolist()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32])
def test_draws_follow_their_weights(kind: type) -> None:
    manual_seed(5)
    weights: Any = np.array([[1, 2, 3, 0, 4], [0, 0, 1, 1, 0]], kind)
    drawn = Tensor(weights).multinomial(20_000, replacement=True).numpy()
    for row, own in zip(drawn, weights, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=5) / 20_000, own / own.sum(), atol=0.02)


def test_many_draws_of_many_classes_take_a_search_each(device: str) -> None:
    """Not a comparison of each draw with each class: 10,000 of 1,000,000 would be 10**10."""
    if device != "LLVM":
        pytest.skip("a measurement of the default device")
    weights = Tensor.rand(1_000_000).realize()
    weights.multinomial(10_000, replacement=True).realize()
    with collecting_kernels() as launched:
        weights.multinomial(10_000, replacement=True).realize()
    assert launched
    assert sum(estimate(kernel.ast).flops for kernel, _ in launched.values()) < 10**9


def test_a_deviation_below_0_in_a_tensor() -> None:
    with pytest.raises(IndexRangeError, match=r"normal: a deviation is below 0, or nan. Give std=x.abs\(\)"):
        Tensor.normal(3, std=Tensor([1.0, -1.0, 0.0])).realize()  # type: ignore[arg-type]
